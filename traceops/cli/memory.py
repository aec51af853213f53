"""`traceops memory`: what a training would need of each GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceops.cli.command_words import names_a_program, understand
from traceops.core.claims import Wording
from traceops.core.documents import json_bytes
from traceops.core.errors import InputError, UsageError
from traceops.core.files import write_whole
from traceops.launch.launchers import check_script
from traceops.memory.estimate import AskedScript, EstimateRequest, estimate, estimate_script, from_formula, worker
from traceops.memory.gpus import hardware_of
from traceops.memory.model import MemoryEstimate, size_of
from traceops.memory.run_memory import read_folder
from traceops.pipeline.assemble_whole import memory_rows
from traceops.render.document import bold, text
from traceops.render.memory import describe_estimate, describe_run, describe_snapshots, headline
from traceops.render.writers.terminal import write_terminal
from traceops.report.rows import MemoryRows
from traceops.traces.memory_snapshot import read_snapshot
from traceops.train.config import TrainConfig
from traceops.train.options import check, config_from, refuse_training_options, to_argv, with_global_batch

_text = Wording("cli", "memory")


def main(args: argparse.Namespace) -> int:
    """Print the estimate; write it with --json. The exit code is 0 whether it fits or not."""
    words = [word for at, word in enumerate(args.words) if at or word != "--"]
    if words and not is_script(words):
        return _read(args, [Path(word) for word in words])
    if args.json:
        _check_json(args.json)
    config = replace(config_from(args), device="cuda" if args.device == "auto" else args.device)
    if config.device != "cuda":
        raise UsageError("--device cpu: traceops memory estimates GPU memory; leave the option out")
    hardware = hardware_of(args.gpu) if args.gpu else None
    capacity = size_of(args.capacity) if args.capacity else hardware.capacity if hardware else None
    if hardware is not None:
        args.gpu = hardware.gpu
        args.nproc = args.nproc if args.nproc > 1 else hardware.count or 1
    if words:
        found = estimate_script(_asked_script(args, words, capacity))
    else:
        found = _estimate_strategy(args, config, capacity)
    if args.quiet:
        print(headline(found))
    else:
        write_terminal(describe_estimate(found), sys.stdout, captions=True)
    if args.json:
        write_whole(args.json, json_bytes(found))
    return 0


def _estimate_strategy(args: argparse.Namespace, config: TrainConfig, capacity: int | None) -> MemoryEstimate:
    """Of a built-in training. Raises UsageError for options that cannot work."""
    if args.rank is not None:
        raise UsageError(_text("of_scripts"))
    if args.global_batch_size is not None:
        config = with_global_batch(config, args.global_batch_size, args.nproc)
    check(config, args.nproc, "cuda", "nccl")
    asked = EstimateRequest(config, args.nproc, capacity, args.gpu)
    if args.params is not None:
        if not 0 < args.params < 1e15:
            raise UsageError(f"--params {args.params}: the number of parameters, such as 8.36e9")
        return from_formula(args.params, asked)
    with worker() as helper:
        return estimate(asked, helper, changes=not args.no_changes)


def is_script(words: Sequence[str]) -> bool:
    """Whether `words` name a script to run, and no snapshots."""
    return words[0] == "-m" or words[0].endswith(".py") or names_a_program(words[0])


def _asked_script(args: argparse.Namespace, words: Sequence[str], capacity: int | None) -> AskedScript:
    """The script that is asked for. Raises UsageError for options that are not of a script."""
    command = understand(words, args.nproc if args.nproc > 1 else None, ours=True)
    if command.own:
        raise UsageError(f"{words[0]} starts the ranks itself; give its script: traceops memory --nproc N -- train.py")
    nproc: int = command.options.get("nproc") or args.nproc
    trains = list(command.trains)
    check_script(trains)
    refuse_training_options(config_from(args))
    for flag, given in (("--params", args.params), ("--global-batch-size", args.global_batch_size)):
        if given is not None:
            raise UsageError(f"{flag} is for built-in strategies; a script's own options come after its name")
    rank = args.rank or 0
    if not 0 <= rank < nproc:
        raise UsageError(f"--rank {rank}: one of the ranks 0 to {nproc - 1} (--nproc)")
    return AskedScript(trains, nproc, rank, capacity, args.gpu)


def _check_json(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--json {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"--json {path}: this is a folder; give a file")


def _read(args: argparse.Namespace, paths: Sequence[Path]) -> int:
    """A run folder, or snapshots. Raises UsageError for an option of estimates."""
    of_run = len(paths) == 1 and paths[0].is_dir()
    given = {
        "--json": None if of_run else args.json,
        "--nproc": args.nproc != 1, "--capacity": args.capacity, "--gpu": args.gpu,
        "--params": args.params, "--rank": args.rank, "--global-batch-size": args.global_batch_size,
        "--no-changes": args.no_changes,
    }  # fmt: skip
    wrong = [flag for flag, value in given.items() if value is not None and value is not False]
    wrong += [word for word in to_argv(config_from(args)) if word.startswith("--")]
    if wrong:
        raise UsageError(f"{wrong[0]} is for estimates, not for a snapshot or a run; leave it out")
    if of_run and args.json:
        _check_json(args.json)
    try:
        return _folder(paths[0], args) if of_run else _snapshots(paths)
    except InputError as error:
        if len(paths) > 1 or args.json:
            raise
        from traceops.cli.diagnose import diagnose_instead

        return diagnose_instead(str(paths[0]), error, *(["-q"] if args.quiet else []))


def _folder(folder: Path, args: argparse.Namespace) -> int:
    """What a run's ranks held, and snapshots; of several runs each. With --json also as `memory` of report.json has it.
    A log in which memory ran out comes first, where no run has its own record of that."""
    every = read_folder(folder)
    if args.json and len(every) > 1:
        raise UsageError(f"--json is for one run, such as {folder / every[-1][0]}")
    if not any(found.ran_out for _, found in every):
        from traceops.cli.diagnose import show_ran_out

        show_ran_out(str(folder), *(["-q"] if args.quiet else []))
    for place, found in every:
        named = [text(bold(f"{folder / place}:"))] if len(every) > 1 else []
        write_terminal([*named, *describe_run(found)], sys.stdout, captions=True)
    if args.json:
        found = every[0][1]
        rows = memory_rows(found.uses, found.snapshots, found.recorded) or MemoryRows(ranks=())
        write_whole(args.json, json_bytes(rows))
    return 0


def _snapshots(paths: Sequence[Path]) -> int:
    if len(paths) > 2:
        raise UsageError(_text("two_snapshots"))
    if (folder := next((path for path in paths if path.is_dir()), None)) is not None:
        raise UsageError(_text("folder", path=str(folder)))
    alike = len({path.name for path in paths}) < len(paths)
    names = [str(path) if alike else path.name for path in paths]
    read = [(name, read_snapshot(path)) for name, path in zip(names, paths, strict=True)]
    write_terminal(describe_snapshots(read), sys.stdout, captions=True)
    return 0
