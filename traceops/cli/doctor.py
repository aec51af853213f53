"""`traceops doctor`: look at this machine, test how its GPUs talk, and find the settings that work."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from traceops.cli.arguments import make_writable, reach, report_formats
from traceops.core.claims import Wording
from traceops.core.documents import json_text, redact_fields
from traceops.core.errors import InputError, UsageError
from traceops.core.files import read_regular
from traceops.core.findings import Severity
from traceops.core.text import json_for, printable
from traceops.core.torch_here import require_torch
from traceops.doctor.checkup import BUDGET_S, Options, check_files, check_up
from traceops.doctor.document import document_of, read_checkup
from traceops.doctor.model import BAD, Checkup
from traceops.doctor.nodes import NodeIdentity, count_told, find_identity, meet
from traceops.machine.cluster import cluster_here, read_cluster
from traceops.memory.gpus import hardware_of
from traceops.render.doctor.terminal import print_cluster, print_doctor

_text = Wording("cli", "doctor")
_LOGS = "doctor_logs"
_MOST_DIAGNOSED = 8  # files


def main(args: argparse.Namespace) -> int:
    """Returns 0, or what --fail-on asks for. Raises UsageError and InputError before anything is tested."""
    if args.cluster:
        _refuse_tests(args)
        return _show_cluster(args)
    formats = report_formats(args.format)
    if args.saved:
        _refuse_tests(args)
        return _judge_files(args, formats)
    if args.compute:
        require_torch("doctor --compute")
        from traceops.doctor.attain import keep_rates, lines_of  # imports torch

        for line in lines_of(*keep_rates()):
            print(printable(line))
        return 0
    identity = find_identity(os.environ, args.nnodes, args.node_rank, args.master_addr, args.master_port)
    if identity is None:
        # In a terminal it is a variable that a job left behind; in a job each process would say it.
        if sys.stderr.isatty():
            print(_text("another"), file=sys.stderr)
        return 0
    return _check_up(args, formats, identity)


def _check_up(args: argparse.Namespace, formats: tuple[str, ...], identity: NodeIdentity) -> int:
    if identity.nodes > 1:
        require_torch()
    folder = Path(args.output)
    logs = folder / _LOGS
    if identity.node == 0:
        make_writable(folder)
        shutil.rmtree(logs, ignore_errors=True)  # an earlier checkup's would be taken for this one's
    options = Options(args.device, args.gpus, args.nproc, args.quick, args.tests, args.budget or BUDGET_S)

    def report(text: str) -> None:
        if identity.node == 0 and not args.quiet:
            print(printable(f"doctor: {text}"), file=sys.stderr, flush=True)

    if identity.nodes > 1:
        report(_text("waits", nodes=identity.nodes - 1))
    elif (of_job := count_told(os.environ, "SLURM_JOB_NUM_NODES")) > 1 and args.nnodes is None:
        report(_text("one_node", nodes=of_job))
    # As Ctrl-C does: scancel and timeout would leave the folders of running tests behind.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    nodes = meet(identity)
    try:
        checkup = check_up(options, os.environ, nodes, report=report, logs=logs if identity.node == 0 else None)
    finally:
        nodes.end()
        signal.signal(signal.SIGTERM, before)
    if nodes.leads:
        _report(checkup, folder, formats, args)
    return _exit_code(checkup, args.fail_on)


def _show_cluster(args: argparse.Namespace) -> int:
    """What the partitions have, by Slurm or Kubernetes, or by their saved output. Raises InputError without any."""
    problems: list[str] = []
    if args.saved:
        kinds = [
            kind for path in args.saved for kind in read_cluster(read_regular(Path(path)).decode(errors="replace"))
        ]
    else:
        kinds, problems = cluster_here()
    if not kinds:
        raise InputError("\n".join((_text("no_cluster", saved=bool(args.saved)), *(f"  {one}" for one in problems))))
    kinds = [replace(kind, gpu_memory=kind.gpu_memory or _memory_of(kind.gpu)) for kind in kinds]
    if args.json:
        print(json_for(sys.stdout, json_text(to_builtins(kinds))), end="")
        return 0
    print_cluster(kinds, sys.stdout)
    return 0


def _memory_of(gpu: str) -> int | None:
    """Of a GPU by its name, where that is enough: an A100 has 40 or 80 GB."""
    try:
        return hardware_of(gpu).capacity if gpu else None
    except UsageError:
        return None


def _judge_files(args: argparse.Namespace, formats: tuple[str, ...]) -> int:
    checkup = read_checkup(args.saved[0]) if len(args.saved) == 1 else None
    failures: dict[str, str] = {}
    if checkup is None:
        failures = _failures(args.saved)
        try:
            checkup = check_files(args.saved)
        except InputError as error:
            others = [path for path in args.saved if path not in failures]
            if not others and len(args.saved) == 1:
                from traceops.cli.diagnose import diagnose_instead

                return diagnose_instead(args.saved[0], error, *(["-q"] if args.quiet else []))
            if not others or not failures:
                raise InputError("\n".join((str(error), *failures.values()))) from error
            checkup = check_files(others)  # what shows a failure need not tell of the machine too
    for said in () if args.json or args.quiet else failures.values():
        print(printable(said))
    # traceops run --settings reads the doctor.json of tests: another folder where there is one.
    folder = Path(args.output)
    measured = read_checkup(str(folder / "doctor.json")) if (folder / "doctor.json").is_file() else None
    if measured is not None and measured.trials:
        folder = folder.with_name(f"{folder.name}-from-files")
    make_writable(folder)
    _report(checkup, folder, formats, args)
    return _exit_code(checkup, args.fail_on)


def _failures(paths: Sequence[str]) -> dict[str, str]:
    """What `traceops diagnose` finds in the same files: a line for each that shows a failure or a wait."""
    from traceops.hangs.diagnose import diagnose  # a test of this machine needs none of it
    from traceops.report.hang_text import hang_sentence, shows_trouble

    found = {}
    for path in paths[:_MOST_DIAGNOSED]:
        with contextlib.suppress(InputError):
            diagnosis = diagnose(path, jobs=1)
            if shows_trouble(diagnosis):
                found[path] = f"traceops diagnose {path}: {hang_sentence(diagnosis)}"
    return found


def _report(checkup: Checkup, folder: Path, formats: tuple[str, ...], args: argparse.Namespace) -> None:
    checkup = redact_fields(checkup, "looks", "trials", "findings", "checks", "problems")
    from traceops.render.doctor.html import write_doctor  # not before the tests have run

    written = write_doctor(checkup, folder, formats)
    if args.json:
        print(json_for(sys.stdout, json_text(document_of(checkup))), end="")
    elif args.quiet:
        print(printable(str(written[0])))
    else:
        print_doctor(checkup, sys.stdout, written, verbose=args.verbose)


def _exit_code(checkup: Checkup, fail_on: Severity | None) -> int:
    """1 where a finding, a line of the table or a test with the environment as it is reaches that severity."""
    names: dict[str, Severity] = {"note": "info", "warning": "warning", "error": "error"}
    found = [finding.severity for finding in checkup.findings]
    found += [names[look.level] for look in checkup.looks if look.level in names]
    found += ["error" for trial in checkup.trials if trial.as_it_is and trial.outcome in BAD]
    return reach(found, fail_on)


def _refuse_tests(args: argparse.Namespace) -> None:
    given = {
        "--gpus": args.gpus, "--nproc": args.nproc, "--budget": args.budget, "--nnodes": args.nnodes,
        "--compute": args.compute or None, "--quick": args.quick or None,
        "--device": None if args.device == "auto" else args.device,
    }  # fmt: skip
    if wrong := [name for name, value in given.items() if value is not None]:
        raise UsageError(f"{wrong[0]}: --from only reads files and tests nothing; leave one of the two out")
