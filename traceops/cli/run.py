"""`traceops run`: profile a training on every rank, a built-in strategy or a script of your own."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from traceops.capture.environment import host
from traceops.capture.guard import contained
from traceops.capture.light.window import NEEDED
from traceops.capture.manifest import readable_ranks
from traceops.capture.schedule import Schedule
from traceops.cli.command_words import name_of, understand
from traceops.cli.training_options import RECORDING, STEPS
from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.files import read_regular
from traceops.core.installation import bundled
from traceops.core.rank_files import RECORDED
from traceops.core.run_lock import Launcher, RunLock, hold, in_use
from traceops.core.torch_here import gpu_count, gpus_shown, require_torch
from traceops.launch import launchers, schedulers
from traceops.launch.against import DEFAULT_REPEAT, Series, prepare, run_series
from traceops.launch.display import Screen
from traceops.launch.folder import clear, free_folder, of_this_machine, refuse, run_defaults
from traceops.launch.forward import Shown
from traceops.launch.gather.meeting import meeting_of
from traceops.launch.plan import Applied, Cluster, Fallback, Plan, alone, parse_assignments, read_applied, stands_for
from traceops.launch.schedulers import BatchJob, batch_script, submit, write_script
from traceops.launch.session import launch
from traceops.train.config import TrainConfig
from traceops.train.options import check, config_from, flag_of, refuse_training_options, to_argv, with_global_batch

_text = Wording("cli", "run")
NOTHING_CAPTURED = 3  # exit code of a training that ended well
_POLL_S = 0.1
_OF_TORCHRUN = (
    "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port", "against", "fallback",
)  # fmt: skip


class Decided(Struct, frozen=True):
    """What the options of `traceops run` come to, before anything is started or written. series: of --against. notes:
    lines to report before it starts."""

    plan: Plan
    series: Series | None = None
    notes: tuple[str, ...] = ()
    overwrite: bool = False


def main(args: argparse.Namespace) -> int:
    """Launch the run, or the series of runs of --against; returns the training's own exit code, 3 without a trace.
    Raises UsageError for everything that cannot work, before anything is started or written."""
    if args.stop and not args.script:
        return stop_run(Path(args.stop))
    if args.slurm or args.submit:
        return _write_batch_script(args)
    decided = decide(args)
    plan, series = decided.plan, decided.series
    power = [] if series is None else [power_text(series.repeat, bool(series.plan.gpus))]
    notes = () if args.quiet else (*decided.notes, *power)
    for line in (*notes, *([(series or plan).shell(os.environ)] if args.verbose and not args.dry_run else [])):
        Screen().say(line)
    if args.dry_run:
        print((series or plan).shell(os.environ))
        return 0
    decided, lock = take_folder(args, decided)
    try:
        if decided.series is not None:
            return run_series(decided.series)
        code = launch(decided.plan, lock=lock)
        captured = any(rank.traces for rank in readable_ranks(decided.plan.out)[0])
        if captured and not code and not args.quiet:
            contained(report_reach, decided.plan.out, decided.plan.gpus)  # no training fails of it
        return code if code or captured else NOTHING_CAPTURED
    finally:
        lock.release()


def stop_run(out: Path) -> int:
    """End the run that is active in `out` and wait for its end; what was captured is kept. Raises UsageError."""
    if not in_use(out):
        raise UsageError(_text("not_active", out=str(out), script=out.is_file()))
    launcher = Launcher.of(json.loads(read_regular(out / "run.json")).get("launcher"))
    if launcher is None or launcher.host != host() or not launcher.alive():
        where = "another machine" if launcher is None else launcher.host
        raise UsageError(_text("launcher_elsewhere", out=str(out), where=where))
    os.kill(launcher.pid, signal.SIGTERM)
    while in_use(out):
        time.sleep(_POLL_S)
    return 0


def power_text(repeat: int, on_gpus: bool) -> str:
    """What size of change so many trainings per side can show, before they begin."""
    from traceops.compare.judge import LAUNCH_NOISE_PCT  # NumPy and what reads reports: of --against alone
    from traceops.compare.statistics import detectable_pct

    noise = LAUNCH_NOISE_PCT["cuda" if on_gpus else "cpu"]
    return _text("power", percent=detectable_pct(repeat, noise), repeat=repeat, noise=noise)


_FINE_PCT = 10.0  # what two captures show on a quiet machine


def report_reach(out: Path, on_gpus: bool) -> None:
    """Print what size of change this run and one more can show, where that is larger than usual."""
    import numpy as np

    from traceops.across.run_use import machine_use  # NumPy and what reads reports: after the training alone
    from traceops.compare.config import CompareConfig
    from traceops.compare.judge import launch_noise_pct, shows_from_pct, steps_needed
    from traceops.traces.observed import read_machines, read_observed

    device, steps, waited = "cuda" if on_gpus else "cpu", np.empty(0), 0.0
    observed, _ = read_observed(str(out), 0)
    manifest = json.loads(read_regular(out / "run.json"))
    if observed is not None:
        kept = observed.steps["flags"][1:] & RECORDED == 0
        steps = np.asarray(observed.steps["host_us"][1:][kept] / 1e3, dtype=float)
        uses = machine_use(read_machines(str(out)), [observed], manifest)
        waited = max((use.waited_pct or 0.0 for use in uses), default=0.0)
    elif manifest.get("nnodes", 1) > 1:
        return  # rank 0 is on another machine
    if (percent := shows_from_pct(steps, device, waited, CompareConfig())) is None:
        Screen().say(_text("few", steps=len(steps), needed=steps_needed(device)))
    elif percent > _FINE_PCT:
        noise = launch_noise_pct([([steps], waited)], device)
        Screen().say(_text("reach", percent=percent, noise=noise))


def take_folder(args: argparse.Namespace, decided: Decided) -> tuple[Decided, RunLock]:
    """The run with its folder, which is locked and has room. Of several runs without a name that start at once, as the
    tasks of an array do, one gets the folder that all of them found free, and the others take the next ones. Raises
    UsageError where a run that has a name cannot have its folder."""
    while True:
        lock = None
        try:
            lock = hold(decided.plan.out, shared=decided.plan.cluster.nnodes > 1)
            make_room(decided)
        except UsageError:
            if lock is not None:
                lock.release()
            if args.name is not None or (again := decide(args)).plan.out == decided.plan.out:
                raise
            decided = again
        else:
            return decided, lock


def _write_batch_script(args: argparse.Namespace) -> int:
    nproc = args.nproc if args.nproc is not None else args.gpus_per_node
    if nproc is None:
        raise UsageError(_text("ranks_of_batch"))
    trains = _words(args)
    if trains and args.launcher == "torchrun":
        trains = list(understand(trains, nproc).trains)
    name = args.name or _default_name(trains, config_from(args))
    nodes = args.nnodes if args.nodes is None else args.nodes
    local = of_this_machine(Path.cwd() if args.out is None else Path(args.out))
    job = BatchJob(name, nodes, nproc, args.gpus_per_node, args.time, args.partition, args.account, nodes > 1 and local)
    words = sys.argv[sys.argv.index("run") + 1 :]
    if args.dry_run:
        print(batch_script(job, words), end="")
        return 0
    path = write_script(job, words)
    Screen().say(f"{path} is written" + ("" if args.submit else f"; next: sbatch {path}"))
    if args.submit:
        print(submit(path))
    return 0


def make_room(decided: Decided) -> None:
    """Remove the run that --overwrite gives up; the folder's lock is held. Raises UsageError for another run."""
    plan = decided.plan
    if plan.cluster.nnodes == 1:
        refuse(plan.out, overwrite=decided.overwrite)  # another run may have ended meanwhile
        clear(plan.out)


