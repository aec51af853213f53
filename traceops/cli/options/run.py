"""The options of `traceops run`."""

from __future__ import annotations

import argparse

from traceops.capture.schedule import Schedule
from traceops.capture.step_ends import STEP_ON
from traceops.cli.options.types import positive
from traceops.launch.hang_timeouts import HangTimeouts
from traceops.launch.launchers import NAMES as LAUNCHERS
from traceops.train.options import add_training_arguments

HELP = "Profile every rank of a training: --strategy NAME, or -- my_script.py ARGS."
RECORDING = {
    "record_shapes": "input dimensions of every operator",
    "with_stack": "Python stacks (slow)",
    "profile_memory": "allocations",
    "with_flops": "operator FLOPs",
    "with_modules": "module hierarchy",
    "with_memory": "the stack of every GPU allocation, for memory snapshots (docs/memory.md), and allocations",
}
STEPS = {
    "skip_first": "steps to skip at the start",
    "unprofiled": "steps timed before the profiler starts",
    "warmup": "steps with the profiler on, not recorded",
    "active": "steps recorded",
    "repeat": "windows to record, each with its unprofiled, warmup and active steps; with --against: trainings of "
    "each side (5)",
}
_AGAINST = """train GITREF and the working tree in turn, --repeat times each (5), for traceops compare:
profile/NAME/base_1, head_1, head_2, base_2, …"""
_SUMMARIZE = """after the training, each node writes a summary next to each trace, a hundredth of its size. traceops
analyze and compare read it instead of the trace, so you need to copy only summaries"""
_SETTINGS = """doctor.json of traceops doctor: start the ranks with the variables that the doctor found to work.
--env wins over it"""
_FALLBACK = """train as one rank, on one GPU or the CPU, with as many samples per step as all ranks would have.
Built-in strategies accumulate gradients. A script has to accumulate TRACEOPS_FALLBACK_RANKS batches itself,
or by the callbacks for Hugging Face and Lightning"""
_OBSERVE = """do not time the steps outside the window, and do not sample what hosts and machine do
(docs/observe.md)"""
_LIVE = """watch the run while it trains: changes of pace, ranks that lag, waiting for input, hangs. What is found is
said here, recorded in the run folder, and shown by traceops top (docs/live.md)"""
_LIGHT = """on GPUs: do not record the device alone for some steps after the last window. That recording (CUPTI)
disturbs the steps little (docs/observe.md)"""
_DETACH = """on GPUs: end CUPTI after the last window, which otherwise slows steps that are bound by their host. By
default from CUDA 13.0 on; --detach from CUDA 12.6 on (docs/observe.md)"""
_LAUNCHER = """what starts the ranks of the script (%(default)s). lightning: the Trainer in the script starts them.
none: the command after -- starts them (mp.spawn, a launcher with its own options), or it is a single process"""
_STEP_ON = """what ends a step of a script: the optimizer's step, or (forward, for inference) each call of the model
(%(default)s)"""
_HANGS = """A training counts as hung when no rank finishes a step for this long and nothing makes progress. traceops
then saves what the ranks do to evidence/ in the run folder and names the cause. The job goes on, unless --kill-on-hang
ends it. A slow step that still makes progress may take ten times as long."""


_GLOBAL_BATCH = """samples of all ranks in an optimizer step. Built-in strategies compute each rank's batch from it.
A script does not see it; it is used for samples per second and by traceops scale"""


