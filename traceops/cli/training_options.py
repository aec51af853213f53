"""The options of the commands that train, or have a training recorded; sweep and scale take those of run too."""

from __future__ import annotations

import argparse
from pathlib import Path

from traceops.capture.schedule import STEP_ON, Schedule
from traceops.cli.declared import Command, Group, add_options, changed, flag, option, positive
from traceops.launch.launchers import NAMES as LAUNCHERS
from traceops.train.options import add_training_arguments

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


def _seconds(text: str) -> float:
    """Seconds from 0. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number of seconds, 0 or more")
    return value


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


_LAUNCH = Group("launch", (
    option("--nproc", type=int, metavar="N", help="ranks on this node (all GPUs, or 2 on the CPU)"),
    option("--nnodes", type=int, default=1, metavar="N", help="nodes; start the same command on each (%(default)s)"),
    option("--node-rank", type=int, metavar="N", help="number of this node, from 0; with --master-addr"),
    option("--rdzv-backend", metavar="NAME", help="rendezvous of several nodes (c10d with --rdzv-endpoint)"),
    option("--rdzv-endpoint", metavar="HOST:PORT", help="address of the rendezvous"),
    option("--rdzv-id", metavar="ID", help="id of the rendezvous (the run's name)"),
    option("--master-addr", metavar="HOST", help="first node, for a static rendezvous"),
    option("--master-port", type=int, metavar="PORT", help="port of the static rendezvous"),
    flag(
        "--gather",
        help="on several nodes: at the end each launcher sends its captured files to the run folder on the first node. "
        "If the nodes share the folder, nothing is sent",
    ),
    option(
        "--gather-port", type=positive, metavar="PORT",
        help="port on which the first node listens for --gather (the rendezvous's port ± 10000)",
    ),
    option(
        "--launcher", choices=LAUNCHERS, default="torchrun",
        help="what starts the ranks of the script (%(default)s). lightning: the Trainer in the script starts them. "
        "none: the command after -- starts them (mp.spawn, a launcher with its own options), or it is a single process",
    ),
    option(
        "--env", action="append", default=[], metavar="KEY=VALUE",
        help="set this variable for all ranks; repeatable",
    ),
    option(
        "--settings", metavar="FILE",
        help="doctor.json of traceops doctor: start the ranks with the variables that the doctor found to work. "
        "--env wins over it",
    ),
    option(
        "--fallback", choices=("single",),
        help="train as one rank, on one GPU or the CPU, with as many samples per step as all ranks would have. "
        "Built-in strategies accumulate gradients. A script has to accumulate TRACEOPS_FALLBACK_RANKS batches itself, "
        "or by the callbacks for Hugging Face and Lightning",
    ),
    option("--name", help="name of the run (the strategy's or script's)"),
    option("--out", metavar="DIR", help="run folder (profile/NAME)"),
    flag("--overwrite", help="replace the run in that folder"),
    flag("--no-log-files", help="pass output on unchanged: no logs/, no [rank N] marks"),
    flag("--all-ranks", help="show the output of all ranks, not only rank 0 (logs/ has all of it either way)"),
    flag("--no-prefix", help="show lines without the mark [rank N]"),
    flag(
        "--summarize",
        help="after the training, each node writes a summary next to each trace, a hundredth of its size. traceops "
        "analyze and compare read it instead of the trace, so you need to copy only summaries",
    ),
    option(
        "--against", metavar="GITREF",
        help="train GITREF and the working tree in turn, --repeat times each (5), for traceops compare: "
        "profile/NAME/base_1, head_1, head_2, base_2, …",
    ),
    flag("--dry-run", help="print the command (with --against: all commands) and exit"),
    option(
        "--stop", nargs="?", const="", metavar="DIR",
        help="end the training once the capture is complete; with DIR and no script: end the run that is active there",
    ),
))  # fmt: skip

_HANGS = Group("hangs", (
    option(
        "--hang-timeout", type=_seconds, metavar="S",
        help="seconds without a step until the training counts as hung (60, or 10 median steps if that is longer); "
        "0: do not watch",
    ),
    option(
        "--init-timeout", type=_seconds, metavar="S",
        help="the same before the first step (60 while nothing moves, 1800 with --kill-on-hang); 0: wait forever",
    ),
    flag("--kill-on-hang", help="end a hung job and exit with 124 (otherwise it goes on)"),
), """A training counts as hung when no rank finishes a step for this long and nothing makes progress. traceops
then saves what the ranks do to evidence/ in the run folder and names the cause. The job goes on, unless --kill-on-hang
ends it. A slow step that still makes progress may take ten times as long.""")  # fmt: skip

_QUICK = ", ".join(f"{_flag_of(name)} {getattr(Schedule.quick(), name)}" for name in STEPS if name != "repeat")
_CAPTURE = Group("capture", (
    flag("--quick", help=f"for short scripts: {_QUICK}"),
    option(
        "--step-on", choices=STEP_ON, default="optimizer",
        help="what ends a step of a script: the optimizer's step, or (forward, for inference) each call of the model "
        "(%(default)s)",
    ),
    *(
        option(_flag_of(name), type=int, metavar="N", help=f"{text} ({getattr(Schedule(), name)})")
        for name, text in STEPS.items()
    ),
    flag(
        "--no-observe",
        help="do not time the steps outside the window, and do not sample what hosts and machine do (docs/observe.md)",
    ),
    flag(
        "--live",
        help="watch the run while it trains: changes of pace, ranks that lag, waiting for input, hangs. What is found "
        "is printed, recorded in the run folder, and shown by traceops top (docs/live.md)",
    ),
    flag(
        "--no-light",
        help="on GPUs: do not record the device alone for some steps after the last window. That recording (CUPTI) "
        "disturbs the steps little (docs/observe.md)",
    ),
    option(
        "--detach", action=argparse.BooleanOptionalAction,
        help="on GPUs: end CUPTI after the last window, which otherwise slows steps that are bound by their host. By "
        "default from CUDA 13.0 on; --detach from CUDA 12.6 on (docs/observe.md)",
    ),
    *(flag(_flag_of(name), help=f"record {text}") for name, text in RECORDING.items()),
))  # fmt: skip
_GLOBAL_BATCH = option(
    "--global-batch-size", type=positive, metavar="N",
    help="samples of all ranks in an optimizer step. Built-in strategies compute each rank's batch from it. "
    "A script does not see it; it is used for samples per second and by traceops scale",
)  # fmt: skip
RUN_OPTIONS = (_LAUNCH, _HANGS, _CAPTURE, _GLOBAL_BATCH)  # all but the script; those of the built-in training follow
_SCRIPT = option("script", nargs=argparse.REMAINDER, help="-- SCRIPT ARGS, or -- -m MODULE ARGS")
_NOT_IN_A_SERIES = {name: {"help": argparse.SUPPRESS} for name in ("--against", "--summarize", "--stop")}

RUN = Command(
    help="Profile every rank of a training: --strategy NAME, or -- my_script.py ARGS.",
    examples=("traceops run -- torchrun --nproc-per-node 4 train.py", "traceops run --nproc 2 -- train.py --lr 3"),
    shown=("--nproc", "--name", "--out", "--overwrite", "--skip-first", "--active", "--env", "--against", "--dry-run",
           "--kill-on-hang", "--live"),
    options=(
        *RUN_OPTIONS,
        Group("Slurm", (
            flag("--slurm", help="write NAME.sbatch and exit"),
            flag("--submit", help="write NAME.sbatch, submit it and exit"),
            option("--nodes", type=int, metavar="N", help="nodes of the job (1)"),
            option(
                "--gpus-per-node", type=int, metavar="N",
                help="GPUs of a node; as many ranks, unless --nproc says",
            ),
            option("--time", metavar="T", help="time limit of the job: minutes, or H:M:S"),
            option("--partition", metavar="NAME", help="Slurm partition"),
            option("--account", metavar="NAME", help="Slurm account"),
        ), """Write a script for sbatch that runs this command as one task a node. Without --slurm or --submit these
