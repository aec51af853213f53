"""`traceops memory`: what a training would need of each GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceops.core.errors import UsageError
from traceops.core.whole_file import write_whole
from traceops.launch.checks import check_script
from traceops.launch.launchers import python_program
from traceops.memory.estimate import Asked, estimate, from_formula, worker
from traceops.memory.gpus import capacity_of, size_of
from traceops.memory.model import MemoryEstimate
from traceops.memory.run_memory import read_run
from traceops.memory.script import AskedScript, estimate_script
from traceops.render.memory import describe_estimate
from traceops.render.memory_snapshot import describe_snapshots
from traceops.render.run_memory import describe_run
from traceops.render.writers.terminal import write_terminal
from traceops.report.write import json_bytes
from traceops.traces.memory_snapshot import read_snapshot
from traceops.train.options import check, config_from, refuse_training_options, with_global_batch


def main(args: argparse.Namespace) -> int:
    """Print the estimate; write it with --json. The exit code is 0 whether it fits or not."""
    words = [word for at, word in enumerate(args.words) if at or word != "--"]
    if words and not is_script(words):
        if args.json:
            raise UsageError("--json is of an estimate; what a snapshot or a run held is only shown")
        return _snapshots([Path(word) for word in words])
    if args.json and not args.json.absolute().parent.is_dir():
        raise UsageError(f"--json {args.json}: there is no folder {args.json.parent}")
    if args.json and args.json.is_dir():
        raise UsageError(f"--json {args.json}: it is a folder; give a file")
    config = replace(config_from(args), device="cuda" if args.device == "auto" else args.device)
    if config.device != "cuda":
        raise UsageError("--device cpu: traceops memory counts the memory of GPUs; leave the option out")
    capacity = size_of(args.capacity) if args.capacity else capacity_of(args.gpu) if args.gpu else None
    if words:
        return _shown(estimate_script(_asked_script(args, words, capacity)), args.json)
    if args.global_batch_size is not None:
        config = with_global_batch(config, args.global_batch_size, args.nproc)
    check(config, args.nproc, "cuda", "nccl")
    asked = Asked(config, args.nproc, capacity, args.gpu)
    if args.params is not None:
        if not 0 < args.params < 1e15:
            raise UsageError(f"--params {args.params}: the number of parameters, such as 8.36e9")
        found = from_formula(args.params, asked)
    else:
        with worker() as helper:
            found = estimate(asked, helper, changes=not args.no_changes)
    return _shown(found, args.json)


def _shown(found: MemoryEstimate, path: Path | None) -> int:
    write_terminal(describe_estimate(found), sys.stdout)
    if path:
        write_whole(path, json_bytes(found))
    return 0


def is_script(words: Sequence[str]) -> bool:
    """Whether `words` name a script to run, and no snapshots."""
    return words[0] == "-m" or words[0].endswith(".py") or python_program(words) != list(words)


def _asked_script(args: argparse.Namespace, words: Sequence[str], capacity: int | None) -> AskedScript:
    """The script that is asked for. Raises UsageError for options that are not of a script."""
    trains = python_program(words)
    check_script(trains)
    refuse_training_options(config_from(args))
    for flag, given in (("--params", args.params), ("--global-batch-size", args.global_batch_size)):
        if given is not None:
            raise UsageError(f"{flag} is for built-in strategies; a script's own options come after its name")
    if not 0 <= args.rank < args.nproc:
        raise UsageError(f"--rank {args.rank}: one of the ranks 0 to {args.nproc - 1} (--nproc)")
    return AskedScript(trains, args.nproc, args.rank, capacity, args.gpu)


def _snapshots(paths: Sequence[Path]) -> int:
    if len(paths) == 1 and paths[0].is_dir():
        write_terminal(describe_run(read_run(paths[0])), sys.stdout)
        return 0
    if len(paths) > 2:
        raise UsageError("traceops memory reads one snapshot, or compares two; a script's name ends with .py")
    for path in paths:
        if path.is_dir():
            raise UsageError(
                f"{path} is a folder: two snapshots are compared, such as rank_0/memory.pickle of each; "
                "traceops compare explains the memory of two runs"
            )
    write_terminal(describe_snapshots([(path.name, read_snapshot(path)) for path in paths]), sys.stdout)
    return 0
