"""`traceops memory`: what a training would need of each GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceops.core.errors import UsageError
from traceops.core.whole_file import write_whole
from traceops.memory.estimate import Asked, estimate, from_formula, worker
from traceops.memory.gpus import capacity_of, size_of
from traceops.memory.run_memory import read_run
from traceops.render.memory import describe_estimate
from traceops.render.memory_snapshot import describe_snapshots
from traceops.render.run_memory import describe_run
from traceops.render.writers.terminal import write_terminal
from traceops.report.write import json_bytes
from traceops.traces.memory_snapshot import read_snapshot
from traceops.train.options import check, config_from


def main(args: argparse.Namespace) -> int:
    """Print the estimate; write it with --json. The exit code is 0 whether it fits or not."""
    if args.snapshots:
        return _snapshots(args.snapshots)
    config = replace(config_from(args), device="cuda" if args.device == "auto" else args.device)
    if config.device != "cuda":
        raise UsageError("--device cpu: traceops memory counts the memory of GPUs; leave the option out")
    capacity = size_of(args.capacity) if args.capacity else capacity_of(args.gpu) if args.gpu else None
    check(config, args.nproc, "cuda", "nccl")
    asked = Asked(config, args.nproc, capacity, args.gpu)
    if args.params is not None:
        if not 0 < args.params < 1e15:
            raise UsageError(f"--params {args.params}: the number of parameters, such as 8.36e9")
        found = from_formula(args.params, asked)
    else:
        with worker() as helper:
            found = estimate(asked, helper, changes=not args.no_changes)
    write_terminal(describe_estimate(found), sys.stdout)
    if args.json:
        write_whole(args.json, json_bytes(found))
    return 0


def _snapshots(paths: Sequence[Path]) -> int:
    if len(paths) == 1 and paths[0].is_dir():
        write_terminal(describe_run(read_run(paths[0])), sys.stdout)
        return 0
    if len(paths) > 2:
        raise UsageError("traceops memory reads one snapshot, or compares two")
    write_terminal(describe_snapshots([(path.name, read_snapshot(path)) for path in paths]), sys.stdout)
    return 0