options do nothing. Inside a job, srun --ntasks-per-node=1 traceops run ... needs none of them."""),
        flag("-v", "--verbose", help="also print the command and the environment of the ranks"),
        flag("-q", "--quiet", help="no progress, and of the end only what went wrong"),
        _SCRIPT,
    ),
    extend=add_training_arguments,
)  # fmt: skip

SWEEP = Command(
    help="Train all combinations of some settings, each captured, and say which is best and why.",
    examples=("traceops sweep --vary-arg batch-size=8,16,32 --nproc 2 -- train.py",
              "traceops sweep --vary strategy=pytorch_ddp,zero3 --nproc 2"),
    shown=("--vary", "--vary-arg", "--budget", "--repeat", "--nproc", "--name", "--overwrite", "--dry-run"),
    epilog="""All other options are those of `traceops run` (traceops run --help). They hold for all trainings.

  traceops sweep --vary strategy=pytorch_ddp,zero3 --vary workers=0,2,4 --nproc 2
  traceops sweep --vary-arg batch-size=8,16,32 --budget 20m --nproc 2 -- train.py --epochs 1

To continue an interrupted sweep, run the same command again. Folders: profile/NAME/<combination>_<n>, reports/NAME.""",
    options=(
        option(
            "--vary", action="append", default=[], metavar="KEY=V,V",
            help="an option of traceops run and the values to try; repeatable",
        ),
        option(
            "--vary-arg", action="append", default=[], metavar="KEY=V,V",
            help="the same for an option of the script: replaces {KEY} in its arguments, or appends --KEY V; "
            "repeatable",
        ),
        option(
            "--budget", metavar="TIME",
            help="successive halving within this time (20m, 1h, 90s): train all combinations once, then the better "
            "half again, until one is left. Without it: train every combination --repeat times",
        ),
        *changed(
            RUN_OPTIONS,
            {
                **_NOT_IN_A_SERIES,
                "--repeat": {"help": "trainings of each combination, in turn (1, and then the two best again)"},
            },
        ),
        _SCRIPT,
        flag("-q", "--quiet", help="print the page's path only"),
    ),
    extend=add_training_arguments,
)  # fmt: skip


def _samples(text: str) -> float:
    """5000000000 or 5e9. Raises ArgumentTypeError for what is no number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above 0, for example 5e9")
    return number


