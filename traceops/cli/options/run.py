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
    "skip_first": "steps to leave alone at first",
    "unprofiled": "steps timed before the profiler starts",
    "warmup": "steps with the profiler on, not recorded",
    "active": "steps recorded",
    "repeat": "with --against trainings of each side (5), else windows of unprofiled, warmup and active steps",
}
_AGAINST = """train GITREF and the working tree in turn, --repeat times each (5), for traceops compare:
profile/NAME/base_1, head_1, head_2, base_2, …"""
_SUMMARIZE = """afterwards, on each node, write a summary beside each trace, a hundredth of its size. traceops
analyze and compare take it in place of the trace, so only summaries need to travel"""
_SETTINGS = """doctor.json of traceops doctor: start the ranks with the variables that it found to work; --env
wins"""
_FALLBACK = """train as one rank, on one GPU or the CPU, with as many samples a step as all ranks would have.
Built-in strategies accumulate gradients; tell a script with an option of its own"""
_OBSERVE = """do not time every step of the whole training, nor sample now and then what the hosts and the machine
do (docs/observe.md)"""
_LIGHT = """do not record some steps of the device alone after the last window; on GPUs, from CUPTI, which
disturbs them little (docs/observe.md)"""
_LAUNCHER = """who starts the ranks of the script (%(default)s). lightning: the Trainer in it. none: the command
after -- starts them itself (mp.spawn, any launcher with options of its own), or it is one process"""
_STEP_ON = """what ends a step of a script: an optimizer's step, or with forward each call of the model, for
inference (%(default)s)"""
_HANGS = """A training hangs if no rank finishes a step for so long and nothing in it moves. traceops then saves
what the ranks do to evidence/ in the run folder, names the cause and ends the job with exit code 124. A
slow step, in which something does move, may take ten times as long."""


_GLOBAL_BATCH = """samples of all ranks in an optimizer step. Built-in strategies derive the batch of a rank from it.
A script takes no notice of it: it is for samples a second and traceops scale"""


_GATHER = """on several nodes: at the end each launcher sends what it captured to the first node, into its run folder.
Nothing is sent where the nodes share the folder"""
_SLURM = """A script for sbatch that runs this on one task a node. Without --slurm or --submit these do nothing; in a
job, srun --ntasks-per-node=1 traceops run ... needs none of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    slurm = parser.add_argument_group("Slurm", description=_SLURM)
    add = slurm.add_argument
    add("--slurm", action="store_true", help="write NAME.sbatch and end")
    add("--submit", action="store_true", help="the same, and submit it")
    add("--nodes", type=int, metavar="N", help="nodes of the job (1)")
    add("--gpus-per-node", type=int, metavar="N", help="GPUs of a node, and its ranks (--nproc: other ranks)")
    add("--time", metavar="T", help="limit, as Slurm has it: minutes, or H:M:S")
    add("--partition", metavar="NAME", help="where to")
    add("--account", metavar="NAME", help="on whose account")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="-- SCRIPT ARGS, or -- -m MODULE ARGS")


def add_options(parser: argparse.ArgumentParser) -> None:
    """All but the script."""
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
    add("--gather", action="store_true", help=_GATHER)
    add(
        "--gather-port", type=positive, metavar="PORT", help="where it listens (beside the rendezvous's port)"
    )
    add("--launcher", choices=LAUNCHERS, default="torchrun", help=_LAUNCHER)
    add("--env", action="append", default=[], metavar="KEY=VALUE", help="set for all ranks; repeatable")
    add("--settings", metavar="FILE", help=_SETTINGS)
    add("--fallback", choices=("single",), help=_FALLBACK)
    add("--name", help="of the run (strategy or script)")
    add("--out", metavar="DIR", help="run folder (profile/NAME)")
    add("--overwrite", action="store_true", help="replace the run in that folder")
    add("--no-log-files", action="store_true", help="pass output on as it is: no logs/, no [rank N] marks")
    add(
        "--all-ranks",
        action="store_true",
        help="show the output of all ranks, not only rank 0 (all is in logs/)",
    )
    add("--no-prefix", action="store_true", help="show lines without [rank N] before them")
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
        default=HangTimeouts().init_s,
        metavar="S",
        help="seconds before the first step (%(default)g); 0: wait forever",
    )
    capture = parser.add_argument_group("capture")
    quick = Schedule.quick()
    numbers = ", ".join(
        f"--{name.replace('_', '-')} {getattr(quick, name)}" for name in STEPS if name != "repeat"
    )
    capture.add_argument("--quick", action="store_true", help=f"for short scripts: {numbers}")
    capture.add_argument("--step-on", choices=STEP_ON, default="optimizer", help=_STEP_ON)
    for name, text in STEPS.items():
        flag, default = "--" + name.replace("_", "-"), getattr(Schedule(), name)
        capture.add_argument(flag, type=int, metavar="N", help=f"{text} ({default})")
    capture.add_argument("--no-observe", action="store_true", help=_OBSERVE)
    capture.add_argument("--no-light", action="store_true", help=_LIGHT)
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