def decide(args: argparse.Namespace) -> Decided:
    """The plan of a run, from its options. Raises UsageError for everything that cannot work."""
    defaults = run_defaults()
    given, repeat = _schedule_options(args, defaults.schedule)
    schedule = replace(Schedule(), **given)
    config = config_from(args)
    trains = _words(args)
    extra_env = parse_assignments(args.env)
    notes: list[str] = []
    if trains and args.launcher == "torchrun":
        args, trains = _understood(args, trains, extra_env, notes)
    applied, replaced = None, None
    if args.settings is not None:
        applied, replaced = read_applied(args.settings, extra_env, fallback=args.fallback)
    require_torch()
    own = args.launcher != "torchrun"  # the command starts the ranks, not we
    schedulers.refuse_task_each(os.environ, sys.argv[1:], nodes_too=own)
    notes += _check_trains(args, trains, schedule, config)
    gpus = _gpus_shown(config, applied, extra_env)
    fallback, cluster = None, Cluster(1)
    if args.fallback is not None:
        ranks = stands_for(args.nproc, args.nnodes, args.node_rank, replaced, gpus or 2)
        config, fallback = (config, Fallback(ranks)) if trains else alone(config, ranks)
    elif args.launcher == "torchrun":
        cluster = _cluster(args, gpus)
        notes += schedulers.left_out(cluster, os.environ, sys.argv[1:])
    elif args.launcher != "none":  # the command decides how many ranks there are
        trains = launchers.command_of(args.launcher, launchers.Started(tuple(trains), args.nproc, gpus, args.nnodes))
    name = args.name or _default_name(trains, config, fallback)
    name = schedulers.name_in_slurm(name, os.environ, given=args.name is not None)
    settings = _capture_settings(args, given, trains)
    if args.global_batch_size is not None and fallback is not None:
        raise UsageError(_text("batch_of_fallback"))
    if not trains:
        trains = _strategy(args, config, schedule, cluster.world_size, "cuda" if gpus else "cpu")
    out = _run_folder(args, name, defaults.folder, cluster)
    plan = Plan(
        args.name or out.name, out, cluster, trains, settings, extra_env, not args.no_log_files, _limits(args, own),
        summarize=args.summarize, settings=applied, fallback=fallback, gpus=gpus > 0,
        launcher="none" if own else "torchrun", shown=Shown(args.all_ranks, not args.no_prefix),
        gather=args.gather and cluster.nnodes > 1, gather_port=args.gather_port,
        beside=schedulers.first_node_reports(cluster, os.environ), quiet=args.quiet,
        stop_at=_stop_at(args, schedule, gpus),
    )  # fmt: skip
    series = None if repeat is None else prepare(plan, args.against, repeat, os.environ)
    if cluster.nnodes == 1:  # on a shared disk another node may have begun to write the very same run
        refuse(out, overwrite=args.overwrite)
    return Decided(plan, series, (*notes, *_lines_of(applied, fallback)), args.overwrite)