SCALE = Command(
    help="Say how a training scales: speedup, efficiency, where the rest goes, what it costs, the next size.",
    examples=("traceops scale profile/n1 profile/n2 profile/n4",
              "traceops scale --nproc 1,2,4 --global-batch-size 64 -- train.py"),
    shown=("--nproc", "--global-batch-size", "--repeat", "--price", "--predict", "--name", "--output", "--quiet"),
    epilog="""RUN: run folders of one training with different numbers of ranks, a folder of them, or a table (CSV, TSV,
Markdown, - for standard input) with columns such as gpus and samples/s. Several runs of a size give intervals. With
--nproc 1,2,4 traceops trains the sizes first, in turn, --repeat times each (3). Then the script stands after --, and
all other options are those of `traceops run`:

  traceops scale profile/n1 profile/n2 profile/n4 --price 2.50
  traceops scale --nproc 1,2,4 --global-batch-size 64 --strategy pytorch_ddp
  traceops scale --nproc 1,2 --global-batch-size 64 -- train.py --epochs 1
  traceops scale throughput.csv --price 2.50 --samples 5e9""",
    options=(
        *changed(RUN_OPTIONS, {
            **_NOT_IN_A_SERIES,
            "--nproc": {"type": str, "metavar": "N,N,…", "help": "train with each of these numbers of ranks"},
            "--repeat": {"help": "trainings of each size, in turn (3)"},
        }),
        option("words", nargs="*", metavar="RUN", help="existing runs; with --nproc: the script and its arguments"),
        option(
            "--price", metavar="P",
            help="price of one GPU (rank) for an hour, in any currency, or a cloud instance (US dollars on demand, "
            "docs/runs.md); shows the cost of a million samples",
        ),
        option("--samples", type=_samples, metavar="N", help="samples of the whole training; shows its hours and cost"),
        option(
            "--predict", type=positive, action="append", default=[], metavar="N",
            help="number of ranks to predict (twice the largest run); repeatable",
        ),
        option("-o", "--output", metavar="DIR", help="where the files go (reports/NAME)"),
        flag("-q", "--quiet", help="print the page's path only"),
    ),
    extend=add_training_arguments,
)  # fmt: skip

