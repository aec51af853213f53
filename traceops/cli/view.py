"""`traceops view`: all ranks of a run on one aligned timeline, as a file that ui.perfetto.dev opens."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from traceops.cli.arguments import output_folder, run_of
from traceops.core.claims import Wording
from traceops.core.text import printable
from traceops.pipeline.analyze import find_traces
from traceops.pipeline.mapping.ranks import ProgressLine
from traceops.render.printer import say
from traceops.timeline.choose import file_name
from traceops.timeline.write import LARGE_BYTES, Expected, write_timeline

_text = Wording("cli", "view")


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
    counts = {"events": timeline.events, "ranks": len(timeline.ranks), "added": timeline.added}
    ms = f"{timeline.duration_ns / 1e6:,.1f}"
    say(_text("written", path=str(timeline.path), size=timeline.size_bytes, ms=ms, **counts))
    for note in timeline.notes:
        say(f"  {note}", hanging=4)
    same, of_others = found.left_out(found.latest)
    if same:
        say("  " + _text("same", windows=same + 1))
    if of_others:
        say("  " + _text("of_others", windows=of_others))
    say(_text("open"))
    return 0


def _say(expected: Expected, quiet: bool) -> None:
    """How large the file will be, before it is written; how to make it smaller, where it is large."""
    size = _text("expected", size=expected.size_bytes, ranks=expected.ranks, steps=expected.steps)
    if expected.size_bytes >= LARGE_BYTES:
        print(_text("large", expected=size), file=sys.stderr)
    elif not quiet:
        say(f"Writing {size}.")
