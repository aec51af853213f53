"""The options of `traceops doctor`."""

from __future__ import annotations

import argparse

from traceops.cli.options.types import positive

HELP = "Look at this machine and test how its GPUs talk; find the settings that work."
_FROM = "judge saved files only: nvidia-smi topo -m, NCCL_DEBUG=INFO logs, NCCL's XML, a doctor.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--from", dest="saved", nargs="+", metavar="FILE", help=_FROM)
    add("-o", "--output", default="reports/doctor", metavar="DIR", help="report folder (%(default)s)")
    add("--format", default="html,csv,json", metavar="LIST", help="of html, csv, json (%(default)s)")
    add("--json", action="store_true", help="print doctor.json, not the report")
    add("--fail-on", choices=("info", "warning", "error"), help="exit 1 on anything this severe")
    add("-v", "--verbose", action="store_true", help="also show what is all right")
    add("-q", "--quiet", action="store_true", help="no progress; print the report's path only")
    tests = parser.add_argument_group("tests")
    add = tests.add_argument
    add("--no-tests", dest="tests", action="store_false", help="look only, start no processes")
    add("--quick", action="store_true", help="test no pairs of GPUs, and two sizes only")
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


def _numbers(text: str) -> tuple[int, ...]:
    """``0,1`` as numbers. Raises ArgumentTypeError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError("must be numbers separated by commas: 0,1")
    return tuple(int(part) for part in parts)