_GATHER = """on several nodes: at the end each launcher sends its captured files to the run folder on the first node.
If the nodes share the folder, nothing is sent"""
_SLURM = """Write a script for sbatch that runs this command as one task a node. Without --slurm or --submit these
options do nothing. Inside a job, srun --ntasks-per-node=1 traceops run ... needs none of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    slurm = parser.add_argument_group("Slurm", description=_SLURM)
    add = slurm.add_argument
    add("--slurm", action="store_true", help="write NAME.sbatch and exit")
    add("--submit", action="store_true", help="write NAME.sbatch, submit it and exit")
    add("--nodes", type=int, metavar="N", help="nodes of the job (1)")
    add("--gpus-per-node", type=int, metavar="N", help="GPUs of a node; as many ranks, unless --nproc says")
    add("--time", metavar="T", help="time limit of the job: minutes, or H:M:S")
    add("--partition", metavar="NAME", help="Slurm partition")
    add("--account", metavar="NAME", help="Slurm account")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="-- SCRIPT ARGS, or -- -m MODULE ARGS")


def add_options(parser: argparse.ArgumentParser) -> None:
    """All but the script."""
    launch = parser.add_argument_group("launch")
    add = launch.add_argument
    add("--nproc", type=int, metavar="N", help="ranks on this node (all GPUs, or 2 on the CPU)")
    add("--nnodes", type=int, default=1, metavar="N", help="nodes; start the same command on each (%(default)s)")
    add("--node-rank", type=int, metavar="N", help="number of this node, from 0; with --master-addr")
    add("--rdzv-backend", metavar="NAME", help="rendezvous of several nodes (c10d with --rdzv-endpoint)")
    add("--rdzv-endpoint", metavar="HOST:PORT", help="address of the rendezvous")
    add("--rdzv-id", metavar="ID", help="id of the rendezvous (the run's name)")
    add("--master-addr", metavar="HOST", help="first node, for a static rendezvous")
    add("--master-port", type=int, metavar="PORT", help="port of the static rendezvous")
    add("--gather", action="store_true", help=_GATHER)
    add(
        "--gather-port",
        type=positive,
        metavar="PORT",
        help="port on which the first node listens for --gather (the rendezvous's port ± 10000)",
    )
    add("--launcher", choices=LAUNCHERS, default="torchrun", help=_LAUNCHER)
    add("--env", action="append", default=[], metavar="KEY=VALUE", help="set this variable for all ranks; repeatable")
    add("--settings", metavar="FILE", help=_SETTINGS)
    add("--fallback", choices=("single",), help=_FALLBACK)
    add("--name", help="name of the run (the strategy's or script's)")
    add("--out", metavar="DIR", help="run folder (profile/NAME)")
    add("--overwrite", action="store_true", help="replace the run in that folder")
    add("--no-log-files", action="store_true", help="pass output on unchanged: no logs/, no [rank N] marks")
    add(
        "--all-ranks",
        action="store_true",
        help="show the output of all ranks, not only rank 0 (logs/ has all of it either way)",
    )
    add("--no-prefix", action="store_true", help="show lines without the mark [rank N]")
    add("--summarize", action="store_true", help=_SUMMARIZE)
    add("--against", metavar="GITREF", help=_AGAINST)
    add("--dry-run", action="store_true", help="print the command (with --against: all commands) and exit")
    hangs = parser.add_argument_group("hangs", description=_HANGS)
    add = hangs.add_argument
    add(
        "--hang-timeout",
        type=_seconds,
        metavar="S",
        help="seconds without a step until the training counts as hung (60, or 10 median steps if that is longer); "
        "0: do not watch",
    )
    add(
        "--init-timeout",
        type=_seconds,
        default=HangTimeouts().init_s,
        metavar="S",
        help="the same before the first step (%(default)g); 0: wait forever",
    )
    add("--kill-on-hang", action="store_true", help="end a hung job and exit with 124 (otherwise it goes on)")
    capture = parser.add_argument_group("capture")
    quick = Schedule.quick()
    numbers = ", ".join(f"--{name.replace('_', '-')} {getattr(quick, name)}" for name in STEPS if name != "repeat")
    capture.add_argument("--quick", action="store_true", help=f"for short scripts: {numbers}")
    capture.add_argument("--step-on", choices=STEP_ON, default="optimizer", help=_STEP_ON)
    for name, text in STEPS.items():
        flag, default = "--" + name.replace("_", "-"), getattr(Schedule(), name)
        capture.add_argument(flag, type=int, metavar="N", help=f"{text} ({default})")
    capture.add_argument("--no-observe", action="store_true", help=_OBSERVE)
    capture.add_argument("--live", action="store_true", help=_LIVE)
    capture.add_argument("--no-light", action="store_true", help=_LIGHT)
    capture.add_argument("--detach", action=argparse.BooleanOptionalAction, help=_DETACH)
    for name, text in RECORDING.items():
        capture.add_argument("--" + name.replace("_", "-"), action="store_true", help=f"record {text}")
    add_training_arguments(parser)
    parser.add_argument("--global-batch-size", type=positive, metavar="N", help=_GLOBAL_BATCH)


def _seconds(text: str) -> float:
    """Seconds from 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number of seconds, 0 or more")
    return value