def _lines_of(applied: Applied | None, fallback: Fallback | None) -> list[str]:
    lines = [] if applied is None else [applied.line()]
    return lines if fallback is None else [*lines, fallback.line(), *fallback.table()]


def _gpus_shown(config: TrainConfig, applied: Applied | None, extra_env: dict[str, str]) -> int:
    """GPUs that the ranks will see: those of --settings and --env, not all of the machine."""
    if config.device == "cpu":
        return 0
    ours = {**(applied.set if applied else {}), **extra_env}
    return gpus_shown(gpu_count(), ours.get("CUDA_VISIBLE_DEVICES"))


def _check_trains(args: argparse.Namespace, trains: list[str], schedule: Schedule, config: TrainConfig) -> list[str]:
    """What is doubtful about the command. Raises UsageError where it cannot work, and for options of strategies."""
    if args.launcher != "torchrun":
        # Raise UsageError for what has no meaning where the command starts the ranks, and for one that is not there
        given = [name for name in _OF_TORCHRUN if getattr(args, name) is not None]
        given += ["gather"] if args.gather else []
        given += ["nproc"] if args.nproc is not None and args.launcher == "none" else []
        given += ["nnodes"] if args.nnodes != 1 and args.launcher != "srun" else []
        if given:
            flags = ", ".join(flag_of(name) for name in given)
            raise UsageError(_text("starts_itself", flags=flags, program=trains[0] if trains else args.launcher))
        if schedule.skip_first < 1:
            raise UsageError(_text("first_step", launcher=args.launcher))
        if args.launcher == "none":
            launchers.check_command(trains)
        elif trains and trains[0] != args.launcher:
            launchers.check_script(trains)
    elif not trains:
        return []
    else:
        launchers.check_script(trains)
    refuse_training_options(config)
    return _doubts(trains) if args.launcher == "torchrun" else []


def _run_folder(args: argparse.Namespace, name: str, below: Path, cluster: Cluster) -> Path:
    """Where the run goes: as asked for, else by its name; the next free one if neither was given."""
    if args.out is not None:
        return Path(args.out).absolute()
    if args.name is None and not args.overwrite and cluster.nnodes == 1:
        return free_folder(name, below)
    return Path(below, name).absolute()


def _limits(args: argparse.Namespace, own: bool) -> launchers.HangTimeouts | None:
    """When the ranks count as hung. own: the command starts them, so none is known before it ends a step."""
    if args.hang_timeout == 0:
        return None
    return launchers.HangTimeouts(args.hang_timeout, 0.0 if own else args.init_timeout, kills=args.kill_on_hang)


def _stop_at(args: argparse.Namespace, schedule: Schedule, gpus: int) -> int | None:
    """Steps after which --stop ends the training."""
    return None if args.stop is None else _last_step(schedule, light=gpus > 0 and not args.no_light)


def _last_step(schedule: Schedule, *, light: bool) -> int:
    """Steps after which a capture is complete."""
    return schedule.total_steps + (NEEDED if light else 0)


