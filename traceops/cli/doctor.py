"""`traceops doctor`: look at this machine, test how its GPUs talk, and find the settings that work."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from traceops.cli.arguments import make_writable, positive, reach, report_formats
from traceops.core.errors import UsageError

if TYPE_CHECKING:
    from traceops.core.findings import Severity
    from traceops.doctor.model import Checkup
    from traceops.doctor.nodes import NodeIdentity

HELP = "Look at this machine and test how its GPUs talk; find the settings that work."
_FROM = "judge saved files only: nvidia-smi topo -m, NCCL_DEBUG=INFO logs, NCCL's XML, a doctor.json"
_LOGS = "doctor_logs"
_ANOTHER = (
    "doctor: nothing done: LOCAL_RANK or SLURM_LOCALID says that another process tests this node; unset it"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--from", dest="saved", nargs="+", metavar="FILE", help=_FROM)
    add("-o", "--output", default="reports/doctor", metavar="DIR", help="report folder (%(default)s)")
    add("--format", default="html,csv,json", metavar="LIST", help="of html, csv, json (%(default)s)")
    add("--json", action="store_true", help="print doctor.json, not the report")
    add("--fail-on", choices=("info", "warning", "error"), help="exit 1 on anything this severe")
    add("-v", "--verbose", action="store_true", help="show also what is all right")
    add("-q", "--quiet", action="store_true", help="no progress; print the report's path only")
    tests = parser.add_argument_group("tests")
    add = tests.add_argument
    add("--no-tests", dest="tests", action="store_false", help="look only, start no processes")
    add("--quick", action="store_true", help="no pairs, two sizes")
    add("--gpus", type=_numbers, metavar="LIST", help="of these GPUs only, as nvidia-smi counts: 0,1")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="cpu tests gloo (%(default)s)")
    add("--nproc", type=positive, metavar="N", help="ranks on the CPU (2), or GPUs to test (all)")
    add("--budget", type=positive, metavar="S", help="seconds for all tests (165); the first may take longer")
    nodes = parser.add_argument_group(
        "several nodes",
        description="Under torchrun or srun --ntasks-per-node=1 all nodes are tested; by hand:",
    )
    add = nodes.add_argument
    add("--nnodes", type=positive, metavar="N", help="nodes; start the same command on each")
    add("--node-rank", type=int, metavar="N", help="of this node, 0 on the one at --master-addr")
    add("--master-addr", metavar="HOST", help="node 0")
    add("--master-port", type=positive, metavar="PORT", help="a free port there (29500)")


def main(args: argparse.Namespace) -> int:
    """Returns 0, or what --fail-on asks for. Raises UsageError and InputError before anything is tested."""
    formats = report_formats(args.format)
    if args.saved:
        _refuse_tests(args)
        return _judge_files(args, formats)
    from traceops.doctor.nodes import find_identity

    identity = find_identity(os.environ, args.nnodes, args.node_rank, args.master_addr, args.master_port)
    if identity is None:
        # In a terminal it is a variable that a job left behind; in a job each process would say it.
        if sys.stderr.isatty():
            print(_ANOTHER, file=sys.stderr)
        return 0
    return _check_up(args, formats, identity)


def _check_up(args: argparse.Namespace, formats: tuple[str, ...], identity: NodeIdentity) -> int:
    from traceops.doctor.checkup import BUDGET_S, Options, check_up
    from traceops.doctor.nodes import meet, nodes_of_job

    if identity.nodes > 1:
        from traceops.launch.checks import require_torch

        require_torch()
    folder = Path(args.output)
    logs = folder / _LOGS
    if identity.node == 0:
        make_writable(folder)
        shutil.rmtree(logs, ignore_errors=True)  # an earlier checkup's would be taken for this one's
    options = Options(args.device, args.gpus, args.nproc, args.quick, args.tests, args.budget or BUDGET_S)
    tells = identity.node == 0 and not args.quiet

    def tell(text: str) -> None:
        if tells:
            print(f"doctor: {text}", file=sys.stderr, flush=True)

    if identity.nodes > 1:
        tell(f"waiting for {identity.nodes - 1} other node{'s' if identity.nodes > 2 else ''}")
    elif (of_job := nodes_of_job(os.environ)) > 1 and args.nnodes is None:
        tell(
            f"this Slurm job has {of_job} nodes, and only this one is looked at; all: "
            "srun --ntasks-per-node=1 traceops doctor"
        )
    # As Ctrl-C does: scancel and timeout would leave the folders of running tests behind.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    nodes = meet(identity)
    try:
        checkup = check_up(options, os.environ, nodes, tell=tell, logs=logs if identity.node == 0 else None)
    finally:
        nodes.end()
        signal.signal(signal.SIGTERM, before)
    if nodes.leads:
        _report(checkup, folder, formats, args)
    return _exit_code(checkup, args.fail_on)


def _judge_files(args: argparse.Namespace, formats: tuple[str, ...]) -> int:
    from traceops.doctor.saved import read_checkup

    checkup = read_checkup(args.saved[0]) if len(args.saved) == 1 else None
    if checkup is None:
        from traceops.doctor.checkup import judge_saved
        from traceops.fabric.discover import named_fabric
        from traceops.rules.fabric import judge_fabric

        fabric = named_fabric(args.saved)
        checkup = judge_saved(fabric, judge_fabric(fabric))
    folder = Path(args.output)
    make_writable(folder)
    _report(checkup, folder, formats, args)
    return _exit_code(checkup, args.fail_on)


def _report(checkup: Checkup, folder: Path, formats: tuple[str, ...], args: argparse.Namespace) -> None:
    from traceops.render.doctor.files import write_doctor

    written = write_doctor(checkup, folder, formats)
    if args.json:
        import json

        from traceops.render.doctor.json import doctor_document

        print(json.dumps(doctor_document(checkup), indent=1))
    elif args.quiet:
        print(written[0])
    else:
        from traceops.render.doctor.terminal import print_doctor

        print_doctor(checkup, sys.stdout, written, verbose=args.verbose)


def _exit_code(checkup: Checkup, fail_on: Severity | None) -> int:
    """1 where a finding, a line of the table or a test with the environment as it is reaches that severity."""
    from traceops.doctor.model import BAD

    names: dict[str, Severity] = {"note": "info", "warning": "warning", "error": "error"}
    found = [finding.severity for finding in checkup.findings]
    found += [names[look.level] for look in checkup.looks if look.level in names]
    found += ["error" for trial in checkup.trials if trial.as_it_is and trial.outcome in BAD]
    return reach(found, fail_on)


def _refuse_tests(args: argparse.Namespace) -> None:
    given = {
        "--gpus": args.gpus, "--nproc": args.nproc, "--budget": args.budget, "--nnodes": args.nnodes,
        "--quick": args.quick or None, "--device": None if args.device == "auto" else args.device,
    }  # fmt: skip
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise UsageError(f"{wrong[0]}: --from reads files and tests nothing; leave one of the two out")


def _numbers(text: str) -> tuple[int, ...]:
    """``0,1`` as numbers. Raises ArgumentTypeError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError("must be numbers separated by commas: 0,1")
    return tuple(int(part) for part in parts)
