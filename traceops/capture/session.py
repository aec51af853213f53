"""The capture of one rank, a context manager: times, profiles and documents its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from traceops.capture.abort import wait_for_device
from traceops.capture.detaching import Detaching
from traceops.capture.first_window import FirstWindow, may_have_gpu
from traceops.capture.folder import agreed_folder, claim, who_am_i, write_run
from traceops.capture.guard import contained, describe, say
from traceops.capture.last_words import report
from traceops.capture.later_windows import AskedWindows
from traceops.capture.open_manifest import OpenManifest
from traceops.capture.progress import ProgressWriter
from traceops.capture.recorder import Recorder
from traceops.capture.schedule import Schedule
from traceops.capture.settings import CaptureSettings
from traceops.capture.shortfall import in_the_way, shortfall
from traceops.capture.signals import saving_on_sigterm
from traceops.capture.step_ends import StepEnds
from traceops.capture.stepping import Stepping
from traceops.capture.watchers import Watchers
from traceops.core.capture_failure import CaptureOperation, failure_of
from traceops.core.errors import UsageError

_current: Capture | None = None

# For the device to finish when a training breaks off; a healthy one needs the rest of a step.
_SETTLE_S = 5.0
# Failures in which the profiler still works.
_BESIDE_IT = (CaptureOperation.TIME, CaptureOperation.MANIFEST, CaptureOperation.HEARTBEAT)


class Capture(Stepping):
    """One rank's capture; made by `capture`, used as a context manager."""

    def __init__(
        self, settings: CaptureSettings, training: dict[str, Any] | None = None, *, automatic: bool = False
    ) -> None:
        super().__init__(settings.schedule, automatic=automatic)
        self.settings = settings
        told = {"samples_per_step": settings.samples_per_step} if settings.samples_per_step else {}
        self._training = {**told, **(training or {})}
        self._out: Path | None = None
        self._scope = ExitStack()
        self._record: OpenManifest | None = None
        self._detach: Callable[[], None] | None = None
        self.ends_of_steps: Callable[[], StepEnds] = StepEnds  # what ended the steps, by whoever calls step()

    @property
    def out(self) -> Path | None:
        """The run folder, known once the capture has been entered."""
        return self._out

    def __enter__(self) -> Capture:
        if _current is not None and not _current.automatic:
            raise UsageError("a traceops.capture is already open in this process; close it first")
        self.guard.run(CaptureOperation.PREPARE, self._enter, passing=(UsageError,))
        self._open = True  # where it failed too: the steps are counted, as the program may ask for them
        return self

    def _enter(self) -> None:
        global _current
        if _current is not None:
            _current.guard.run(CaptureOperation.STOP, _current.retire)
        self._out = agreed_folder(self.settings)
        place, schedule = who_am_i(), self.settings.schedule
        claim(self._out, place.rank, place.world_size, self.settings)
        options = self.settings.recording_options()
        wish = self.settings.detach
        wanted = wish is not False and may_have_gpu()  # without one the environment stays as it is
        detaching = Detaching(asked=wish is True) if wanted else None
        recorder = Recorder(self._out, place.rank, schedule, options, self._doing, detaching)
        with_first = self.settings.first_window and schedule == Schedule() and not may_have_gpu()
        first = FirstWindow(self._out, place.rank, options, self._doing) if with_first else None
        self._windows.begin(recorder, first)
        self._record = OpenManifest(self._out, place, schedule, options, self._training)
        self._watchers = Watchers(self._record, self.settings, detaching, self._way)
        self._windows.keep_in(self._record, self._watchers)
        self._save()
        if self.settings.progress is not None:
            self._doing(CaptureOperation.HEARTBEAT)
            self._progress = ProgressWriter(Path(self.settings.progress), place.rank)
            self._way.tell_in(self._progress.memory)
            self._windows.asked = AskedWindows(Path(self.settings.progress))
        self._doing(CaptureOperation.PREPARE)
        terminated = partial(self.guard.run, CaptureOperation.STOP, self._close, "terminated")
        self._held = self._scope.enter_context(saving_on_sigterm(terminated)).held()
        self._open, _current = True, self
        self._scope.callback(self._others.close)
        self._others.watch(self.guard)
        self._watchers.begin(schedule, self.guard, self._scope)
        self._begin(0)

    def on_failure(self, detach: Callable[[], None]) -> None:
        """Have `detach` called once nothing of this capture needs to hear of steps any more."""
        self._detach = detach

    def _failed(self, operation: CaptureOperation, error: BaseException) -> None:
        """End the capture, keep what there is, and say why in the first place that takes it."""
        first = self.failure is None
        self._idle_until = 0
        self._way.rest()
        rank = self._record.manifest.rank if self._record is not None else who_am_i().rank
        failure = self.failure or failure_of(rank, operation, self._way.step, error)
        self.failure = failure
        if not first or operation is CaptureOperation.HEARTBEAT:
            self._progress = None
        if self._progress is None and self._detach is not None:
            contained(self._detach)
        if not first:
            return
        raised = isinstance(error, Exception)
        self._windows.fail(error, profiler_works=raised and operation in _BESIDE_IT)
        contained(self._scope.close)
        if self._watchers is not None:
            contained(self._watchers.end_observing)
        saved = self._record is not None and contained(self._saved) is True
        report(failure, self.settings.progress, saved=saved, aloud=raised)

    def _saved(self) -> bool:
        self._save()
        return True

    def give_way(self, reason: str, *, adopt: bool = True) -> None:
        self._way.rest()
        assert self._record is not None
        self._windows.stop()
        note = f"the capture gave way: {reason}"
        self._record.manifest = replace(self._record.manifest, status="given_way", note=note)
        if adopt:
            self._windows.adopt()
        self._save()
        if not self.settings.launched:
            say(note)

    def _forget(self) -> None:
        global _current
        self._open = False
        self._way.rest()
        if _current is self:
            _current = None

    def retire(self) -> None:
        """Leave the folder to a capture that the script opens itself; nothing of this one is kept."""
        self._forget()
        self._windows.drop()
        if self._record is not None and self._watchers is not None:
            self._watchers.end_observing()
            self._record.remove()
            self._watchers.remove_files()
        if self._progress is not None:
            self._progress.close()
        self._scope.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = None
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End the capture, because of `error` if there is one; what was recorded so far is kept."""
        self.guard.run(CaptureOperation.STOP, self._closed, error)

    def _closed(self, error: BaseException | None) -> None:
        with self._held:
            if error is None:
                self._close("finished")
            else:
                status = "terminated" if isinstance(error, KeyboardInterrupt) else "failed"
                self._close(status, describe(error))

    def _close(self, status: str, error: str | None = None) -> None:
        if not self._open:
            return
        self._forget()
        if self._record is None:  # it never began
            return
        # First of all: stopping the profiler waits for the device, which may never answer. And the time of
        # the failure, not of the end of the export, tells which rank was first.
        self._record.manifest = replace(self._record.manifest, error=error, ended_ns=time.time_ns())
        self.guard.run(CaptureOperation.MANIFEST, self._save)
        self.guard.run(CaptureOperation.STOP, self._finish, status)
        self.guard.run(CaptureOperation.STOP, self._scope.close)
        self.guard.run(CaptureOperation.MANIFEST, self._conclude, status)
        self.guard.run(CaptureOperation.HEARTBEAT, self._fall_silent)

    def _finish(self, status: str) -> None:
        if status in ("failed", "terminated"):
            if self._watchers is not None:
                self._watchers.training_fails()
            wait_for_device(_SETTLE_S)
        self._windows.end(last=self.automatic)

    def _conclude(self, status: str) -> None:
        """Write the manifest for the last time, and the run's, if nobody else does."""
        assert self._record is not None
        if self._record.manifest.status == "given_way" and status == "finished":
            status = "given_way"
        note = said = self._record.manifest.note
        if status == "finished" and not self.done and self.failure is None and not self._windows.adopted:
            note = self._shortfall()
        self._record.manifest = replace(self._record.manifest, status=status, note=note)
        self._save()
        if not self.settings.launched:
            write_run(self._record.out)
            if note and note != said:
                say(note)

    def _fall_silent(self) -> None:
        self._tell("ended", self._way.step)
        if self._progress is not None:
            self._progress.close()

    def _shortfall(self) -> str:
        windows = [] if self._record is None else self._record.manifest.windows
        theirs = self._others.record if self._windows.had_first else None
        return shortfall(
            self._windows.schedule, self.steps, windows[-1].steps if windows else (),
            in_the_way(theirs, self.steps), self.settings.step_on if self.automatic else None,
        )  # fmt: skip

    def _save(self) -> None:
        assert self._record is not None
        self._doing(CaptureOperation.MANIFEST)
        light, recorder = self._windows.light, self._windows.recorder
        detaching = None if recorder is None else recorder.detaching
        self._record.manifest = replace(
            self._record.manifest,
            script_profiler=self._others.record,
            detached=None if detaching is None else detaching.record,
        )
        told = None if light is None else light.record
        self._record.save(self.steps, self._samples, self.failure, self.ends_of_steps(), told)


def capture_here() -> Capture | None:
    """The capture that is open in this process."""
    return _current