CAPTURE = Command(
    help="Record a window of a running job now, on all ranks from the same step.",
    examples=("traceops capture", "traceops capture profile/train --active 8"),
    options=(
        option("path", nargs="?", help="run folder of the running job (the only running one below profile/)"),
        option("--job", metavar="NAME", help="the run called NAME: profile/NAME"),
        option(
            "--warmup", type=int, default=2, metavar="N",
            help="steps with the profiler on before the window, not recorded (%(default)s)",
        ),
        option("--active", type=int, default=4, metavar="N", help="steps to record (%(default)s)"),
        flag(
            "--with-memory",
            help="record the stack of each GPU allocation from now on, and save a memory snapshot at the window's end",
        ),
        flag("--no-wait", help="return at once; do not wait for the window"),
    ),
)  # fmt: skip

MEMORY = Command(
    help="Estimate the GPU memory that a training needs, without a GPU; or show what a run or a snapshot held.",
    examples=("traceops memory --nproc 8 --gpu H100 -- train.py", "traceops memory profile/train"),
    shown=("--nproc", "--gpu", "--capacity", "--params", "--rank", "--strategy", "--no-changes", "--json"),
    options=(
        option(
            "words", nargs="*", metavar="SNAPSHOT|RUN",
            help="a pickle of torch.cuda.memory._dump_snapshot: show what held the memory; two of them: what the "
            "second holds more; a run folder: what its ranks held; -- SCRIPT ARGS or -- -m MODULE ARGS: what a script "
            "would need (it runs on fake tensors)",
        ),
        Group("memory", (
            option("--nproc", type=positive, default=1, metavar="N", help="ranks in all, one a GPU (%(default)s)"),
            option("--capacity", metavar="SIZE", help="memory of a GPU, such as 47.4GiB (2³⁰ bytes) or 80GB (10⁹)"),
            option(
                "--gpu", metavar="NAME",
                help="the same by name: H100, 24GB, or a cloud instance (p4d.24xlarge), which also sets --nproc",
            ),
            option(
                "--params", type=float, metavar="N",
                help="count only parameters, gradients and optimizer state of a model with N parameters, such as "
                "8.36e9",
            ),
            option("--rank", type=int, metavar="N", help="with a script: the rank to run (0)"),
            option(
                "--global-batch-size", type=positive, metavar="N",
                help="samples of all ranks in an optimizer step; each rank's batch is computed from it",
            ),
            flag("--no-changes", help="do not look for changes that make it fit"),
            option("--json", type=Path, metavar="FILE", help="also write the result to this file (docs/formats.md)"),
        )),
    ),
    extend=add_training_arguments,
)  # fmt: skip

_WATCHED = "run folder of a job that was started with --live (the only one below profile/)"
LIVE = Command(
    help="Watch a running job: changes of pace, ranks that lag, waiting for input, memory, hangs.",
    examples=("traceops live profile/train", "traceops live profile/train --metrics 9464"),
    options=(
        option("path", nargs="?", help=_WATCHED),
        option("--metrics", metavar="[HOST:]PORT", help="serve metrics for Prometheus there (host: 127.0.0.1)"),
        option("--otlp", metavar="URL", help="send metrics every 10 s to this collector of OpenTelemetry (OTLP/HTTP)"),
        option("--webhook", metavar="URL", help="post each detection there as JSON, which Slack takes too"),
        option(
            "--windows", type=int, default=4, metavar="N",
            help="windows to record per hour, each after a detection, with a pause that doubles; 0: none (%(default)s)",
        ),
        option("--seconds", type=float, metavar="S", help="end after so long (when the job ends)"),
    ),
)  # fmt: skip
TOP = Command(
    help="Show a running job in the terminal: pace, lag, input, memory and goodput of each rank.",
    examples=("traceops top", "traceops top profile/train --sort pace"),
    options=(
        option("path", nargs="?", help=_WATCHED),
        flag("--once", help="print once and end"),
        option(
            "--sort", choices=("rank", "step", "pace", "input", "memory"), default="rank", help="order (%(default)s)"
        ),
    ),
)  # fmt: skip
COMMANDS = {"run": RUN, "capture": CAPTURE, "live": LIVE, "top": TOP, "sweep": SWEEP, "scale": SCALE, "memory": MEMORY}


def run_parser() -> argparse.ArgumentParser:
    """All options of run but the script, for who looks one up by name."""
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser, RUN_OPTIONS)
    add_training_arguments(parser)
    return parser
