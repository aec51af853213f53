"""The options of `traceops diagnose`."""

from __future__ import annotations

import argparse

from traceops.core.file_formats import FORMATS

HELP = "Explain a hang or a crash from dumps, logs and stacks of any job: the rank, the cause, and who waits."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "path",
        help="profile/NAME, its evidence/, a folder or archive of dumps and logs of any job, one of them, or - (stdin)",
    )
    add("-o", "--output", metavar="DIR", help="report folder (reports/NAME: 'profile' in the path becomes 'reports')")
    add("--format", default=",".join(FORMATS), metavar="LIST", help=f"of {', '.join(FORMATS)} (%(default)s)")
    add("--fail-on", choices=("info", "warning", "error"), help="exit 1 on a finding this severe or worse")
    add("-q", "--quiet", action="store_true", help="print the report's path only")
