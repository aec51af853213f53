"""The options of `traceops compare`."""

from __future__ import annotations

import argparse

from traceops.cli.options.types import positive

HELP = "Say whether head is slower than base, how certain that is, and why; exit 1 on a regression."
_EPILOG = """BASE and HEAD: run folders, folders with traces, report.json files, or baseline:NAME.
A single folder: the one that `traceops run --repeat N --against REF` made.

exit codes: 0 no regression, 1 a regression, 2 wrong usage or not comparable, 3 unreadable input,
4 inconclusive (with --strict)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("paths", nargs="*", metavar="BASE HEAD", help="one capture a side")
    add("--base", nargs="+", metavar="PATH", default=[], help="several captures of base")
    add("--head", nargs="+", metavar="PATH", default=[], help="several captures of head")
    add(
        "--threshold",
        action="append",
        metavar="METRIC=PCT",
        default=[],
        help="fail if this metric gets worse by more than this; a number alone is for the step time; METRIC=off "
        "removes a metric from the gate; repeatable",
    )
    add("--config", metavar="FILE", help="settings (traceops.toml, or [tool.traceops] in pyproject.toml)")
    add("--store", metavar="DIR|URL", help="store in which to look up baseline:NAME (as for traceops baseline)")
    add("--last", type=positive, default=5, metavar="N", help="latest captures of baseline:NAME to use (%(default)s)")
    add("--force", action="store_true", help="compare even what is not comparable")
    add("--strict", action="store_true", help="exit 4 if the result is inconclusive")
    add("-o", "--output", metavar="DIR", help="folder for the files (reports/NAME of head)")
    add("--format", default="html,md,json", metavar="LIST", help="of html, md, json, junit, sarif, csv (%(default)s)")
    add(
        "--plotlyjs",
        choices=("none", "inline", "cdn"),
        default="none",
        help="zoom in charts: inline adds 1.5 MB, cdn needs the network (%(default)s)",
    )
    add("--name", default="", help="name of this comparison, for a pull request with several")
    add("--jobs", type=positive, metavar="N", help="processes to read traces with (one a core)")
    add("-q", "--quiet", action="store_true", help="print the verdict's sentence only")
