"""The options of `traceops doctor`."""

from __future__ import annotations

import argparse

from traceops.cli.options.types import positive
from traceops.core.file_formats import FORMATS

HELP = "Check this machine, test how its GPUs communicate, and find the settings that work."
_FROM = (
    "judge saved files only: nvidia-smi, its -q, -L and topo -m, torch's collect_env, dmesg, nvidia-bug-report.log, "
    "NCCL_DEBUG=INFO logs, NCCL's XML, a doctor.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--from", dest="saved", nargs="+", metavar="FILE", help=_FROM)
    add("-o", "--output", default="reports/doctor", metavar="DIR", help="report folder (%(default)s)")
    add("--format", default=",".join(FORMATS), metavar="LIST", help=f"of {', '.join(FORMATS)} (%(default)s)")
    add("--json", action="store_true", help="print doctor.json, not the report")
    add("--fail-on", choices=("info", "warning", "error"), help="exit 1 on a finding this severe or worse")
    add("-v", "--verbose", action="store_true", help="also show checks that passed")
    add("-q", "--quiet", action="store_true", help="no progress; print the report's path only")
    tests = parser.add_argument_group("tests")
    add = tests.add_argument
    add("--no-tests", dest="tests", action="store_false", help="check only; start no test processes")
    add("--quick", action="store_true", help="test no pairs of GPUs, and only two message sizes")
    add("--gpus", type=_numbers, metavar="LIST", help="test only these GPUs, by nvidia-smi's numbers: 0,1")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="cpu: test gloo (%(default)s)")
    add("--nproc", type=positive, metavar="N", help="ranks on the CPU (2), or GPUs to test (all)")
    add("--budget", type=positive, metavar="S", help="seconds for all tests (165); the first may take longer")
    nodes = parser.add_argument_group(
        "several nodes",
        description="Under torchrun or srun --ntasks-per-node=1 the doctor tests all nodes. To start it by hand:",
    )
    add = nodes.add_argument
    add("--nnodes", type=positive, metavar="N", help="nodes; start the same command on each")
    add("--node-rank", type=int, metavar="N", help="number of this node; 0 on the node at --master-addr")
    add("--master-addr", metavar="HOST", help="address of node 0")
    add("--master-port", type=positive, metavar="PORT", help="a free port there (29500)")


def _numbers(text: str) -> tuple[int, ...]:
    """``0,1`` as numbers. Raises ArgumentTypeError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError("must be numbers separated by commas: 0,1")
    return tuple(int(part) for part in parts)
