"""`traceops diagnose`: which rank hangs a job and why, from flight-recorder dumps, logs and stacks."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from traceops.cli.arguments import fails, output_folder, report_formats
from traceops.core.text import printable
from traceops.hangs.diagnose import diagnose
from traceops.hangs.discover import run_folder_of
from traceops.render import write_diagnosis
from traceops.render.hang.terminal import print_diagnosis
from traceops.rules.diagnosis import beside_the_roots, judge_diagnosis

_MOST_PASTED = 1 << 28  # bytes
_ZIP = b"PK\x03\x04"
_CALLED = "standard input"
_PASTE = "paste"  # its report's folder


def main(args: argparse.Namespace) -> int:
    formats = report_formats(args.format)

    if args.path == "-":
        with tempfile.TemporaryDirectory() as folder:
            data = sys.stdin.buffer.read(_MOST_PASTED)
            paste = Path(folder, "paste.zip" if data.startswith(_ZIP) else "paste.log")
            paste.write_bytes(data)
            return _report(args, str(paste), formats)
    return _report(args, args.path, formats)


def _report(args: argparse.Namespace, path: str, formats: tuple[str, ...]) -> int:
    pasted = args.path == "-"
    diagnosis = diagnose(path, called=_CALLED if pasted else None)
    verdicts = judge_diagnosis(diagnosis)
    # of its evidence too: one place for both reports
    run_folder = _PASTE if pasted else str(run_folder_of(Path(path)))
    name = _PASTE if pasted else diagnosis.evidence.name
    folder = Path(args.output) if args.output else output_folder(run_folder, name)
    written = write_diagnosis(diagnosis, verdicts, folder, formats)
    if args.quiet:
        print(printable(str(written[0])))
    else:
        print_diagnosis(diagnosis, sys.stdout, written[0], beside_the_roots(diagnosis, verdicts))
    return fails([finding for verdict in verdicts for finding in verdict.findings], args.fail_on)
