"""`traceops demo`: the analysis of a bundled run, and what to type next."""

from __future__ import annotations

import argparse
from pathlib import Path

from traceops.cli import analyze
from traceops.cli.reading_options import ANALYZE
from traceops.core.errors import InputError
from traceops.core.installation import bundled

_NEXT = """
The page: {page}

Next:
  traceops open {report}                          the page in your browser
  traceops view {traces} --around TO-S001   the late step on a timeline
  traceops run -- train.py                             record a training of yours"""


def main(args: argparse.Namespace) -> int:
    """Rank 1 of four loads its data 30 ms late in each step: recorded on four H200."""
    try:
        traces = bundled("demo")
    except InputError:  # in a checkout they lie among the tests
        traces = bundled("tests", "data", "slow_loader4")
    parser = argparse.ArgumentParser()
    ANALYZE.add_to(parser)
    code = analyze.main(
        parser.parse_args([str(traces), "--no-hta", "--output", args.output, *(["-q"] if args.quiet else [])])
    )
    if args.quiet:
        return code
    page = (Path(args.output) / "summary.html").resolve()
    print(_NEXT.format(page=page, report=args.output, traces=traces))
    return code
