"""The trainings of a sweep: one after the other in folders of their own, what came of each kept as it ends."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traceops.capture.manifest import write_json
from traceops.cli.analyze import report_each
from traceops.cli.arguments import output_folder
from traceops.cli.run import Decided
from traceops.core.claims import Wording
from traceops.core.errors import InputError, TraceopsError, UsageError
from traceops.core.files import read_regular
from traceops.launch.display import Screen
from traceops.launch.folder import short_path
from traceops.pipeline.run_info import samples_per_step
from traceops.render.runs.files import write_runs
from traceops.runs.find import FoundRun
from traceops.runs.row import RunRow
from traceops.runs.sweep import TRIALS, Point, SweepState, SweepTrial, TrialStatus

_text = Wording("cli", "sweep")
_BY_USER = (129, 130, 131, 143)  # Ctrl-C and its like
_STATUS: dict[str, TrialStatus] = {"finished": "finished", "hung": "hung"}
_MOST_REASON = 300


class Trainings(Struct):
    """What is to be trained and what was; `ended` is the exit code where the user ended it, else 0.

    command: what all share. train: runs one, returns its exit code.
    """

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
        """Go on where this sweep ended, if it has begun; `again`: what failed is tried once more.

        Raises UsageError where the folder holds another sweep.
        """
        file = self.folder / TRIALS
        before = _read(file)
        if before is not None and overwrite:
            for trial in before.trials:
                shutil.rmtree(self.folder / Path(trial.folder).name, ignore_errors=True)
            before = None
        if before is not None:
            if (before.command, before.points) != (self.state.command, self.state.points):
                raise UsageError(
                    f"{short_path(self.folder)} holds another sweep; repeat its command to go on, choose another "
                    "--name, or add --overwrite"
                )
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
        code = self.train(replace(decided, plan=plan))
        if code in _BY_USER:
            self.ended = code
            Screen().say(_text("stopped", n=len(self.trials)))
            return None
        trial = _trial(plan.out, point, repeat, folder, code, time.monotonic() - began)
        self.trials.append(trial)
        self._save()
        return trial

    def _save(self) -> None:
        write_json(self.folder / TRIALS, msgspec.to_builtins(self.state))


def report_all(folder: Path, trials: Sequence[SweepTrial]) -> tuple[Path, list[RunRow]]:
    """A report of each training that finished; the folder that they lie in, and a row of each."""
    reports = Path(short_path(output_folder(str(folder), folder.name)))
    places = [FoundRun(str(folder / t.folder), t.folder) for t in trials if t.status == "finished"]
    rows = report_each(places, reports)
    if rows:
        write_runs(rows, reports, folder.name)
    return reports, rows


def _read(file: Path) -> SweepState | None:
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(read_regular(file), type=SweepState)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}); remove it to begin anew") from error


def _trial(out: Path, point: int, repeat: int, folder: str, code: int, seconds: float) -> SweepTrial:
    """What came of a training, from its run.json."""
    try:
        manifest: dict[str, Any] = json.loads(read_regular(out / "run.json"))
    except (OSError, ValueError):
        manifest = {}
    status = "failed" if code else _STATUS.get(str(manifest.get("status")), "failed")
    told, samples = manifest.get("unprofiled_step_ms"), samples_per_step(manifest)
    told = told or manifest.get("profiled_step_ms")
    step = float(told) if status == "finished" and isinstance(told, (int, float)) and told > 0 else None
    return SweepTrial(
        point=point,
        repeat=repeat,
        folder=folder,
        status="hung" if code == 124 else status,
        exit_code=code,
        seconds=round(seconds, 3),
        reason="" if status == "finished" else _reason(out, code),
        step_ms=step,
        samples_per_s=round(1e3 * samples / step, 3) if step and samples else None,
    )


def _reason(out: Path, code: int) -> str:
    """What the run died of, by its logs and evidence; else its exit code."""
    from traceops.hangs.diagnose import diagnose  # few trainings fail
    from traceops.report.hang_text import hang_sentence

    try:
        found = diagnose(out, jobs=1)
    except TraceopsError:
        return f"it ended with {code}"
    return hang_sentence(found)[:_MOST_REASON] if found.roots else f"it ended with {code}"
