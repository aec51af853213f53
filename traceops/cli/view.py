"""`traceops view`: all ranks of a run on one aligned timeline, as a file that ui.perfetto.dev opens."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from traceops.cli.arguments import positive

HELP = "Write all ranks as one aligned timeline for ui.perfetto.dev."

_MOST_NUMBERS = 1_000_000  # in a list such as 0-3: more is a slip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", help="profile/NAME, any folder with traces of ranks, one .json or .json.gz trace, or s3://…")
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="file to write, gzipped if its name ends in .gz (reports/NAME/timeline.json.gz)",
    )
    add("--ranks", type=_numbers, metavar="LIST", help="ranks to show, such as 0,2-3 (all)")
    add("--steps", type=_numbers, metavar="LIST", help="steps to show, such as 4-5 (all)")
    add("--jobs", type=positive, metavar="N", help="processes to read traces with (one a core)")
    add("-q", "--quiet", action="store_true", help="print the file's path only")


def main(args: argparse.Namespace) -> int:
    from traceops.cli.analyze import output_folder
    from traceops.pipeline.mapping.progress import ProgressLine
    from traceops.timeline.write import FILE_NAME, write_timeline
    from traceops.traces.discover import discover

    found = discover(args.path)
    output = Path(args.output) if args.output else output_folder(args.path, found.name) / FILE_NAME
    with ProgressLine(sys.stderr, enabled=not args.quiet) as progress:
        timeline = write_timeline(
            found,
            found.windows[-1],
            output,
            ranks=args.ranks,
            steps=args.steps,
            jobs=args.jobs,
            progress=progress,
        )
    for path, problem in timeline.problems:
        print(f"traceops view: {path}: {problem}", file=sys.stderr)
    if args.quiet:
        print(timeline.path)
        return 0
    ranks = len(timeline.ranks)
    print(
        f"{timeline.path}: {timeline.size_bytes / 1e6:.1f} MB, {timeline.events:,} events of {ranks} "
        f"rank{'s' if ranks != 1 else ''} over {timeline.duration_ns / 1e6:,.1f} ms, {timeline.added:,} added"
    )
    for note in timeline.notes:
        print(f"  {note}")
    if len(found.windows) > 1:
        print(f"  the last of {len(found.windows)} capture windows; for another give the path of its trace")
    print("Open it in a browser: ui.perfetto.dev, Open trace file. The file stays on this machine.")
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    """`0,2-3` as (0, 2, 3)."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or len(numbers) + last - first >= _MOST_NUMBERS:
            raise argparse.ArgumentTypeError(f"takes numbers and ranges such as 0,2-3, not {text!r}")
        numbers |= set(range(first, last + 1))
    return tuple(sorted(numbers))
