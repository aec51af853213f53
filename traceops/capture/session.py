"""`traceops.capture`: the context manager that times, profiles and documents the steps of one rank."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from traceops.capture.abort import wait_for_device
from traceops.capture.adopted import Adoption
from traceops.capture.detaching import Detaching
from traceops.capture.first_window import FIRST, FirstWindow, may_have_gpu
from traceops.capture.folder import agreed_folder, claim, who_am_i, write_run
from traceops.capture.guard import Guard, contained, describe, say
from traceops.capture.last_words import tell as tell_launcher
from traceops.capture.later_windows import AskedWindows, LongerSchedule
from traceops.capture.light.window import LightWindow
from traceops.capture.manifest import ScriptProfilerRecord
from traceops.capture.observing.observer import Observer
from traceops.capture.open_manifest import OpenManifest
from traceops.capture.progress import ProgressWriter
from traceops.capture.recorder import OtherThread, Recorder
from traceops.capture.schedule import NEVER, Phase, Schedule
from traceops.capture.script_profiler import ScriptProfiler
from traceops.capture.settings import CaptureSettings, from_environment
from traceops.capture.short_way.ways import short_way
from traceops.capture.signals import saving_on_sigterm
from traceops.capture.step_ends import StepEnds
from traceops.capture.timing import StepTimer
from traceops.capture.watchers import Watchers
from traceops.core.capture_failure import (
    CaptureFailure,
    CaptureOperation,
    advice_text,
    cause_text,
    failure_of,
)
from traceops.core.errors import UsageError
from traceops.core.shorter_schedule import shorter_schedule

_current: Capture | None = None

# For the device to finish when a training breaks off; a healthy one needs the rest of a step.
_SETTLE_S = 5.0
_LONG_WAY_NS = 500_000_000  # from one step's end that looks at everything to the next
_SEVERAL_THREADS = "steps end in several threads, and torch's profiler records one"


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


class Capture:
    """One rank's capture; made by `capture`, used as a context manager."""

    def __init__(
        self, settings: CaptureSettings, training: dict[str, Any] | None = None, *, automatic: bool = False
    ) -> None:
        self.settings = settings
        self.automatic = automatic
        told = {"samples_per_step": settings.samples_per_step} if settings.samples_per_step else {}
        self._training = {**told, **(training or {})}
        self._schedule = settings.schedule
        self._way = short_way()  # has the number of steps, and of samples
        self._out: Path | None = None
        self._timers: dict[Phase, StepTimer] = {}
        self._scope = ExitStack()
        self._open = False
        self._record: OpenManifest | None = None
        self._recorder: Recorder | None = None
        self._adoption: Adoption | None = None
        self._adopted = False
        self._progress: ProgressWriter | None = None
        self._watchers: Watchers | None = None
        self._first: FirstWindow | None = None
        self._has_first = False
        # Those that may leave a profiler open, though they are done.
        self._recorders: list[Recorder | FirstWindow] = []
        self._others = ScriptProfiler(self._way.rest)
        self._asked: AskedWindows | None = None
        self._skipped = False
        self._held: AbstractContextManager[None] = nullcontext()  # a SIGTERM in it waits for its end
        self._idle_until = 0  # steps that end before: nothing is due but watching
        self._phase = ""  # as the launcher was told
        self._ended_in: int | None = None  # the thread of the last step's end, as the system numbers it
        self._thread_changed = False
        self._detach: Callable[[], None] | None = None
        self.failure: CaptureFailure | None = None
        self.ends_of_steps: Callable[[], StepEnds] = StepEnds  # what ended the steps, by whoever calls step()
        self.guard = Guard(self._failed)
        self.passed: Callable[[], bool] = (
            self._way.passed
        )  # what `step` asks first, for who need not call it then

    @property
    def out(self) -> Path | None:
        """The run folder, known once the capture has been entered."""
        return self._out

    @property
    def _step(self) -> int:
        return self._way.step

    @_step.setter
    def _step(self, step: int) -> None:
        self._way.step = step

    @property
    def _samples(self) -> int | None:
        return None if self._way.samples < 0 else self._way.samples

    @property
    def steps(self) -> int:
        """Steps finished."""
        return self._step

    @property
    def total_steps(self) -> int:
        """Steps after which everything asked for is recorded; training may go on."""
        return self._schedule.total_steps

    @property
    def done(self) -> bool:
        """Whether every window is complete."""
        return self._step >= self._schedule.total_steps

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
        place = who_am_i()
        claim(self._out, place.rank, place.world_size, self.settings)
        options = self.settings.recording_options()
        wish = self.settings.detach
        wanted = wish is not False and may_have_gpu()  # without one the environment stays as it is
        detaching = Detaching(asked=wish is True) if wanted else None
        self._recorder = Recorder(self._out, place.rank, self._schedule, options, self._doing, detaching)
        if self.settings.first_window and self._schedule == Schedule() and not may_have_gpu():
            self._first = FirstWindow(self._out, place.rank, options, self._doing)
            self._has_first = True
        self._recorders = [one for one in (self._recorder, self._first) if one is not None]
        self._record = OpenManifest(self._out, place, self._schedule, options, self._training)
        self._watchers = Watchers(self._record, self.settings, detaching, self._way)
        self._save()
        if self.settings.progress is not None:
            self._doing(CaptureOperation.HEARTBEAT)
            self._progress = ProgressWriter(Path(self.settings.progress), place.rank)
            self._way.tell_in(self._progress.memory)
            self._asked = AskedWindows(Path(self.settings.progress))
        self._doing(CaptureOperation.PREPARE)
        terminated = partial(self.guard.run, CaptureOperation.STOP, self._close, "terminated")
        self._held = self._scope.enter_context(saving_on_sigterm(terminated)).held()
        self._open, _current = True, self
        self._scope.callback(self._others.close)
        self._others.watch(self.guard)
        self._watchers.begin(self._schedule, self.guard, self._scope)
        self._begin(0)

    def step(self, samples: int | None = None) -> None:
        """The current step ended. `samples`: how many it trained on here, for samples/s while it runs."""
        if not self._open or self._way.passed(samples):
            return
        step = self._step
        try:
            # The thread of the step before is this process's too: a forked one has other numbers.
            if step < self._idle_until and threading.get_native_id() == self._ended_in:
                self.guard.run_here(CaptureOperation.TIME, self._passed, samples)
            elif self.failure is None or self._progress is not None:
                self.guard.run(CaptureOperation.TIME, self._stepped, samples)
        finally:
            self._step = step + 1

    def skipped(self) -> None:
        """The step that ends next left its optimizer out: a gradient scaler found numbers that are none."""
        self._skipped = True
        self._way.rest()

    def _passed(self, samples: int | None) -> None:
        """A step ended, and nothing is due but watching: what most steps of a training are, so it is kept short."""
        with self._held:
            observer = self._watch_end(samples, recorded=False)
            self._step += 1
            if self._watchers is not None:
                self._watchers.steps_done(self._step)
            asked = self._tell(self._phase, self._step) and contained(self._hear_of_windows)
            if asked:
                self._begin(self._step)
            if observer is not None:
                observer.step_begins(recorded=self._others.at_work or (bool(asked) and self._recording()))
                self._shorten(observer)

    def _shorten(self, observer: Observer) -> None:
        """Have the next steps go the short way (`short_way/`), where nothing but watching is due in them."""
        filed_ns = 0 if self._progress is None else self._progress.filed_for_others()
        if filed_ns is None or self._idle_until <= self._step or not self._others.quiet or self._skipped:
            return
        until = self._idle_until
        if self._watchers is not None:
            until = min(until, self._watchers.saves_at(self._step) - 1)  # before that step is over
        observer.arm(until, self._way.begun_ns + _LONG_WAY_NS, filed_ns)

    def _watch_end(self, samples: int | None, *, recorded: bool) -> Observer | None:
        """Tell those who watch that the step ended; the observer has to hear of the next one too."""
        others = self._others.step_ended(self._step, ours=recorded)
        observer = None if self._watchers is None else self._watchers.observer
        if observer is not None:
            observer.step_ended(recorded=recorded or others, skipped=self._skipped)
            self._skipped = False
        if samples is not None:
            self._way.samples = max(self._way.samples, 0) + int(samples)
        return observer

    def _stepped(self, samples: int | None) -> None:
        with self._held:  # a SIGTERM in the middle would save a half-written trace
            observer = self._watch_end(samples, recorded=self._recording() or self._has_left())
            for one in self._recorders:
                one.stop_left()
            if self.failure is None:
                self._end(self._step)
                self._end_of_light_step()
            self._step += 1
            if self._watchers is not None:
                self._watchers.steps_done(self._step)
            if self.failure is None:
                contained(self._hear_of_windows)
                self._begin(self._step)
                self._idle_until = self._next_due(self._step)
            else:  # the launcher goes on watching for hangs
                self._tell(Phase.DONE.value, self._step)
            if observer is not None:
                observer.step_begins(recorded=self._recording() or self._others.at_work)

    def _next_due(self, step: int) -> int:
        """The first step at whose end more is due than watching, now that `step` has begun."""
        if self._recorder is None or self._has_left() or self._thread_changed or self._recording():
            return step
        if self.failure is not None or self._timers or self._adoption is not None or self._first is not None:
            return step
        light = NEVER if self._light is None else self._light.idle_until(step)
        return min(self._schedule.idle_until(step), light) - 1  # which begins at the end of the one before

    def _hear_of_windows(self) -> bool:
        """Take what `traceops capture` asks for into the schedule, behind what it has; whether that changes it."""
        window = None if self._asked is None else self._asked.look()
        if window is None or self._recorder is None or self._record is None:
            return False
        longer = LongerSchedule.of(self._schedule, window)
        if longer.later[-1].start < self._step:
            note = f"window {window.number} was asked for from step {window.start} on, when step {self._step} had begun"
            self._record.manifest = replace(self._record.manifest, note=note)
            return False
        self._idle_until = 0
        self._schedule = self._recorder.schedule = longer
        memory = None if self._watchers is None else self._watchers.memory
        if window.with_memory and memory is not None:
            memory.begin_history()
        return True

    @property
    def _light(self) -> LightWindow | None:
        return None if self._watchers is None else self._watchers.light

    def _end_of_light_step(self) -> None:
        if (light := self._light) is not None and light.step_ended(self._step):
            self._doing(CaptureOperation.MANIFEST)
            self._save()
            self._doing(CaptureOperation.TIME)

    def _recording(self) -> bool:
        light, first, recorder = self._light, self._first, self._recorder  # asked for twice a step
        return (
            (recorder is not None and recorder.is_open)
            or (light is not None and light.is_open)
            or (first is not None and first.is_open)
        )

    def _has_left(self) -> bool:
        """Whether a profiler of ours is open that only another thread can stop."""
        return any(one.has_left for one in self._recorders)

    def _doing(self, operation: CaptureOperation) -> None:
        self.guard.doing = operation

    def on_failure(self, detach: Callable[[], None]) -> None:
        """Have `detach` called once nothing of this capture needs to hear of steps any more."""
        self._detach = detach

    def _failed(self, operation: CaptureOperation, error: BaseException) -> None:
        """Told by the guard: end the capture, keep what there is, and say why in the first place that takes it."""
        first = self.failure is None
        self._idle_until = 0
        self._way.rest()
        rank = self._record.manifest.rank if self._record is not None else who_am_i().rank
        failure = self.failure or failure_of(rank, operation, self._step, error)
        self.failure = failure
        if not first or operation is CaptureOperation.HEARTBEAT:
            self._progress = None
        if self._progress is None and self._detach is not None:
            contained(self._detach)
        if not first:
            return
        contained(self._keep_timings)
        if self._recorder is not None:
            passing = (CaptureOperation.TIME, CaptureOperation.MANIFEST, CaptureOperation.HEARTBEAT)
            if operation in passing and isinstance(error, Exception):
                contained(self._keep_recorded)
            self._recorder.abandon()
        if isinstance(error, Exception):
            contained(self._keep_first)
        self._drop_first()
        contained(self._scope.close)
        if self._watchers is not None:
            contained(self._watchers.end_observing)
        saved = self._record is not None and contained(self._saved) is True
        told = self.settings.progress is not None
        if told:
            told = contained(tell_launcher, Path(str(self.settings.progress)), failure) is True
        if (self.settings.progress is None or not (told or saved)) and isinstance(error, Exception):
            say(f"rank {rank}: the capture ended early: {cause_text(failure)}; {advice_text(failure)}")

    def _keep_timings(self) -> None:
        """Durations of the steps that were timed before the failure."""
        if self._timers and self._record is not None:
            self._record.add_times(self._taken_timers(), self._steps_until_now())

    def _keep_recorded(self) -> None:
        """The trace of the window that the failure cut short, where it is not the profiler that failed."""
        if self._recorder is None or self._record is None or not self._recorder.is_open:
            return
        self._recorder.close()
        window, steps = self._schedule.window(self._step), self._steps_until_now()
        self._record.add_window(window, self._recorder.take_trace(), steps, complete=False)

    def _steps_until_now(self) -> list[int]:
        recorded = self._schedule.active_steps(self._schedule.window(self._step))
        return [step for step in recorded if step < self._step]

    def _saved(self) -> bool:
        self._save()
        return True

    def _end(self, step: int) -> None:
        thread = threading.get_native_id()
        self._thread_changed, self._ended_in = self._ended_in not in (None, thread), thread
        phase = self._schedule.phase(step)
        self._doing(CaptureOperation.TIME)
        if self._timers and phase in self._timers:
            self._timers[phase].mark(counts=phase is not Phase.UNPROFILED or not self._others.disturbed)
        if self._adoption is not None:
            self._adoption.step_ended(step)
        if self._first is not None:
            self._first.step_ended(step)
        if self._recorder is None or not self._recorder.is_open:
            return
        if self._schedule.ends_window(step):
            self._tell("profiler", step + 1)  # writing the trace may take minutes
        try:
            self._recorder.step()
        except OtherThread:
            self.give_way(_SEVERAL_THREADS, adopt=False)
            return
        if self._schedule.ends_window(step):
            if self._watchers is not None:
                self._watchers.window_ends(step, self._schedule)
            self._keep_window(self._schedule.window(step), complete=True)

    def _begin(self, step: int) -> None:
        assert self._recorder is not None and self._record is not None
        phase = self._schedule.phase(step)
        opens = phase in (Phase.WARMUP, Phase.ACTIVE) and not self._recorder.is_open
        if opens and self._record.manifest.status == "running":
            if self._light is not None:
                self._light.give_way("a window was asked for")
            self._open_window(step)
        if self._first is not None and self._record.manifest.status == "running":
            self._first.step_begins(step, self._first_gives_way)
        self._doing(CaptureOperation.TIME)
        if (phase is Phase.UNPROFILED or (phase is Phase.ACTIVE and self._recorder.is_open)) and self._starts(
            phase, step
        ):
            self._timers[phase] = StepTimer()
        if phase is Phase.DONE and self._light is not None and self._record.manifest.status == "running":
            self._light.step_begins(step)
        self._phase = "starting" if self.automatic and step == 0 else phase.value
        self._tell(self._phase, step)

    def _open_window(self, step: int) -> None:
        assert self._recorder is not None
        if self._thread_changed:  # a profiler that is left open in a thread which ended crashes the process
            self.give_way(_SEVERAL_THREADS, adopt=False)
            return
        self._tell("profiler", step)
        try:
            self._recorder.open(step, self._foreign_profiler)
        except RuntimeError as error:  # Kineto holds one session a process
            self.give_way(f"the profiler could not start at step {step}: {error}")

    def _starts(self, phase: Phase, step: int) -> bool:
        """Whether the steps of this phase are timed from this one on."""
        if self._first is not None and self._first.is_open:
            return False  # its steps are no measure of those that nothing records
        if step == 0 or phase is not self._schedule.phase(step - 1) or self._schedule.ends_window(step - 1):
            return True
        return self._first is not None and phase not in self._timers

    def _tell(self, phase: str, step: int) -> bool:
        """Whether it went to the file too, which it need not in each of many short steps."""
        if self._progress is None:
            return False
        self.guard.doing = CaptureOperation.HEARTBEAT
        return self._progress.write(phase, step, self._samples)

    def _keep_window(self, window: int, *, complete: bool) -> None:
        assert self._record is not None
        self._doing(CaptureOperation.TIME)
        steps = [step for step in self._schedule.active_steps(window) if step < self._step + complete]
        self._record.add_times(self._taken_timers(), steps)
        trace = None if self._recorder is None else self._recorder.take_trace()
        why = self._schedule.why(window) if isinstance(self._schedule, LongerSchedule) else ""
        self._record.add_window(window, trace, steps, complete=complete, why=why or None)
        if complete:
            self._drop_first()
        self._save()

    def _taken_timers(self) -> dict[Phase, StepTimer]:
        """The timers, which are done now."""
        timers, self._timers = self._timers, {}
        return timers

    def _drop_first(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            first.drop()

    def _keep_first(self) -> None:
        """Have the first window stand for the schedule's, where that holds no whole step."""
        first, self._first = self._first, None
        if first is None or self._record is None:
            return
        kept = None if any(window.steps for window in self._record.manifest.windows) else first.keep()
        if kept is None:
            first.drop()
        else:
            self._record.add_first_window(kept)

    def _foreign_profiler(self) -> None:
        if self._open:
            self.guard.run(CaptureOperation.STOP, self.give_way, "the script started its own torch.profiler")

    def _first_gives_way(self) -> None:
        """A profiler of the script's own starts: it may be over when the schedule's window is due."""
        if self._open and self._first is not None:
            self.guard.run(CaptureOperation.STOP, self._first.give_way)

    def give_way(self, reason: str, *, adopt: bool = True) -> None:
        """Stop recording because something else has the better claim; what was recorded is kept.

        adopt: wait for the trace of a profiler of the script's own.
        """
        self._way.rest()
        assert self._record is not None
        self._stop_recording()
        note = f"the capture gave way: {reason}"
        self._record.manifest = replace(self._record.manifest, status="given_way", note=note)
        if adopt and self._recorder is not None:
            self._adoption = self._recorder.adopt(len(self._record.manifest.windows))
        self._save()
        if not self.settings.launched:
            say(note)

    def _adopt(self) -> None:
        """Take the trace of the script's own profiler as this rank's, if it made one."""
        adoption, self._adoption = self._adoption, None
        if adoption is None or self._record is None:
            return
        adoption.close(last=self.automatic)
        if adoption.trace is None:
            return
        self._adopted = True
        first, last = adoption.steps[0], adoption.steps[-1]
        trace = str(adoption.trace.relative_to(self._record.out))
        self._record.add_window(len(self._record.manifest.windows), trace, adoption.steps, complete=True)
        self._record.manifest = replace(
            self._record.manifest,
            note=f"the trace of steps {first} to {last} is that of the script's own torch.profiler",
            status="running",
        )

    def retire(self) -> None:
        """Leave the folder to a capture that the script opens itself; nothing of this one is kept."""
        global _current
        self._open = False
        self._way.rest()
        if _current is self:
            _current = None
        if self._recorder is not None:
            self._recorder.close(keep=False)
        self._drop_first()
        if self._record is not None and self._watchers is not None:
            self._watchers.end_observing()
            self._record.remove()
            self._watchers.remove_files()
        if self._progress is not None:
            self._progress.close()
        self._scope.close()

    def _stop_recording(self) -> None:
        if self._first is not None:
            self._first.stop()
        if self._recorder is not None and self._recorder.is_open:
            self._tell("profiler", self._step)
            better = self._first is not None and self._first.steps and not self._steps_until_now()
            self._recorder.close(keep=not better)
        if self._timers:
            self._keep_window(self._schedule.window(self._step), complete=False)

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
        global _current
        if not self._open:
            return
        self._open = False
        self._way.rest()
        if _current is self:
            _current = None
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
        self._stop_recording()
        contained(self._adopt)
        self._keep_first()

    def _conclude(self, status: str) -> None:
        """Write the manifest for the last time, and the run's, if nobody else does."""
        assert self._record is not None
        if self._record.manifest.status == "given_way" and status == "finished":
            status = "given_way"
        note = said = self._record.manifest.note
        if status == "finished" and not self.done and self.failure is None and not self._adopted:
            note = self._shortfall()
        self._record.manifest = replace(self._record.manifest, status=status, note=note)
        self._save()
        if not self.settings.launched:
            write_run(self._record.out)
            if note and note != said:
                say(note)

    def _fall_silent(self) -> None:
        self._tell("ended", self._step)
        if self._progress is not None:
            self._progress.close()

    def _shortfall(self) -> str:
        if self.automatic and self._step == 0:
            return (
                f"no {'optimizer step' if self.settings.step_on == 'optimizer' else 'forward pass'} was seen, so "
                "nothing was recorded; does the script use torch.optim? If not: --step-on forward takes each call of "
                "the model for a step, or say where steps end with traceops.capture(...) and step()"
            )
        steps = f"{f'{self.settings.step_on} ' if self.automatic else ''}step{'' if self._step == 1 else 's'}"
        only = (
            f"only {self._step} {steps}, the schedule needs {self.total_steps} ({self._schedule.explain()})"
        )
        kept = (
            []
            if self._record is None or not self._record.manifest.windows
            else self._record.manifest.windows[-1].steps
        )
        theirs = self._early_profiler()
        if theirs is not None and (not kept or kept[-1] < FIRST.total_steps - 1):
            held = f"recorded was step {kept[0]} alone" if kept else "nothing was recorded"
            return (
                f"{only}; {held}: the script's own profiler was at work from step {theirs['first']} on, and two cannot "
                "record at once. Take it out for this run, or analyze the trace that it writes"
            )
        if not kept or kept[-1] >= FIRST.total_steps:
            return f"{only}; train longer, or pass lower --skip-first, --unprofiled, --warmup or --active"
        recorded = f"step{'s' if len(kept) > 1 else ''} {' and '.join(map(str, kept))}"
        shorter = shorter_schedule(asdict(self._schedule), self._step)
        better = shorter is not None and self._step > FIRST.total_steps
        advice = f"; for later ones: {shorter.flags}" if shorter is not None and better else ""
        return f"{only}; recorded were the first whole ones, {recorded}{advice}"

    def _early_profiler(self) -> ScriptProfilerRecord | None:
        """The script's own, if it was at work in the steps that the first window would have taken."""
        theirs = self._others.record
        early = theirs is not None and theirs["first"] < FIRST.total_steps <= self._step
        return theirs if early and self._has_first else None

    def _save(self) -> None:
        assert self._record is not None
        self._doing(CaptureOperation.MANIFEST)
        light = None if self._light is None else self._light.record
        detaching = None if self._recorder is None else self._recorder.detaching
        self._record.manifest = replace(
            self._record.manifest,
            script_profiler=self._others.record,
            detached=None if detaching is None else detaching.record,
        )
        self._record.save(self._step, self._samples, self.failure, self.ends_of_steps(), light)


def capture_here() -> Capture | None:
    """The capture that is open in this process."""
    return _current