def _words(args: argparse.Namespace) -> list[str]:
    """The command after --, which argparse leaves in, in some Python versions."""
    return args.script[1:] if args.script[:1] == ["--"] else list(args.script)


def _understood(
    args: argparse.Namespace, words: list[str], extra_env: dict[str, str], notes: list[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The options with what the command asks for, and what it trains; adds to its variables and to the notes."""
    ours = args.gather or args.nnodes != 1 or any(getattr(args, name) is not None for name in _OF_TORCHRUN)
    command = understand(words, args.nproc, ours=ours)
    args = copy(args)
    args.launcher = "none" if command.own else args.launcher
    for name, value in command.options.items():
        setattr(args, name, value)
    for name, value in command.environment.items():
        extra_env.setdefault(name, value)
    notes += [command.note] if command.note else []
    return args, list(command.trains)


def _schedule_options(args: argparse.Namespace, usual: dict[str, int]) -> tuple[dict[str, int], int | None]:
    """The options of the schedule, by name, with those that --quick stands for; and trainings per side of --against.
    usual: of traceops.toml, where neither is given."""
    given = {name: getattr(args, name) for name in STEPS if getattr(args, name) is not None}
    if args.quick:
        given = {name: getattr(Schedule.quick(), name) for name in STEPS if name != "repeat"} | given
    if args.against is None:
        return usual | given, None
    repeat = given.pop("repeat", DEFAULT_REPEAT)
    return {name: n for name, n in usual.items() if name != "repeat"} | given, repeat


def _capture_settings(args: argparse.Namespace, schedule: dict[str, int], trains: list[str]) -> dict[str, Any]:
    """What the options ask of the capture in each rank, beyond its defaults."""
    if args.live and args.no_observe:
        raise UsageError(_text("live_observes"))
    settings: dict[str, Any] = {option: True for option in RECORDING if getattr(args, option)}
    given = {
        "first_window": None if trains else False,  # the number of steps of a built-in strategy is known
        "samples_per_step": args.global_batch_size if trains else None,
        "schedule": schedule or None,
        "overwrite": args.overwrite or None,
        "observe": False if args.no_observe else None,
        "live": args.live or None,
        "light": False if args.no_light else None,
        "detach": args.detach,
        "step_on": None if args.step_on == "optimizer" else args.step_on,
    }
    return settings | {name: value for name, value in given.items() if value is not None}


def _doubts(trains: list[str]) -> list[str]:
    """What a script's text makes doubtful about starting a rank of it a process."""
    if (call := launchers.starts_ranks(trains)) is not None:
        return [_text("starts_ranks", script=trains[0], call=call, trains=shlex.join(trains))]
    return [_text("data_parallel", script=trains[0])] if launchers.wraps_in_data_parallel(trains) else []


def _cluster(args: argparse.Namespace, gpus: int) -> Cluster:
    """The nodes and ranks that torchrun starts, by the options or else as Slurm or Kubernetes tells."""
    nproc = args.nproc if args.nproc is not None else schedulers.ranks_per_node(os.environ) or gpus or 2
    cluster = Cluster(
        nproc, args.nnodes, args.node_rank, args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id,
        args.master_addr, args.master_port,
    )  # fmt: skip
    if cluster == Cluster(nproc):  # no option says where the nodes are
        cluster = schedulers.in_slurm(schedulers.in_pod(cluster, os.environ), os.environ)
    cluster.check()
    if args.gather and cluster.nnodes > 1:
        meeting_of(cluster, args.gather_port)
    launchers.check_gpus(nproc, gpus)
    return cluster


def _strategy(
    args: argparse.Namespace, config: TrainConfig, schedule: Schedule, world_size: int, device: str
) -> list[str]:
    """The bundled training script and its arguments, checked against the schedule and the world."""
    if args.global_batch_size is not None:
        config = with_global_batch(config, args.global_batch_size, world_size)
    if config.steps is None:
        light = not args.no_light and device == "cuda" and config.device != "cpu"
        config = replace(config, steps=_last_step(schedule, light=light))
    assert config.steps is not None
    schedule.check(config.steps)
    if config.step_unit == "batch":
        schedule.check_sync(config.grad_accum)
    if config.device == "cuda" and device == "cpu":
        raise UsageError(_text("no_gpu"))
    backend = config.backend if config.backend != "auto" else "nccl" if device == "cuda" else "gloo"
    check(config, world_size, device, backend)
    return [str(bundled("runners", "train.py")), *to_argv(config)]


def _default_name(trains: list[str], config: TrainConfig, fallback: Fallback | None = None) -> str:
    return (name_of(trains) if trains else config.strategy) + ("" if fallback is None else "-single")
