"""`traceops run`: profile a training on every rank, a built-in strategy or a script of your own."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from traceops.capture.schedule import Schedule
from traceops.core.errors import UsageError
from traceops.launch.limits import Limits
from traceops.train.options import TrainConfig, add_training_arguments, check, config_from, to_argv

HELP = "Profile every rank of a training: --strategy NAME, or -- my_script.py ARGS."

_RECORDING = {
    "record_shapes": "input dimensions of every operator",
    "with_stack": "Python stacks (slow)",
    "profile_memory": "allocations",
    "with_flops": "operator FLOPs",
    "with_modules": "module hierarchy",
}
_STEPS = {
    "skip_first": "steps left alone first",
    "unprofiled": "steps timed before the profiler starts",
    "warmup": "steps with the profiler on, not recorded",
    "active": "steps recorded",
    "repeat": "with --against trainings a side (5), else windows of unprofiled, warmup and active steps",
}
_AGAINST = """train GITREF and the working tree in turn, --repeat times each (5), for traceops compare:
profile/NAME/base_1, head_1, head_2, base_2, …"""
_SUMMARIZE = """afterwards, on each node, write a summary of a hundredth of its size beside each trace, which
traceops analyze and compare take in place of the trace: only summaries need to travel"""
_SETTINGS = """doctor.json of traceops doctor: start the ranks with the variables set and removed that it found to
work; --env wins"""
_FALLBACK = """one rank, on one GPU or the CPU, with as many samples a step as all ranks would have had: built-in
strategies accumulate gradients; a script has to be told with its own option"""
_HANGS = """A training hangs if no rank finishes a step for so long and nothing in it moves: what the ranks do
is saved to evidence/ in the run folder, the cause is named, and the job ended with exit code 124. A slow
step, in which something does move, may take ten times as long."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    launch = parser.add_argument_group("launch")
    add = launch.add_argument
    add("--nproc", type=int, metavar="N", help="ranks on this node (all GPUs, or 2 on the CPU)")
    add(
        "--nnodes",
        type=int,
        default=1,
        metavar="N",
        help="nodes; start the same command on each (%(default)s)",
    )
    add("--node-rank", type=int, metavar="N", help="of this node, with --master-addr")
    add("--rdzv-backend", metavar="NAME", help="rendezvous of several nodes (c10d with --rdzv-endpoint)")
    add("--rdzv-endpoint", metavar="HOST:PORT", help="where the nodes meet")
    add("--rdzv-id", metavar="ID", help="name of the meeting (the run's name)")
    add("--master-addr", metavar="HOST", help="first node, for a static rendezvous")
    add("--master-port", type=int, metavar="PORT", help="its port")
    add("--env", action="append", default=[], metavar="KEY=VALUE", help="set for all ranks; repeatable")
    add("--settings", metavar="FILE", help=_SETTINGS)
    add("--fallback", choices=("single",), help=_FALLBACK)
    add("--name", help="of the run (strategy or script)")
    add("--out", metavar="DIR", help="run folder (profile/NAME)")
    add("--overwrite", action="store_true", help="replace the run in that folder")
    add("--no-log-files", action="store_true", help="pass output on as it is: no logs/, no [rank N] marks")
    add("--summarize", action="store_true", help=_SUMMARIZE)
    add("--against", metavar="GITREF", help=_AGAINST)
    add("--dry-run", action="store_true", help="print the command, or all of --against, and end")
    hangs = parser.add_argument_group("hangs", description=_HANGS)
    add = hangs.add_argument
    add(
        "--hang-timeout",
        type=_seconds,
        metavar="S",
        help="seconds without a step (60, or 10 median steps if that is longer); 0: do not watch",
    )
    add(
        "--init-timeout",
        type=_seconds,
        default=Limits().init_s,
        metavar="S",
        help="seconds before the first step (%(default)g); 0: wait for ever",
    )
    capture = parser.add_argument_group("capture")
    for name, text in _STEPS.items():
        flag, default = "--" + name.replace("_", "-"), getattr(Schedule(), name)
        capture.add_argument(flag, type=int, metavar="N", help=f"{text} ({default})")
    for name, text in _RECORDING.items():
        capture.add_argument("--" + name.replace("_", "-"), action="store_true", help=f"record {text}")
    add_training_arguments(parser)
    parser.add_argument("script", nargs=argparse.REMAINDER, help="-- SCRIPT ARGS, or -- -m MODULE ARGS")


