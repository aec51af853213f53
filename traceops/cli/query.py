"""`traceops query`: SQL over a timeline, by Perfetto's trace processor; prints its CSV."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from traceops.core.errors import FileError
from traceops.pipeline.analyze import find_traces
from traceops.timeline.choose import FILE_NAME
from traceops.timeline.reader import find_processor, is_timeline, run_query
from traceops.timeline.write import write_timeline


def main(args: argparse.Namespace) -> int:
    timeline = Path(args.path) if is_timeline(args.path) else None
    if timeline is not None and not timeline.is_file():
        raise FileError(timeline, "is no file; traceops view writes timelines")
    found = find_traces(args.path) if timeline is None else None
    processor = find_processor()  # before the work, not after it
    if timeline is not None or found is None:
        sys.stdout.write(run_query(processor, Path(args.path), args.sql))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / FILE_NAME.removesuffix(".gz")
        write_timeline(
            found, found.latest, output, ranks=args.ranks, steps=args.steps, jobs=args.jobs, around=args.around
        )
        sys.stdout.write(run_query(processor, output, args.sql))
    return 0
