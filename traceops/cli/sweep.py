"""`traceops sweep`: trains combinations of settings in turn and says which is best, and why."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path

from traceops.cli.run import Decided, decide, make_room, power_text
from traceops.cli.training_options import run_parser
from traceops.cli.trainings import Trainings, report_all
from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.run_lock import held
from traceops.core.text import printable
from traceops.launch.display import Screen
from traceops.launch.folder import run_defaults, short_path
from traceops.launch.session import launch
from traceops.render.runs.sweep import print_sweep, write_sweep
from traceops.runs.sweep import Point, SweepSearch, axes_of, halve, points_of, script_words, sweep_document, try_all
from traceops.train.config import TrainConfig

_text = Wording("cli", "sweep")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def main(args: argparse.Namespace) -> int:
    """Returns 0 where at least one combination finished, 1 where none did, 130 where the user ended it.

    Raises UsageError for every combination that cannot work, before anything is trained.
    """
    budget_s = None if args.budget is None else seconds_of(args.budget)
    points = points_of(axes_of(args.vary, args.vary_arg))
    repeat = 1 if args.repeat is None else args.repeat
    if repeat < 1:
        raise UsageError(f"--repeat {repeat}: must be a whole number, 1 or more")
    return sweep(args, points, repeat, budget_s)


def sweep(args: argparse.Namespace, points: Sequence[Point], repeat: int, budget_s: float | None) -> int:
    """Train the points, report each training, and the sweep."""
    trainings = prepare(args, points)
    if args.dry_run:
        for decided in trainings.plans:
            print(decided.plan.shell(os.environ))
        return 0
    with held(trainings.folder):
        trainings.open(overwrite=args.overwrite)
        if not args.quiet and len(points) > 1:
            Screen().say(power_text(repeat, bool(trainings.plans[0].plan.gpus)))
        found = train(trainings, repeat, budget_s)
    reports, rows = report_all(trainings.folder, found.trials)
    document = sweep_document(trainings.folder.name, trainings.state, points, found, rows)
    written = write_sweep(document, reports)
    if args.quiet:
        print(printable(str(written[0])))
    else:
        print_sweep(document, sys.stdout, written[0])
    if trainings.ended:
        return trainings.ended
    return 0 if document.best is not None else 1


def prepare(args: argparse.Namespace, points: Sequence[Point]) -> Trainings:
    """What is to be trained, every combination checked. Raises UsageError naming the one that cannot work."""
    if args.against is not None:
        raise UsageError("--against is for traceops run: a sweep and traceops scale train one code only")
    if args.nnodes > 1:
        raise UsageError(
            f"--nnodes {args.nnodes}: trainings in turn run on one machine only. On several, start each with "
            "traceops run, then give the run folders to traceops analyze or scale"
        )
    script = args.script[1:] if args.script[:1] == ["--"] else list(args.script)
    if not script and any(axis.of_script for axis, _ in points[0].settings):
        raise UsageError("--vary-arg is for the options of a script; give the script after --")
    for axis, _ in points[0].settings:
        if script and not axis.of_script and axis.key.replace("-", "_") in TrainConfig.__dataclass_fields__:
            values = dict.fromkeys(value for point in points for one, value in point.settings if one is axis)
            raise UsageError(
                f"--vary {axis.key} is for built-in strategies; for an option of the script: traceops sweep "
                f"--vary-arg {axis.key}={','.join(values)} -- {shlex.join(script)}"
            )
    name = args.name or ("sweep" if args.out is None else Path(args.out).name)
    folder = Path(run_defaults().folder, name).absolute() if args.out is None else Path(args.out).absolute()
    plans = [_decided(args, point, script, folder, name) for point in points]
    shared = tuple(
        f"--{key.replace('_', '-')}={value}"
        for key, value in sorted(vars(args).items())
        if key not in _NOT_SHARED and value not in (None, False, [], ())
    )
    return Trainings(folder, tuple(points), tuple(plans), (*shared, *script), train=_train)


_NOT_SHARED = frozenset(
    {"command", "vary", "vary_arg", "budget", "overwrite", "dry_run", "script", "repeat", "out", "name"}
)


def _decided(args: argparse.Namespace, point: Point, script: Sequence[str], folder: Path, name: str) -> Decided:
    own = copy(args)
    own.env = list(args.env)
    own.name, own.out, own.overwrite, own.repeat = (f"{name}-{point.label}", str(folder / point.label), True, None)
    own.script = ["--", *words] if (words := script_words(point, script)) else []
    try:
        for axis, value in point.settings:
            if not axis.of_script:
                _set(own, axis.key, value)
        return decide(own)
    except UsageError as error:
        raise UsageError(f"{point.label} cannot work: {error}") from error


def _set(args: argparse.Namespace, key: str, value: str) -> None:
    """One option of `traceops run` as if it stood on the command line. Raises UsageError."""
    action = _actions().get(key.lstrip("-").replace("_", "-"))
    if action is None:
        raise UsageError(f"--vary {key}: traceops run has no option of that name")
    if action.nargs == 0:
        if value not in ("true", "false"):
            raise UsageError(f"{key}={value}: use true or false")
        setattr(args, action.dest, value == "true")
        return
    convert: Callable[[str], object] = action.type if callable(action.type) else str
    try:
        made = convert(value)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{key}={value}: {error}") from error
    except ValueError as error:
        what = {int: "a whole number", float: "a number"}.get(convert, "another value")  # type: ignore[call-overload]
        raise UsageError(f"{key}={value}: must be {what}") from error
    if action.choices is not None and made not in action.choices:
        raise UsageError(f"{key}={value}: use one of {', '.join(map(str, action.choices))}")
    setattr(args, action.dest, [*args.env, made] if action.dest == "env" else made)


_FIXED = frozenset({"out", "name", "overwrite", "against", "dry-run", "repeat", "help"})


def _actions() -> dict[str, argparse.Action]:
    named = {o.removeprefix("--"): a for a in run_parser()._actions for o in a.option_strings if o.startswith("--")}
    return {name: action for name, action in named.items() if name not in _FIXED}


def _train(decided: Decided) -> int:
    with held(decided.plan.out) as lock:
        make_room(decided)
        return launch(decided.plan, advise=False, lock=lock)


def train(trainings: Trainings, repeat: int, budget_s: float | None) -> SweepSearch:
    """Train what is still to be trained, in turn."""
    done, screen = trainings.state.trials, Screen()
    if done:
        screen.say(_text("done", n=len(done), folder=short_path(trainings.folder)))
    count = len(trainings.points)
    if budget_s is None:
        return try_all(count, repeat, trainings.attempt, done)
    return halve(count, budget_s, trainings.attempt, time.monotonic, done)


def seconds_of(text: str) -> float:
    """'20m', '1.5h', '90s' or '90' in seconds. Raises UsageError."""
    number, factor = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1.0)
    try:
        seconds = float(number) * factor
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--budget {text}: give a time above 0, for example 20m, 1h or 90s")
    return seconds
