"""`traceops diagnose`: which rank hangs a job and why, from flight-recorder dumps, logs and stacks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from traceops.cli.arguments import fails, report_formats

HELP = "Explain a hang: which rank, in what, and who waits; from dumps, logs and stacks of any job."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", help="profile/NAME, its evidence, a folder of dumps and logs of any job, or one dump or log")
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="report folder (reports/NAME: 'profile' in the path becomes 'reports')",
    )
    add("--format", default="html,csv,json", metavar="LIST", help="of html, csv, json (%(default)s)")
    add("--fail-on", choices=("info", "warning", "error"), help="exit 1 on a finding this severe")
    add("-q", "--quiet", action="store_true", help="print the report's path only")


def main(args: argparse.Namespace) -> int:
    formats = report_formats(args.format)
    from traceops.cli.analyze import output_folder
    from traceops.hangs.diagnose import diagnose
    from traceops.hangs.discover import run_folder_of
    from traceops.render import write_diagnosis
    from traceops.render.hang.terminal import print_diagnosis
    from traceops.rules.hangs import judge_hang

    diagnosis = diagnose(args.path)
    verdicts = judge_hang(diagnosis)
    run_folder = str(run_folder_of(Path(args.path)))  # of its evidence too: one place for both reports
    folder = Path(args.output) if args.output else output_folder(run_folder, diagnosis.evidence.name)
    written = write_diagnosis(diagnosis, verdicts, folder, formats)
    if args.quiet:
        print(written[0])
    else:
        print_diagnosis(diagnosis, sys.stdout, written[0])
    return fails([finding for verdict in verdicts for finding in verdict.findings], args.fail_on)
