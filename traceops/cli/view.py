"""`traceops view`: all ranks of a run on one aligned timeline, as a file that ui.perfetto.dev opens."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from traceops.cli.arguments import output_folder, run_of
from traceops.core.text import printable
from traceops.core.units import size_text
from traceops.pipeline.analyze import find_traces
from traceops.pipeline.mapping.ranks import ProgressLine
from traceops.render.printer import say
from traceops.timeline.choose import file_name
from traceops.timeline.write import LARGE_BYTES, Expected, write_timeline


def main(args: argparse.Namespace) -> int:
    args.path = run_of(args.path)
    found = find_traces(args.path)
    name = file_name(args.around, args.ranks, args.steps)
    output = Path(args.output) if args.output else output_folder(args.path, found.name) / name
    with ProgressLine(sys.stderr, enabled=not args.quiet) as progress:
        timeline = write_timeline(
            found,
            found.latest,
            output,
            ranks=args.ranks,
            steps=args.steps,
            jobs=args.jobs,
            progress=progress,
            around=args.around,
            announce=lambda expected: _say(expected, args.quiet),
        )
    for path, problem in timeline.problems:
        print(printable(f"traceops view: {path}: {problem}"), file=sys.stderr)
    if args.quiet:
        print(printable(str(timeline.path)))
        return 0
    ranks = len(timeline.ranks)
    say(
        f"{timeline.path}: {size_text(timeline.size_bytes)}, {timeline.events:,} events of {ranks} "
        f"rank{'s' if ranks != 1 else ''} over {timeline.duration_ns / 1e6:,.1f} ms, {timeline.added:,} added"
    )
    for note in timeline.notes:
        say(f"  {note}", hanging=4)
    same, of_others = found.left_out(found.latest)
    if same:
        say(f"  one of {same + 1} capture windows; for another give the path of that window's trace")
    if of_others:
        say(f"  {of_others} capture window{'s' if of_others > 1 else ''} of other jobs left out")
    say("Open it in a browser: ui.perfetto.dev, Open trace file. The file stays on this machine.")
    return 0


def _say(expected: Expected, quiet: bool) -> None:
    """How large the file will be, before it is written; how to make it smaller, where it is large."""
    ranks = f"{expected.ranks} rank{'s' if expected.ranks != 1 else ''}"
    steps = "all steps" if expected.steps is None else f"{expected.steps} step{'s' if expected.steps != 1 else ''}"
    line = f"about {size_text(expected.size_bytes)} for {ranks}, {steps}"
    if expected.size_bytes >= LARGE_BYTES:
        print(
            f"traceops view: {line}; the browser needs several times that in memory. Less: --around FINDING, "
            "--steps LIST or --ranks LIST",
            file=sys.stderr,
        )
    elif not quiet:
        say(f"Writing {line}.")