def main(args: argparse.Namespace) -> int:
    """Launch the run, or the series of runs of --against; returns the training's own exit code.

    Raises UsageError for everything that cannot work, before anything is started or written.
    """
    from traceops.launch.against import DEFAULT_REPEAT, prepare, run_series
    from traceops.launch.checks import check_gpus, check_script, gpu_count, gpus_shown, require_torch
    from traceops.launch.display import Screen
    from traceops.launch.fallback import Fallback, alone, stands_for
    from traceops.launch.folder import free_folder, refuse_or_clear
    from traceops.launch.plan import Cluster, Plan, parse_assignments
    from traceops.launch.session import launch
    from traceops.launch.settings import read_applied

    schedule = {name: getattr(args, name) for name in _STEPS if getattr(args, name) is not None}
    repeat = None if args.against is None else schedule.pop("repeat", DEFAULT_REPEAT)
    decided = replace(Schedule(), **schedule)
    config = config_from(args)
    # argparse leaves the -- in, in some Python versions
    trains = args.script[1:] if args.script[:1] == ["--"] else list(args.script)
    extra_env = parse_assignments(args.env)
    applied, told = None, None
    if args.settings is not None:
        applied, told = read_applied(args.settings, extra_env, fallback=args.fallback)
    require_torch()
    if trains:
        check_script(trains)
        _refuse_training_options(config)
    ours = {**(applied.set if applied else {}), **extra_env}
    gpus = 0 if config.device == "cpu" else gpus_shown(gpu_count(), ours.get("CUDA_VISIBLE_DEVICES"))
    fallback = None
    if args.fallback is not None:
        ranks = stands_for(args.nproc, args.nnodes, args.node_rank, told, gpus or 2)
        cluster = Cluster(1)
        config, fallback = (config, Fallback(ranks)) if trains else alone(config, ranks)
    else:
        nproc = args.nproc if args.nproc is not None else gpus or 2
        cluster = Cluster(
            nproc, args.nnodes, args.node_rank, args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id,
            args.master_addr, args.master_port,
        )  # fmt: skip
        cluster.check()
        check_gpus(nproc, gpus)
    name = args.name or _default_name(args.script, config) + ("" if fallback is None else "-single")
    if not trains:
        trains = _strategy(config, decided, cluster.world_size, "cuda" if gpus else "cpu")
    if args.out is not None:
        out = Path(args.out).absolute()
    elif args.name is None and not args.overwrite and cluster.nnodes == 1:
        out = free_folder(name)
    else:
        out = Path("profile", name).absolute()
    settings: dict[str, Any] = {option: True for option in _RECORDING if getattr(args, option)}
    if schedule:
        settings["schedule"] = schedule
    if args.overwrite:
        settings["overwrite"] = True
    limits = None if args.hang_timeout == 0 else Limits(args.hang_timeout, args.init_timeout)
    plan = Plan(
        args.name or out.name, out, cluster, trains, settings, extra_env, not args.no_log_files, limits,
        summarize=args.summarize, settings=applied, fallback=fallback, gpus=gpus > 0,
    )  # fmt: skip
    series = None if repeat is None else prepare(plan, args.against, repeat, os.environ)
    if cluster.nnodes == 1:  # on a shared disk another node may have begun to write the very same run
        refuse_or_clear(out, overwrite=args.overwrite, dry_run=args.dry_run)
    for part in (applied, fallback):
        if part is not None:
            Screen().say(part.line())
    if args.dry_run:
        print((series or plan).shell(os.environ))
        return 0
    return launch(plan) if series is None else run_series(series)


def _seconds(text: str) -> float:
    """Seconds from 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number of seconds, 0 or more")
    return value


def _strategy(config: TrainConfig, schedule: Schedule, world_size: int, device: str) -> list[str]:
    """The bundled training script and its arguments, checked against the schedule and the world."""
    from traceops.core.bundled import bundled

    if config.steps is None:
        config = replace(config, steps=schedule.total_steps)
    assert config.steps is not None
    schedule.check(config.steps)
    if config.step_unit == "batch":
        schedule.check_sync(config.grad_accum)
    if config.device == "cuda" and device == "cpu":
        raise UsageError("--device cuda: this machine has no GPU that torch can use; use --device cpu")
    backend = config.backend if config.backend != "auto" else "nccl" if device == "cuda" else "gloo"
    check(config, world_size, device, backend)
    return [str(bundled("runners", "train.py")), *to_argv(config)]


def _refuse_training_options(config: TrainConfig) -> None:
    """A script takes its own options; only --device, which says what the ranks run on, concerns it too."""
    default = TrainConfig()
    for field in fields(TrainConfig):
        if field.name != "device" and getattr(config, field.name) != getattr(default, field.name):
            flag = "--" + field.name.replace("_", "-")
            raise UsageError(f"{flag} is for built-in strategies; a script's own options come after its name")


def _default_name(script: list[str], config: TrainConfig) -> str:
    words = [word for word in script if word != "--"]
    if not words:
        return config.strategy
    return words[1].removesuffix(".__main__").rpartition(".")[2] if words[0] == "-m" else Path(words[0]).stem
