"""The options of the commands that train, or have a training recorded; sweep and scale take those of run too."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from traceops.capture.schedule import STEP_ON, Schedule
from traceops.cli.declared import Command, Group, add_options, changed, flag, option, positive
from traceops.launch.launchers import NAMES as LAUNCHERS
from traceops.train.options import add_training_arguments, flag_of

RECORDING = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules", "with_memory")
STEPS = ("skip_first", "unprofiled", "warmup", "active", "repeat")


def _number(text: str, must_be: str, *, zero: bool) -> float:
    """From 0, or above. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf") or (value == 0 and not zero):
        raise argparse.ArgumentTypeError(f"must be {must_be}")
    return value


_seconds = partial(_number, must_be="a number of seconds, 0 or more", zero=True)
_samples = partial(_number, must_be="a number above 0, for example 5e9", zero=False)
_LAUNCH = Group("launch", (
    option("--nproc", type=int, metavar="N"),
    option("--nnodes", type=int, default=1, metavar="N"),
    option("--node-rank", type=int, metavar="N"),
    option("--rdzv-backend", metavar="NAME"),
    option("--rdzv-endpoint", metavar="HOST:PORT"),
    option("--rdzv-id", metavar="ID"),
    option("--master-addr", metavar="HOST"),
    option("--master-port", type=int, metavar="PORT"),
    flag("--gather"),
    option("--gather-port", type=positive, metavar="PORT"),
    option("--launcher", choices=LAUNCHERS, default="torchrun"),
    option("--env", action="append", default=[], metavar="KEY=VALUE"),
    option("--settings", metavar="FILE"),
    option("--fallback", choices=("single",)),
    option("--name"),
    option("--out", metavar="DIR"),
    flag("--overwrite"),
    flag("--no-log-files"),
    flag("--all-ranks"),
    flag("--no-prefix"),
    flag("--summarize"),
    option("--against", metavar="GITREF"),
    flag("--dry-run"),
    option("--stop", nargs="?", const="", metavar="DIR"),
))  # fmt: skip
_HANGS = Group("hangs", (
    option("--hang-timeout", type=_seconds, metavar="S"),
    option("--init-timeout", type=_seconds, metavar="S"),
    flag("--kill-on-hang"),
))  # fmt: skip
_QUICK = ", ".join(f"{flag_of(name)} {getattr(Schedule.quick(), name)}" for name in STEPS if name != "repeat")
_CAPTURE = Group("capture", (
    flag("--quick", facts={"stands_for": _QUICK}),
    option("--step-on", choices=STEP_ON, default="optimizer"),
    *(option(flag_of(name), type=int, metavar="N", facts={"usual": getattr(Schedule(), name)}) for name in STEPS),
    flag("--no-observe"),
    flag("--live"),
    flag("--no-light"),
    option("--detach", action=argparse.BooleanOptionalAction),
    *(flag(flag_of(name)) for name in RECORDING),
))  # fmt: skip
_GLOBAL_BATCH = option("--global-batch-size", type=positive, metavar="N")
RUN_OPTIONS = (_LAUNCH, _HANGS, _CAPTURE, _GLOBAL_BATCH)  # all but the script; those of the built-in training follow
_IN_A_SERIES = changed(
    RUN_OPTIONS, {name: {"help": argparse.SUPPRESS} for name in ("--against", "--summarize", "--stop")}
)
_SCRIPT = option("script", nargs=argparse.REMAINDER)
_QUIET = flag("-q", "--quiet")

RUN = Command(
    "run",
    shown=("--nproc", "--name", "--out", "--overwrite", "--skip-first", "--active", "--env", "--against", "--dry-run",
           "--kill-on-hang", "--live"),
    options=(
        *RUN_OPTIONS,
        Group("Slurm", (
            flag("--slurm"),
            flag("--submit"),
            option("--nodes", type=int, metavar="N"),
            option("--gpus-per-node", type=int, metavar="N"),
            option("--time", metavar="T"),
            option("--partition", metavar="NAME"),
            option("--account", metavar="NAME"),
        )),
        flag("-v", "--verbose"),
        _QUIET,
        _SCRIPT,
    ),
    extend=add_training_arguments,
)  # fmt: skip

SWEEP = Command(
    "sweep",
    shown=("--vary", "--vary-arg", "--budget", "--repeat", "--nproc", "--name", "--overwrite", "--dry-run"),
    options=(
        option("--vary", action="append", default=[], metavar="KEY=V,V"),
        option("--vary-arg", action="append", default=[], metavar="KEY=V,V"),
        option("--budget", metavar="TIME"),
        *_IN_A_SERIES,
        _SCRIPT,
        _QUIET,
    ),
    extend=add_training_arguments,
)

SCALE = Command(
    "scale",
    shown=("--nproc", "--global-batch-size", "--repeat", "--price", "--predict", "--name", "--output", "--quiet"),
    options=(
        *changed(_IN_A_SERIES, {"--nproc": {"type": str, "metavar": "N,N,…"}}),
        option("words", nargs="*", metavar="RUN"),
        option("--price", metavar="P"),
        option("--samples", type=_samples, metavar="N"),
        option("--predict", type=positive, action="append", default=[], metavar="N"),
        option("-o", "--output", metavar="DIR"),
        _QUIET,
    ),
    extend=add_training_arguments,
)

CAPTURE = Command("capture", (
    option("path", nargs="?"),
    option("--job", metavar="NAME"),
    option("--warmup", type=int, default=2, metavar="N"),
    option("--active", type=int, default=4, metavar="N"),
    flag("--with-memory"),
    flag("--no-wait"),
))  # fmt: skip

MEMORY = Command(
    "memory",
    shown=("--nproc", "--gpu", "--capacity", "--params", "--rank", "--strategy", "--no-changes", "--json"),
    options=(
        option("words", nargs="*", metavar="SNAPSHOT|RUN"),
        Group("memory", (
            option("--nproc", type=positive, default=1, metavar="N"),
            option("--capacity", metavar="SIZE"),
            option("--gpu", metavar="NAME"),
            option("--params", type=float, metavar="N"),
            option("--rank", type=int, metavar="N"),
            _GLOBAL_BATCH,
            flag("--no-changes"),
            option("--json", type=Path, metavar="FILE"),
        )),
    ),
    extend=add_training_arguments,
)  # fmt: skip

LIVE = Command("live", (
    option("path", nargs="?"),
    option("--metrics", metavar="[HOST:]PORT"),
    option("--otlp", metavar="URL"),
    option("--webhook", metavar="URL"),
    option("--windows", type=int, default=4, metavar="N"),
    option("--seconds", type=float, metavar="S"),
))  # fmt: skip
TOP = Command("top", (
    option("path", nargs="?"),
    flag("--once"),
    option("--sort", choices=("rank", "step", "pace", "input", "memory"), default="rank"),
))  # fmt: skip
COMMANDS = {command.name: command for command in (RUN, CAPTURE, LIVE, TOP, SWEEP, SCALE, MEMORY)}


def run_parser() -> argparse.ArgumentParser:
    """All options of run but the script, for who looks one up by name."""
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser, RUN_OPTIONS, RUN.name)
    add_training_arguments(parser)
    return parser
