"""`traceops diagnose`: which rank hangs a job and why, from flight-recorder dumps, logs and stacks."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from traceops.cli.arguments import fails, output_folder, report_formats
from traceops.cli.reading_options import DIAGNOSE
from traceops.core.claims import reason
from traceops.core.errors import InputError, UsageError
from traceops.core.text import printable
from traceops.hangs.diagnose import diagnose
from traceops.hangs.discover import run_folder_of
from traceops.hangs.model import Diagnosis
from traceops.render.files import write_diagnosis
from traceops.render.hang.terminal import print_diagnosis
from traceops.report.hang_text import shows_trouble
from traceops.rules.explained import FABRIC_RULES, beside_the_roots, judge_diagnosis
from traceops.traces.source import is_remote

_RAN_OUT = "TO-E001"
_MOST_PASTED = 1 << 28  # bytes
_MOST_CHECKED = 1 << 26
_ZIP = b"PK\x03\x04"
_CALLED = "standard input"
_PASTE = "paste"  # its report's folder


def diagnose_instead(path: str, error: InputError, *options: str) -> int:
    """Of another command's path: what its logs and stacks show. Raises `error` where they show no trouble."""
    if is_remote(path):
        raise error
    try:
        diagnosis = _with_machine(diagnose(path, jobs=1), path)
    except InputError:
        raise error from None
    if not shows_trouble(diagnosis):
        raise error
    args = _asked(path, *options)
    if not args.quiet:
        print(printable(reason("hangs", "instead", path=path)), file=sys.stderr)
    return _write(args, path, diagnosis)


def show_ran_out(path: str, *options: str) -> None:
    """The diagnosis of a folder's logs, where they say that a GPU's memory ran out."""
    try:
        diagnosis = diagnose(path, jobs=1)
    except InputError:
        return
    if any(root.rule == _RAN_OUT for root in diagnosis.roots):
        _write(_asked(path, *options), path, diagnosis)


def _asked(path: str, *options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    DIAGNOSE.add_to(parser)
    return parser.parse_args([path, *options])


def main(args: argparse.Namespace) -> int:
    report_formats(args.format)  # before anything is read
    if args.path == "-":
        with tempfile.TemporaryDirectory() as folder:
            data = sys.stdin.buffer.read(_MOST_PASTED)
            paste = Path(folder, "paste.zip" if data.startswith(_ZIP) else "paste.log")
            paste.write_bytes(data)
            return _report(args, str(paste))
    return _report(args, args.path)


def _report(args: argparse.Namespace, path: str) -> int:
    called = _CALLED if args.path == "-" else None
    return _write(args, path, _with_machine(diagnose(path, called=called), path))


def _write(args: argparse.Namespace, path: str, diagnosis: Diagnosis) -> int:
    pasted = args.path == "-"
    verdicts = judge_diagnosis(diagnosis)
    run_folder = _PASTE if pasted else str(run_folder_of(Path(path)))
    name = _PASTE if pasted else diagnosis.evidence.name
    folder = Path(args.output) if args.output else output_folder(run_folder, name)
    written = write_diagnosis(diagnosis, verdicts, folder, report_formats(args.format))
    if args.quiet:
        print(printable(str(written[0])))
    else:
        beside = [*diagnosis.machine, *beside_the_roots(diagnosis, verdicts)]
        print_diagnosis(diagnosis, sys.stdout, written[0], beside, verbose=args.verbose)
    found = [finding for verdict in verdicts for finding in verdict.findings]
    return fails([*diagnosis.machine, *found], args.fail_on)


def _with_machine(diagnosis: Diagnosis, path: str) -> Diagnosis:
    """The diagnosis with what `traceops doctor --from` finds wrong with machines in the same text, if no rank fails."""
    if diagnosis.roots:
        return diagnosis
    files = [Path(path)] if Path(path).is_file() else [one for one in Path(path).rglob("*") if one.is_file()]
    if sum(one.stat().st_size for one in files) > _MOST_CHECKED:
        return diagnosis
    from traceops.doctor.checkup import check_files

    try:
        checkup = check_files([path])
    except (InputError, UsageError):
        return diagnosis
    found = [one for one in checkup.findings if one.severity != "info" and one.rule not in FABRIC_RULES]
    return replace(diagnosis, machine=tuple(found))
