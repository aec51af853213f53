"""`traceops diagnose`: which rank hangs a job and why, from flight-recorder dumps, logs and stacks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from traceops.cli.arguments import fails, output_folder, report_formats
from traceops.core.plain_text import printable
from traceops.hangs.diagnose import diagnose
from traceops.hangs.discover import run_folder_of
from traceops.render import write_diagnosis
from traceops.render.hang.terminal import print_diagnosis
from traceops.rules.diagnosis import beside_the_roots, judge_diagnosis


def main(args: argparse.Namespace) -> int:
    formats = report_formats(args.format)

    diagnosis = diagnose(args.path)
    verdicts = judge_diagnosis(diagnosis)
    run_folder = str(run_folder_of(Path(args.path)))  # of its evidence too: one place for both reports
    folder = Path(args.output) if args.output else output_folder(run_folder, diagnosis.evidence.name)
    written = write_diagnosis(diagnosis, verdicts, folder, formats)
    if args.quiet:
        print(printable(str(written[0])))
    else:
        print_diagnosis(diagnosis, sys.stdout, written[0], beside_the_roots(diagnosis, verdicts))
    return fails([finding for verdict in verdicts for finding in verdict.findings], args.fail_on)
