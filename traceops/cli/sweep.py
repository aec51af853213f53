"""`traceops sweep`: trains combinations of settings in turn and says which is best, and why."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traceops.capture.manifest import write_json
from traceops.cli.analyze import report_each
from traceops.cli.arguments import output_folder
from traceops.cli.run import Decided, decide, make_room, power_text
from traceops.cli.training_options import run_parser
from traceops.core.claims import Wording
from traceops.core.errors import InputError, TraceopsError, UsageError
from traceops.core.files import read_regular
from traceops.core.run_lock import held
from traceops.core.text import printable
from traceops.launch.display import Screen
from traceops.launch.folder import run_defaults, short_path
from traceops.launch.session import launch
from traceops.pipeline.observed_run import mean_step_ms
from traceops.pipeline.run_info import samples_per_step
from traceops.render.runs.files import write_runs
from traceops.render.runs.sweep import print_sweep, write_sweep
from traceops.runs.find import FoundRun
from traceops.runs.row import RunRow
from traceops.runs.sweep import (
    TRIALS,
    Point,
    SweepSearch,
    SweepState,
    SweepTrial,
    TrialStatus,
    axes_of,
    best_again,
    halve,
    points_of,
    script_words,
    sweep_document,
    try_all,
)
from traceops.traces.run_manifest import is_step_time
from traceops.train.config import TrainConfig

_text = Wording("cli", "sweep")
_BY_USER = (129, 130, 131, 143)  # Ctrl-C and its like
_STATUS: dict[str, TrialStatus] = {"finished": "finished", "hung": "hung"}
_MOST_REASON = 300


class Trainings(Struct):
    """What is to be trained and what was; `ended` is the exit code where the user ended it, else 0. command: what all
    share. train: runs one, returns its exit code."""

    folder: Path
    points: tuple[Point, ...]
    plans: tuple[Decided, ...]
    command: tuple[str, ...]
    train: Callable[[Decided], int]
    ended: int = 0
    trials: list[SweepTrial] = field(default_factory=list)

    @property
    def state(self) -> SweepState:
        """What trials.json holds."""
        return SweepState(
            command=self.command, points=tuple(point.words for point in self.points), trials=tuple(self.trials)
        )

    def open(self, *, overwrite: bool, again: bool = False) -> None:
        """Go on where this sweep ended, if it has begun; `again`: what failed is tried once more. Raises UsageError
        where the folder holds another sweep."""
        file = self.folder / TRIALS
        if (before := _read(file)) is not None and overwrite:
            for trial in before.trials:
                shutil.rmtree(self.folder / Path(trial.folder).name, ignore_errors=True)
            before = None
        if before is not None:
            if (before.command, before.points) != (self.state.command, self.state.points):
                raise UsageError(_text("other_sweep", folder=short_path(self.folder)))
            self.trials = [trial for trial in before.trials if trial.status == "finished" or not again]
        self._save()

    def attempt(self, point: int, repeat: int) -> SweepTrial | None:
        """Train one combination once; None where the user ended it."""
        label = self.points[point].label
        folder = f"{label}_{repeat}"
        decided = self.plans[point]
        plan = replace(decided.plan, out=self.folder / folder, name=f"{self.folder.name}-{folder}")
        Screen().say(f"sweep: {label}" + (f", training {repeat}" if repeat > 1 else ""))
        began = time.monotonic()
        if (code := self.train(replace(decided, plan=plan))) in _BY_USER:
            self.ended = code
            Screen().say(_text("stopped", n=len(self.trials)))
            return None
        # Read the outcome of a training from its run.json.
        try:
            manifest: dict[str, Any] = json.loads(read_regular(plan.out / "run.json"))
        except (OSError, ValueError):
            manifest = {}
        status = "failed" if code else _STATUS.get(str(manifest.get("status")), "failed")
        samples, step = samples_per_step(manifest), None
        if status == "finished":
            recorded = manifest.get("profiled_step_ms")
            step = mean_step_ms(plan.out, manifest) or (recorded if is_step_time(recorded) else None)
        trial = SweepTrial(
            point=point, repeat=repeat, folder=folder, status="hung" if code == 124 else status, exit_code=code,
            seconds=round(time.monotonic() - began, 3), reason="" if status == "finished" else _reason(plan.out, code),
            step_ms=step, samples_per_s=round(1e3 * samples / step, 3) if step and samples else None,
        )  # fmt: skip
        self.trials.append(trial)
        self._save()
        return trial

    def _save(self) -> None:
        write_json(self.folder / TRIALS, msgspec.to_builtins(self.state))


def report_all(folder: Path, trials: Sequence[SweepTrial]) -> tuple[Path, list[RunRow]]:
    """A report of each training that finished; the folder that they lie in, and a row of each."""
    reports = Path(short_path(output_folder(str(folder), folder.name)))
    places = [FoundRun(str(folder / t.folder), t.folder) for t in trials if t.status == "finished"]
    if rows := report_each(places, reports):
        write_runs(rows, reports, folder.name)
    return reports, rows


def _read(file: Path) -> SweepState | None:
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(read_regular(file), type=SweepState)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}); remove it to begin anew") from error


def _reason(out: Path, code: int) -> str:
    """What the run died of, by its logs and evidence; else its exit code."""
    from traceops.hangs.diagnose import diagnose  # few trainings fail
    from traceops.report.hang_text import hang_sentence

    try:
        found = diagnose(out, jobs=1)
    except TraceopsError:
        return f"it ended with {code}"
    return hang_sentence(found)[:_MOST_REASON] if found.roots else f"it ended with {code}"


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def main(args: argparse.Namespace) -> int:
    """Returns 0 where at least one combination finished, 1 where none did, 130 where the user ended it. Raises
    UsageError for every combination that cannot work, before anything is trained."""
    budget_s = None if args.budget is None else seconds_of(args.budget)
    points = points_of(axes_of(args.vary, args.vary_arg))
    if args.repeat is not None and args.repeat < 1:
        raise UsageError(f"--repeat {args.repeat}: must be a whole number, 1 or more")
    return sweep(args, points, args.repeat, budget_s)


def sweep(args: argparse.Namespace, points: Sequence[Point], repeat: int | None, budget_s: float | None) -> int:
    """Train the points, report each training, and the sweep."""
    trainings = prepare(args, points)
    if args.dry_run:
        for decided in trainings.plans:
            print(decided.plan.shell(os.environ))
        return 0
    with held(trainings.folder):
        trainings.open(overwrite=args.overwrite)
        if not args.quiet and len(points) > 1:
            Screen().say(power_text(repeat or 2, bool(trainings.plans[0].plan.gpus)))
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
        raise UsageError(_text("one_code"))
    if args.nnodes > 1:
        raise UsageError(_text("one_machine", nodes=args.nnodes))
    script = args.script[1:] if args.script[:1] == ["--"] else list(args.script)
    _check_axes(points, script)
    name = args.name or ("sweep" if args.out is None else Path(args.out).name)
    folder = Path(run_defaults().folder, name).absolute() if args.out is None else Path(args.out).absolute()
    plans = [_decided(args, point, script, folder, name) for point in points]
    shared = tuple(
        f"--{key.replace('_', '-')}={value}"
        for key, value in sorted(vars(args).items())
        if key not in _NOT_SHARED and value not in (None, False, [], ())
    )
    return Trainings(folder, tuple(points), tuple(plans), (*shared, *script), train=_train)


def _check_axes(points: Sequence[Point], script: Sequence[str]) -> None:
    """Raises UsageError for an option of a script where there is none, and for one of strategies beside a script."""
    if not script and any(axis.of_script for axis, _ in points[0].settings):
        raise UsageError(_text("no_script"))
    for axis, _ in points[0].settings:
        if script and not axis.of_script and axis.key.replace("-", "_") in TrainConfig.__dataclass_fields__:
            values = dict.fromkeys(value for point in points for one, value in point.settings if one is axis)
            raise UsageError(_text("built_in", key=axis.key, values=",".join(values), script=shlex.join(script)))


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
    if (action := _actions().get(key.lstrip("-").replace("_", "-"))) is None:
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


def train(trainings: Trainings, repeat: int | None, budget_s: float | None) -> SweepSearch:
    """Train what is still to be trained, in turn; without `repeat` and a budget the two best again."""
    done, screen = trainings.state.trials, Screen()
    if done:
        screen.say(_text("done", n=len(done), folder=short_path(trainings.folder)))
    count = len(trainings.points)
    if budget_s is None:
        found = try_all(count, repeat or 1, trainings.attempt, done)
        return best_again(found, count, trainings.attempt) if repeat is None and found.complete else found
    return halve(count, budget_s, trainings.attempt, time.monotonic, done)


def seconds_of(text: str) -> float:
    """'20m', '1.5h', '90s' or '90' in seconds. Raises UsageError."""
    number, factor = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1.0)
    try:
        seconds = float(number) * factor
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(_text("budget", text=text))
    return seconds
