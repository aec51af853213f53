"""`traceops compare`: whether head is slower than base, how sure that is, and why; exit code 1 if it is."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from traceops.cli.arguments import positive
from traceops.core.errors import UsageError

if TYPE_CHECKING:
    from traceops.compare import Capture, CompareConfig

HELP = "Say whether head is slower than base, how sure that is, and why; exit 1 on a regression."
_EPILOG = """BASE and HEAD: run folders, folders with traces, report.json files, or baseline:NAME.
One folder alone: what `traceops run --repeat N --against REF` made.

exit codes: 0 no regression, 1 a regression, 2 wrong usage or not comparable, 3 unreadable input,
4 inconclusive (with --strict)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("paths", nargs="*", metavar="BASE HEAD", help="what is compared; one capture a side")
    add("--base", nargs="+", metavar="PATH", default=[], help="several captures of base")
    add("--head", nargs="+", metavar="PATH", default=[], help="several captures of head")
    add(
        "--threshold",
        action="append",
        metavar="METRIC=PCT",
        default=[],
        help="fail from this change for the worse on; a number alone is the step time's, 'off' takes a metric "
        "out of the gate; repeatable",
    )
    add("--config", metavar="FILE", help="settings (traceops.toml, or [tool.traceops] in pyproject.toml)")
    add("--store", metavar="DIR|URL", help="where baseline:NAME is looked up (as for traceops baseline)")
    add("--last", type=positive, default=5, metavar="N", help="captures of baseline:NAME (%(default)s)")
    add("--force", action="store_true", help="compare what is not comparable")
    add("--strict", action="store_true", help="exit 4 if the result is inconclusive")
    add("-o", "--output", metavar="DIR", help="where the files go (reports/NAME of head)")
    add(
        "--format",
        default="html,md,json",
        metavar="LIST",
        help="of html, md, json, junit, sarif, csv (%(default)s)",
    )
    add("--plotlyjs", choices=("inline", "cdn"), default="inline", help="inline works offline (%(default)s)")
    add("--name", default="", help="of this comparison, where one pull request gets several comments")
    add("--jobs", type=positive, metavar="N", help="processes to read traces with (one a core)")
    add("-q", "--quiet", action="store_true", help="print the verdict's sentence only")


def main(args: argparse.Namespace) -> int:
    from traceops.compare import compare, load_config
    from traceops.compare.config import with_thresholds
    from traceops.render.comparison import FORMATS, write_comparison
    from traceops.render.comparison.github import announce
    from traceops.render.comparison.terminal import print_comparison

    formats = tuple(dict.fromkeys(part.strip() for part in args.format.split(",") if part.strip()))
    if not formats or not set(formats) <= set(FORMATS):
        raise UsageError(f"--format takes {', '.join(FORMATS)}, separated by commas, not {args.format!r}")
    config = with_thresholds(load_config(file=args.config), args.threshold)
    base_paths, head_paths, default = _sides(args)
    head = [capture for path in head_paths for capture in _read(path, args, config, None)]
    base = [capture for path in base_paths for capture in _read(path, args, config, head[0])]
    result = compare(base, head, config, force=args.force)
    folder = Path(args.output) if args.output else _folder(default, head[0])
    written = write_comparison(result, folder, formats, plotlyjs=args.plotlyjs, name=args.name)
    if args.quiet:
        print(result.sentence)
    else:
        print_comparison(result, sys.stdout, written[0])
    announce(result, os.environ, sys.stdout, name=args.name)
    if result.verdict == "regression":
        return 1
    return 4 if args.strict and result.verdict == "inconclusive" else 0


def _folder(path: str, head: Capture) -> Path:
    """Beside the report that was given, else where the report of these traces would go."""
    from traceops.cli.analyze import output_folder
    from traceops.traces.source import is_remote

    if not is_remote(path) and Path(path).is_file() and Path(path).name == "report.json":
        return Path(path).parent
    return output_folder(path, Path(path).name if Path(path).is_dir() else Path(head.info.name).name)


def _sides(args: argparse.Namespace) -> tuple[list[str], list[str], str]:
    """Paths of base and head, and the path that names the result. Raises UsageError."""
    from traceops.compare.capture import pair_folder

    if args.base or args.head:
        if args.paths or not args.base or not args.head:
            raise UsageError("give BASE HEAD, or both --base A … and --head B …, nothing else beside them")
        return args.base, args.head, args.head[0]
    if len(args.paths) == 1 and (pairs := pair_folder(args.paths[0])) is not None:
        return *pairs, args.paths[0]
    if len(args.paths) != 2:
        raise UsageError(
            "two things are compared: traceops compare BASE HEAD (several captures a side: --base A B --head C D)"
        )
    return [args.paths[0]], [args.paths[1]], args.paths[1]


def _read(path: str, args: argparse.Namespace, config: CompareConfig, head: Capture | None) -> list[Capture]:
    """The captures behind one argument: one, or a baseline's last."""
    from traceops.compare.capture import capture_of, read_capture

    if not path.startswith("baseline:"):
        return [read_capture(path, jobs=args.jobs)]
    from traceops.baseline.store import baseline_entries

    like = None if head is None else head.run
    entries = baseline_entries(
        path.removeprefix("baseline:"), args.store, last=args.last, like=like, config=config
    )
    return [capture_of(entry.report(), entry.url) for entry in entries]
