"""`traceops diagnose`: which rank hangs a job and why, from flight-recorder dumps, logs and stacks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from traceops.errors import UsageError

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
    formats = tuple(part.strip() for part in args.format.split(",") if part.strip())
    if not formats or not set(formats) <= {"html", "csv", "json"}:
        raise UsageError(f"--format takes html, csv and json, separated by commas, not {args.format!r}")
    from traceops.cli.analyze import output_folder
    from traceops.hangs.diagnose import diagnose
    from traceops.hangs.judge import judge_hang
    from traceops.model import SEVERITIES
    from traceops.report import write_diagnosis
    from traceops.report.hang_terminal import print_diagnosis

    diagnosis = diagnose(args.path)
    verdicts = judge_hang(diagnosis)
    folder = (
        Path(args.output) if args.output else output_folder(_run_folder(args.path), diagnosis.evidence.name)
    )
    written = write_diagnosis(diagnosis, verdicts, folder, formats)
    if args.quiet:
        print(written[0])
    else:
        print_diagnosis(diagnosis, sys.stdout, written[0])
    if args.fail_on is None:
        return 0
    bound = SEVERITIES.index(args.fail_on)
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    return int(any(SEVERITIES.index(finding.severity) >= bound for finding in findings))


def _run_folder(path: str) -> str:
    """A run folder for its evidence folder too, so that both are reported on in the same place."""
    folder = Path(path)
    return (
        str(folder.parent) if folder.name == "evidence" and (folder.parent / "run.json").is_file() else path
    )
