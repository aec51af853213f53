"""The capture of one rank, a context manager: times, profiles and documents its steps."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from traceops.capture.detaching import Detaching
from traceops.capture.folder import agreed_folder, claim, who_am_i, write_run
from traceops.capture.guard import Guard, contained, describe, say, text
from traceops.capture.observing.observer import Observer
from traceops.capture.open_manifest import OpenManifest, in_the_way, shortfall
from traceops.capture.progress import ProgressWriter, report
from traceops.capture.recorder import FirstWindow, Recorder, may_have_gpu
from traceops.capture.schedule import AskedWindows, Phase, Schedule, StepEnds
from traceops.capture.script_profiler import ScriptProfiler
from traceops.capture.settings import CaptureSettings, from_environment
from traceops.capture.short_way.ways import short_way
from traceops.capture.signals import saving_on_sigterm, wait_for_device
from traceops.capture.watchers import Watchers
from traceops.capture.windows import Windows
from traceops.core.capture_failure import CaptureFailure, CaptureOperation, failure_of
from traceops.core.errors import UsageError

_LONG_WAY_NS = 500_000_000  # from one step's end that looks at everything to the next
_current: Capture | None = None

# For the device to finish when a training breaks off; a healthy one needs the rest of a step.
_SETTLE_S = 5.0
# Failures in which the profiler still works.
_BESIDE_IT = (CaptureOperation.TIME, CaptureOperation.MANIFEST, CaptureOperation.HEARTBEAT)


class Capture:
    """One rank's capture; made by `capture`, used as a context manager. automatic: steps are found by hooks, and the
    first may never come."""

    def __init__(
        self, settings: CaptureSettings, training: dict[str, Any] | None = None, *, automatic: bool = False
    ) -> None:
        self.settings, self.automatic = settings, automatic
        samples = {"samples_per_step": settings.samples_per_step} if settings.samples_per_step else {}
        self._training = {**samples, **(training or {})}
        self._out: Path | None = None
        self._open = False
        self._scope = ExitStack()
        self._record: OpenManifest | None = None
        self._detach: Callable[[], None] | None = None
        self._way = short_way()  # has the number of steps, and of samples
        self._progress: ProgressWriter | None = None
        self._watchers: Watchers | None = None
        self._others = ScriptProfiler(self._way.rest)
        self._skipped = False
        self._held: AbstractContextManager[None] = nullcontext()  # a SIGTERM in it waits for its end
        self._idle_until = 0  # steps that end before: nothing is due but watching
        self._phase = ""  # as the launcher was told
        self._ended_in: int | None = None  # the thread of the last step's end, as the system numbers it
        self.failure: CaptureFailure | None = None
        self.guard = Guard(self._failed)
        self._windows = Windows(
            settings.schedule, self._way, self._others, self.guard,
            publish=self._publish, save=self._save, give_way=self.give_way, is_open=lambda: self._open,
        )  # fmt: skip
        # What `step` asks first, for who need not call it then.
        self.passed: Callable[[], bool] = self._way.passed
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
            self._way.publish_to(self._progress.memory)
            self._windows.asked = AskedWindows(Path(self.settings.progress))
        self._doing(CaptureOperation.PREPARE)
        terminated = partial(self.guard.run, CaptureOperation.STOP, self._close, "terminated")
        self._held = self._scope.enter_context(saving_on_sigterm(terminated)).held()
        self._open, _current = True, self
        self._scope.callback(self._others.close)
        self._others.watch(self.guard)
        self._watchers.begin(schedule, self.guard, self._scope)
        self._begin(0)

    @property
    def _samples(self) -> int | None:
        return None if self._way.samples < 0 else self._way.samples

    @property
    def steps(self) -> int:
        """Steps finished."""
        return self._way.step

    @property
    def total_steps(self) -> int:
        """Steps after which everything asked for is recorded; training may go on."""
        return self._windows.schedule.total_steps

    @property
    def done(self) -> bool:
        """Whether every window is complete."""
        return self._way.step >= self.total_steps

    def step(self, samples: int | None = None) -> None:
        """The current step ended. `samples`: how many it trained on here, for samples/s while it runs."""
        if not self._open or self._way.passed(samples):
            return
        step = self._way.step
        try:
            # The thread of the step before is this process's too: a forked one has other numbers.
            if step < self._idle_until and threading.get_native_id() == self._ended_in:
                self.guard.run_here(CaptureOperation.TIME, self._passed, samples)
            elif self.failure is None or self._progress is not None:
                self.guard.run(CaptureOperation.TIME, self._stepped, samples)
        finally:
            self._way.step = step + 1

    def skipped(self) -> None:
        """The step that ends next left its optimizer out: a gradient scaler found numbers that are none."""
        self._skipped = True
        self._way.rest()

    def _passed(self, samples: int | None) -> None:
        """A step ended, and nothing is due but watching: what most steps of a training are, so it is kept short."""
        with self._held:
            observer = self._watch_end(samples, recorded=False)
            self._way.step = step = self._way.step + 1
            if self._watchers is not None:
                self._watchers.steps_done(step)
            asked = self._publish(self._phase, step) and contained(self._hear_of_windows)
            if asked:
                self._begin(step)
            if observer is not None:
                recorded = self._others.at_work or (bool(asked) and self._windows.recording())
                observer.step_begins(recorded=recorded)
                self._shorten(observer)

    def _shorten(self, observer: Observer) -> None:
        """Have the next steps go the short way (`short_way/`), where nothing but watching is due in them."""
        filed_ns = 0 if self._progress is None else self._progress.filed_for_others()
        if filed_ns is None or self._idle_until <= self._way.step or not self._others.quiet or self._skipped:
            return
        until = self._idle_until
        if self._watchers is not None:
            until = min(until, self._watchers.saves_at(self._way.step) - 1)  # before that step is over
        observer.arm(until, self._way.begun_ns + _LONG_WAY_NS, filed_ns)

    def _watch_end(self, samples: int | None, *, recorded: bool) -> Observer | None:
        """Tell those who watch that the step ended; the observer has to hear of the next one too."""
        others = self._others.step_ended(self._way.step, ours=recorded)
        observer = None if self._watchers is None else self._watchers.observer
        if observer is not None:
            observer.step_ended(recorded=recorded or others, skipped=self._skipped)
            self._skipped = False
        if samples is not None:
            self._way.samples = max(self._way.samples, 0) + int(samples)
        return observer

    def _stepped(self, samples: int | None) -> None:
        windows = self._windows
        with self._held:  # a SIGTERM in the middle would save a half-written trace
            observer = self._watch_end(samples, recorded=windows.recording() or windows.has_left())
            for one in windows.recorders:
                one.stop_left()
            if self.failure is None:
                thread = threading.get_native_id()
                windows.thread_changed, self._ended_in = self._ended_in not in (None, thread), thread
                windows.step_ended(self._way.step)
                windows.light_step_ended(self._way.step)
            self._way.step = step = self._way.step + 1
            if self._watchers is not None:
                self._watchers.steps_done(step)
            if self.failure is None:
                contained(self._hear_of_windows)
                self._begin(step)
                self._idle_until = step if self.failure is not None else windows.next_due(step)
            else:  # the launcher goes on watching for hangs
                self._publish(Phase.DONE.value, step)
            if observer is not None:
                observer.step_begins(recorded=windows.recording() or self._others.at_work)

    def _hear_of_windows(self) -> bool:
        if changed := self._windows.hear():
            self._idle_until = 0
        return changed

    def _begin(self, step: int) -> None:
        phase = self._windows.step_begins(step)
        self._phase = "starting" if self.automatic and step == 0 else phase.value
        self._publish(self._phase, step)

    def _publish(self, phase: str, step: int) -> bool:
        """Whether it went to the file too, which it need not in each of many short steps."""
        if self._progress is None:
            return False
        self.guard.doing = CaptureOperation.HEARTBEAT
        return self._progress.write(phase, step, self._samples)

    def _doing(self, operation: CaptureOperation) -> None:
        self.guard.doing = operation

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
        saved = self._record is not None and contained(self._save) is True
        report(failure, self.settings.progress, saved=saved, aloud=raised)

    def give_way(self, reason: str, *, adopt: bool = True) -> None:
        """Stop recording because something else has the better claim; what was recorded is kept. adopt: wait for the
        trace of a profiler of the script's own."""
        self._way.rest()
        assert self._record is not None
        self._windows.stop()
        note = text("gave_way", reason=reason)
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
        self._publish("ended", self._way.step)
        if self._progress is not None:
            self._progress.close()

    def _shortfall(self) -> str:
        windows = [] if self._record is None else self._record.manifest.windows
        theirs = self._others.record if self._windows.had_first else None
        return shortfall(
            self._windows.schedule, self.steps, windows[-1].steps if windows else (),
            in_the_way(theirs, self.steps), self.settings.step_on if self.automatic else None,
        )  # fmt: skip

    def _save(self) -> bool:
        """Write the manifest; True."""
        assert self._record is not None
        self._doing(CaptureOperation.MANIFEST)
        light, recorder = self._windows.light, self._windows.recorder
        detaching = None if recorder is None else recorder.detaching
        self._record.manifest = replace(
            self._record.manifest,
            script_profiler=self._others.record,
            detached=None if detaching is None else detaching.record,
        )
        recorded = None if light is None else light.record
        self._record.save(self.steps, self._samples, self.failure, self.ends_of_steps(), recorded)
        return True


