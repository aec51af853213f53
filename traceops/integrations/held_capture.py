"""Captures that a trainer's callback or tracker holds open while it trains, and more accumulation on a lone rank."""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from traceops.capture.guard import say
from traceops.capture.schedule import Schedule
from traceops.capture.session import Capture, capture, capture_here
from traceops.capture.settings import ENV, CaptureSettings, from_environment
from traceops.capture.steps import on_training_step
from traceops.core.errors import UsageError
from traceops.core.live_pulses import EVENTS_FILE
from traceops.core.rank_files import RANKS_ENV, effective_batches, ranks_replaced
from traceops.words.catalogue import fill


class _Held:
    """A capture that is closed at the latest as Python ends, where the trainer says no goodbye."""

    _capture: Capture | None = None

    def _hold(self, entered: Capture) -> None:
        self._capture = entered
        atexit.register(self._leave)

    def close(self, error: BaseException | None = None) -> None:
        """End the capture, because of `error` if there is one."""
        held, self._capture = self._capture, None
        if held is not None:
            atexit.unregister(self._leave)
            self._ends()
            held.close(error)

    def _ends(self) -> None:
        """What is to be done just before the capture ends."""

    def _leave(self) -> None:
        self.close(getattr(sys, "last_value", None))


class HeldCapture(_Held):
    """Opened with the training, closed with it. out, schedule, options: as for `traceops.capture`."""

    def __init__(
        self, out: str | os.PathLike[str] | None, schedule: Schedule | None, options: Mapping[str, Any]
    ) -> None:
        self._out, self._schedule, self._options = out, schedule, dict(options)
        self._times = 0

    def open(self, training: Mapping[str, Any]) -> None:
        """Begin; does nothing where it is open. training: what run.json keeps about it. A second training goes to
        ``<out>-2``, and so on. `traceops run` has one folder, which keeps the first. Raises UsageError where the first
        cannot be captured; another one trains on without."""
        if self._capture is not None:
            return
        self._times += 1
        if self._times > 1 and ENV in os.environ:
            say(fill("integrations", "second", n=self._times))
            return
        out = self._out if self._out is None or self._times == 1 else f"{os.fspath(self._out)}-{self._times}"
        try:
            held = capture(out, schedule=self._schedule, manifest=training, **self._options).__enter__()
        except UsageError as error:
            if self._times == 1:
                raise
            say(fill("integrations", "refused", n=self._times, error=error))
            return
        self._detections = Detections(held.out if os.environ.get("RANK", "0") == "0" else None)
        self._hold(held)

    def step(self, samples: int | None = None) -> None:
        """A training step ended."""
        if self._capture is not None:
            self._capture.step(samples)
            self._detections.look()


_EVERY_S = 2.0


class Detections:
    """What a monitor of the run reports, in the trackers that the program has in use: W&B, MLflow, TensorBoard.

    It imports none of them and begins no run. out: the run folder; None on a rank that reports nothing.
    """

    def __init__(self, out: Path | None) -> None:
        self._path = None if out is None else out / EVENTS_FILE
        self._at = self._count = self._steps = 0
        self._due_s = time.monotonic()

    def look(self) -> None:
        """A step ended: pass on what is new, every other second at most."""
        self._steps += 1
        now_s = time.monotonic()
        if self._path is None or now_s < self._due_s:
            return
        self._due_s = now_s + _EVERY_S
        with suppress(OSError, ValueError):
            if self._path.stat().st_size <= self._at:
                return
            with self._path.open("rb") as file:
                file.seek(self._at)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._at += len(whole)
            for event in map(json.loads, whole.splitlines()):
                if event["page"]:
                    self._pass_on(event["message"])

    def _pass_on(self, message: str) -> None:
        self._count += 1
        for tracker in (self._to_wandb, self._to_mlflow, self._to_tensorboard):
            with suppress(Exception):  # a tracker's error is none of the training
                tracker(message)

    def _to_wandb(self, message: str) -> None:
        if (run := getattr(sys.modules.get("wandb"), "run", None)) is not None:
            run.log({"traceops/detections": self._count}, commit=False)  # with the program's own next row
            run.summary["traceops/detected"] = message

    def _to_mlflow(self, message: str) -> None:
        if (mlflow := sys.modules.get("mlflow")) is not None and mlflow.active_run() is not None:
            mlflow.log_metric("traceops/detections", self._count, step=self._steps)
            mlflow.set_tag("traceops.detected", message)

    def _to_tensorboard(self, message: str) -> None:
        for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
            kind: Any = getattr(sys.modules.get(name), "SummaryWriter", None)
            for writer in [] if kind is None else gc.get_referrers(kind):
                if isinstance(writer, kind) and writer.file_writer is not None:  # one that was closed would begin anew
                    writer.add_text("traceops/detected", message, self._steps)


_DONE = "_traceops_fallback"  # on the trainer's object: it was decided once, and stays


def accumulate_more(
    holder: Any, option: str, *, asked: bool | None, batch: int | None = None, obstacle: str | None = None
) -> None:
    """Multiply the option of `holder` by the ranks that this one stands for, and say so; else do nothing.

    holder: what the trainer reads the option from, changed once only. asked: the callback's `accumulate`; with None
    a script whose own file names RANKS_ENV is left alone, because it multiplies itself. batch: samples of a
    micro-batch. obstacle: why it stays, which is said in place of the table.
    """
    if (ranks := ranks_replaced()) is None or asked is False or getattr(holder, _DONE, False):
        return
    setattr(holder, _DONE, True)
    if asked is None and _script_reads_it():
        known = {"option": option, "value": getattr(holder, option), "script": sys.argv[0], "variable": RANKS_ENV}
        return _say(fill("integrations", "script_reads", **known))
    before = int(getattr(holder, option))
    if obstacle is not None:
        return _say(fill("integrations", "stays", option=option, value=before, obstacle=obstacle))
    setattr(holder, option, before * ranks)
    _say(fill("integrations", "multiplied", ranks=ranks, option=option, value=before * ranks, before=before))
    for line in effective_batches(ranks, before, batch):
        _say(line)


def _script_reads_it() -> bool:
    try:
        return RANKS_ENV in Path(sys.argv[0]).read_text(errors="replace")
    except (OSError, IndexError):
        return False


def _say(line: str) -> None:
    print(f"traceops: {line}", file=sys.stderr, flush=True)


class AutomaticCapture(_Held):
    """Open from `open` to `close`. Under ``traceops run`` it leaves the work to the capture that is there."""

    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = from_environment(settings)

    def open(self) -> None:
        """Begin; does nothing where a capture is open in this process."""
        if capture_here() is not None:
            return
        session = Capture(self._settings, automatic=True).__enter__()
        boundary = on_training_step(session.step, session.guard, session.skipped, self._settings.step_on)
        session.on_failure(boundary.remove)
        session.ends_of_steps = boundary.ends
        self._boundary = boundary
        self._hold(session)

    def _ends(self) -> None:
        self._boundary.remove()
