"""The options of `traceops diagnose`."""

from __future__ import annotations

import argparse

HELP = "Explain a hang: which rank, in what, and who waits; from dumps, logs and stacks of any job."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "path",
        help="profile/NAME, its evidence, a folder of dumps and logs of any job, one dump or log, or - (a paste)",
    )
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="report folder (reports/NAME: 'profile' in the path becomes 'reports')",
    )
    add("--format", default="html,csv,json", metavar="LIST", help="of html, csv, json (%(default)s)")
    add("--fail-on", choices=("info", "warning", "error"), help="exit 1 on a finding this severe")
    add("-q", "--quiet", action="store_true", help="print the report's path only")
