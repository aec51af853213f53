"""The options of `traceops open`."""

from __future__ import annotations

import argparse

HELP = "Show a run's page in the browser, served on this machine alone; over ssh it prints the line to type."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", help="a report folder, a page, a timeline, or profile/NAME, whose report is in reports/NAME")
    add("--port", type=int, default=0, metavar="N", help="port to serve on (a free one)")
    add("--no-browser", action="store_true", help="print the address only")