def capture_here() -> Capture | None:
    """The capture that is open in this process."""
    return _current


def capture(
    out: str | os.PathLike[str] | None = None,
    *,
    schedule: Schedule | None = None,
    settings: CaptureSettings | None = None,
    manifest: Mapping[str, Any] | None = None,
    total_steps: int | None = None,
    **options: Any,
) -> Capture:
    """Profile the steps of the training inside ``with``; call ``.step()`` where each step ends::

        with traceops.capture("profile/mine", schedule=Schedule(active=6)) as profiler:
            for batch in loader:
                train(batch)
                profiler.step(samples=len(batch))

    out: run folder. manifest: what to keep about the training in run.json (its key "strategy" is the run's).
    total_steps: steps the training has; a schedule that needs more is refused. options: further fields of
    `CaptureSettings`. `traceops run` overrides all of them through the environment.

    Raises UsageError for settings that cannot work, before the training starts.
    """
    base = settings or CaptureSettings()
    if schedule is not None:
        base = replace(base, schedule=schedule)
    if out is not None:
        options["out"] = os.fspath(out)
    merged = from_environment(base.merged(options))
    if total_steps is not None:
        merged.schedule.check(total_steps)
        merged = replace(merged, first_window=False)
    return Capture(merged, training=dict(manifest or {}))
