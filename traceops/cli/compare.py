"""`traceops compare`: whether head is slower than base, how sure that is, and why; exit code 1 if it is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from traceops.baseline.store import baseline_entries
from traceops.cli.arguments import output_folder
from traceops.compare import CompareConfig, ComparedCapture, compare, load_config
from traceops.compare.capture import pair_folder, read_capture
from traceops.compare.config import with_thresholds
from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.text import printable, traced_runs
from traceops.render.comparison import FORMATS, write_comparison
from traceops.render.comparison.markdown import announce
from traceops.render.comparison.terminal import print_comparison
from traceops.traces.source import is_remote

_text = Wording("cli", "compare")


def main(args: argparse.Namespace) -> int:
    formats = tuple(dict.fromkeys(part.strip() for part in args.format.split(",") if part.strip()))
    if not formats or not set(formats) <= set(FORMATS):
        raise UsageError(f"--format {args.format}: takes {', '.join(FORMATS)}, separated by commas")
    config = with_thresholds(load_config(file=args.config), args.threshold)
    base_paths, head_paths, default = _sides(args)
    head = [capture for path in head_paths for capture in _read(path, args, config, None)]
    base = [capture for path in base_paths for capture in _read(path, args, config, head[0])]
    result = compare(base, head, config, force=args.force)
    if args.output:
        folder = Path(args.output)
    elif not is_remote(default) and Path(default).is_file() and Path(default).name == "report.json":
        folder = Path(default).parent  # beside the report that was given
    else:  # where the report of these traces would go
        named = Path(default) if Path(default).is_dir() else Path(head[0].info.name)
        folder = output_folder(default, named.name)
    written = write_comparison(result, folder, formats, plotlyjs=args.plotlyjs, name=args.name)
    if args.quiet:
        print(printable(result.sentence))
    else:
        print_comparison(result, sys.stdout, written[0], verbose=args.verbose)
    announce(result, os.environ, sys.stdout, name=args.name)
    if result.verdict == "regression":
        return 1
    return 4 if args.strict and result.verdict == "inconclusive" else 0


def _sides(args: argparse.Namespace) -> tuple[list[str], list[str], str]:
    """Paths of base and head, and the path that names the result. Raises UsageError."""
    if args.base or args.head:
        if args.paths or not args.base or not args.head:
            raise UsageError(_text("both_sides"))
        return args.base, args.head, args.head[0]
    if len(args.paths) == 1 and (pairs := pair_folder(args.paths[0])) is not None:
        return *pairs, args.paths[0]
    if len(args.paths) != 2:
        # The only one may not be there, which a folder of `traceops run --against` would be.
        alone = args.paths[0] if len(args.paths) == 1 else ""
        known = not alone or alone.startswith("baseline:") or is_remote(alone) or Path(alone).exists()
        raise UsageError(_text("two", missing="" if known else f"{alone} does not exist; ", two=_two(args.paths)))
    return [args.paths[0]], [args.paths[1]], args.paths[1]


def _two(paths: Sequence[str]) -> str:
    """What could be compared: both sides of A..B, or runs of as many ranks: the newest other one with what was given,
    else the two newest of profile/; empty where there are none."""
    if len(paths) == 1 and all(side and Path(side).exists() for side in paths[0].split("..")):
        sides = paths[0].split("..")
        if len(sides) == 2:
            return " ".join(sides)
        alone = Path(paths[0])
        runs = [run for run in traced_runs(alone.parent) if run != alone and _ranks(run) == _ranks(alone)]
        return f"{alone} {runs[-1]}" if runs else ""
    runs = traced_runs()
    runs = [run for run in runs if _ranks(run) == _ranks(runs[-1])]
    return " ".join(map(str, runs[-2:])) if len(runs) > 1 else "BASE HEAD"


def _ranks(run: Path) -> int:
    return len(list(run.glob("rank_*")))


def _read(
    path: str, args: argparse.Namespace, config: CompareConfig, head: ComparedCapture | None
) -> list[ComparedCapture]:
    """The captures behind one argument: one, or a baseline's last."""
    if not path.startswith("baseline:"):
        return [read_capture(path, jobs=args.jobs)]

    like = None if head is None else head.run
    entries = baseline_entries(path.removeprefix("baseline:"), args.store, last=args.last, like=like, config=config)
    return [entry.capture() for entry in entries]
