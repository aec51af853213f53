"""What a capture records, window by window: when the profiler opens, what is timed beside it, and what is kept."""

from __future__ import annotations

from collections.abc import Callable

from traceops.capture.guard import Guard, contained, text
from traceops.capture.light.window import LightWindow
from traceops.capture.open_manifest import OpenManifest
from traceops.capture.recorder import FirstWindow, OtherThread, Recorder
from traceops.capture.schedule import NEVER, AskedWindows, LongerSchedule, Phase, Schedule
from traceops.capture.script_profiler import ScriptProfiler
from traceops.capture.short_way.ways import LongWay
from traceops.capture.timing import StepTimer
from traceops.capture.trace_file import Adoption
from traceops.capture.watchers import Watchers
from traceops.core.capture_failure import CaptureOperation

_SEVERAL_THREADS = "steps end in several threads, and torch's profiler records one"


class Windows:
    """Those of the schedule, those that are asked for, and what stands for them where none is whole.

    `schedule` is known at once; the recorder and the manifest come with `begin`, as far as the capture gets.

    asked: windows that somebody asks for, where a launcher may. way: has the number of steps. others: sees profilers of
    the script's own. publish: a phase at a step, for the launcher. save: the manifest. is_open: whether the capture
    still is. give_way: ends the recording for a reason; `adopt`: to wait for the trace of the script's own profiler.
    """

    def __init__(
        self,
        schedule: Schedule,
        way: LongWay,
        others: ScriptProfiler,
        guard: Guard,
        *,
        publish: Callable[[str, int], object],
        save: Callable[[], object],
        give_way: Callable[..., None],
        is_open: Callable[[], bool],
    ) -> None:
        self.schedule = schedule
        self.recorder: Recorder | None = None
        self.thread_changed = False  # the last step ended in another thread than the one before
        self.asked: AskedWindows | None = None
        self.had_first = False
        self.adopted = False
        self._way, self._others, self._guard, self._publish, self._save = way, others, guard, publish, save
        self._give_way, self._is_open = give_way, is_open
        self._timers: dict[Phase, StepTimer] = {}
        self._record: OpenManifest | None = None
        self._watchers: Watchers | None = None
        self._first: FirstWindow | None = None
        self._adoption: Adoption | None = None
        # Those that may leave a profiler open, though they are done.
        self.recorders: list[Recorder | FirstWindow] = []

    def begin(self, recorder: Recorder, first: FirstWindow | None) -> None:
        """first: the window that stands for the schedule's, where that may hold no whole step."""
        self.recorder, self._first, self.had_first = recorder, first, first is not None
        self.recorders = [one for one in (recorder, first) if one is not None]

    def keep_in(self, record: OpenManifest, watchers: Watchers) -> None:
        """Where what is recorded goes, and who watches beside it."""
        self._record, self._watchers = record, watchers

    @property
    def light(self) -> LightWindow | None:
        """The window of the device alone."""
        return None if self._watchers is None else self._watchers.light

    def recording(self) -> bool:
        """Whether anything of ours records now."""
        light, first, recorder = self.light, self._first, self.recorder  # asked for twice a step
        return (
            (recorder is not None and recorder.is_open)
            or (light is not None and light.is_open)
            or (first is not None and first.is_open)
        )

    def has_left(self) -> bool:
        """Whether a profiler of ours is open that only another thread can stop."""
        return any(one.has_left for one in self.recorders)

    def next_due(self, step: int) -> int:
        """The first step at whose end more is due than watching, now that `step` has begun."""
        if self.recorder is None or self.has_left() or self.thread_changed or self.recording():
            return step
        if self._timers or self._adoption is not None or self._first is not None:
            return step
        light = self.light
        idle = NEVER if light is None else light.idle_until(step)
        return min(self.schedule.idle_until(step), idle) - 1  # which begins at the end of the one before

    def hear(self) -> bool:
        """Take what `traceops capture` asks for into the schedule, behind what it has; whether that changes it."""
        window = None if self.asked is None else self.asked.look()
        if window is None or self.recorder is None or self._record is None:
            return False
        longer = LongerSchedule.of(self.schedule, window)
        if longer.later[-1].start < self._way.step:
            self._record.note(window.missed(self._way.step))
            return False
        self.schedule = self.recorder.schedule = longer
        memory = None if self._watchers is None else self._watchers.memory
        if window.with_memory and memory is not None:
            memory.begin_history()
        if self.light is not None:
            self.light.again(longer.later[-1].end)
        return True

    def step_ended(self, step: int) -> None:
        """End what ends with this step."""
        phase = self.schedule.phase(step)
        self._guard.doing = CaptureOperation.TIME
        if self._timers and phase in self._timers:
            self._timers[phase].mark(counts=phase is not Phase.UNPROFILED or not self._others.disturbed)
        if self._adoption is not None:
            self._adoption.step_ended(step)
        if self._first is not None:
            self._first.step_ended(step)
        if self.recorder is None or not self.recorder.is_open:
            return
        if self.schedule.ends_window(step):
            self._publish("profiler", step + 1)  # writing the trace may take minutes
        try:
            self.recorder.step()
        except OtherThread:
            self._give_way(_SEVERAL_THREADS, adopt=False)
            return
        # Why the next step cannot be recorded too; None where it can, or none follows.
        ceiling = self.recorder.ceiling
        full = None if ceiling is None else ceiling.step_ended(recorded=phase is Phase.ACTIVE)
        if full is not None:
            self._publish("profiler", step + 1)
            self.recorder.close()
            self._keep(self.schedule.window(step), complete=True)  # of the steps until now
            self._give_way(full, adopt=False)
            return
        if self.schedule.ends_window(step):
            if self._watchers is not None:
                self._watchers.window_ends(step, self.schedule)
            self._keep(self.schedule.window(step), complete=True)

    def light_step_ended(self, step: int) -> None:
        """End the window of the device alone, where it ends with this step."""
        if (light := self.light) is not None and light.step_ended(step):
            self._guard.doing = CaptureOperation.MANIFEST
            self._save()
            self._guard.doing = CaptureOperation.TIME

    def step_begins(self, step: int) -> Phase:
        """Begin what begins with this step; its phase."""
        assert self.recorder is not None and self._record is not None
        phase, light = self.schedule.phase(step), self.light
        opens = phase in (Phase.WARMUP, Phase.ACTIVE) and not self.recorder.is_open
        if opens and self._record.manifest.status == "running":
            if light is not None:
                light.give_way("window_asked")
            self._open(step)
        if self._first is not None and self._record.manifest.status == "running":
            self._first.step_begins(step, self._first_gives_way)
        self._guard.doing = CaptureOperation.TIME
        timed = phase is Phase.UNPROFILED or (phase is Phase.ACTIVE and self.recorder.is_open)
        if timed and self._starts(phase, step):
            self._timers[phase] = StepTimer()
        if phase is Phase.DONE and light is not None and self._record.manifest.status == "running":
            light.step_begins(step, self._others.last)
        return phase

    def _open(self, step: int) -> None:
        assert self.recorder is not None
        if self.thread_changed:  # a profiler that is left open in a thread which ended crashes the process
            self._give_way(_SEVERAL_THREADS, adopt=False)
            return
        self._publish("profiler", step)
        try:
            self.recorder.open(step, self._foreign_profiler)
        except RuntimeError as error:  # Kineto holds one session a process
            self._give_way(text("no_start", step=step, error=error))

    def _starts(self, phase: Phase, step: int) -> bool:
        """Whether the steps of this phase are timed from this one on."""
        if self._first is not None and self._first.is_open:
            return False  # its steps are no measure of those that nothing records
        if step == 0 or phase is not self.schedule.phase(step - 1) or self.schedule.ends_window(step - 1):
            return True
        return self._first is not None and phase not in self._timers

    def _foreign_profiler(self) -> None:
        if self._is_open():
            self._guard.run(CaptureOperation.STOP, self._give_way, text("script_profiles"))

    def _first_gives_way(self) -> None:
        """A profiler of the script's own starts: it may be over when the schedule's window is due."""
        if self._is_open() and self._first is not None:
            self._guard.run(CaptureOperation.STOP, self._first.give_way)

    def stop(self) -> None:
        """Record no more; what was recorded is kept."""
        if self._first is not None:
            self._first.stop()
        if self.recorder is not None and self.recorder.is_open:
            self._publish("profiler", self._way.step)
            better = self._first is not None and self._first.steps and not self._steps_until_now()
            self.recorder.close(keep=not better)
        if self._timers:
            self._keep(self.schedule.window(self._way.step), complete=False)

    def adopt(self) -> None:
        """Wait for the trace of a profiler of the script's own."""
        if self.recorder is not None and self._record is not None:
            self._adoption = self.recorder.adopt(len(self._record.manifest.windows))

    def end(self, *, last: bool) -> None:
        """The training is over: keep what there is. last: the script's own profiler does no more either."""
        self.stop()
        contained(self._keep_adopted, last)
        self._keep_first()

    def fail(self, error: BaseException, *, profiler_works: bool) -> None:
        """The capture failed: keep what was timed, and what was recorded where it was not the profiler that failed."""
        contained(self._keep_timings)
        if self.recorder is not None:
            if profiler_works:
                contained(self._keep_recorded)
            self.recorder.abandon()
        if isinstance(error, Exception):
            contained(self._keep_first)
        self._drop_first()

    def drop(self) -> None:
        """Keep nothing."""
        if self.recorder is not None:
            self.recorder.close(keep=False)
        self._drop_first()

    def _keep(self, window: int, *, complete: bool) -> None:
        assert self._record is not None
        self._guard.doing = CaptureOperation.TIME
        steps = [step for step in self.schedule.active_steps(window) if step < self._way.step + complete]
        self._record.add_times(self._taken_timers(), steps)
        trace = None if self.recorder is None else self.recorder.take_trace()
        why = self.schedule.why(window) if isinstance(self.schedule, LongerSchedule) else ""
        self._record.add_window(window, trace, steps, complete=complete, why=why or None)
        if complete:
            self._drop_first()
        self._save()

    def _keep_timings(self) -> None:
        """Durations of the steps that were timed before the failure."""
        if self._timers and self._record is not None:
            self._record.add_times(self._taken_timers(), self._steps_until_now())

    def _keep_recorded(self) -> None:
        """The trace of the window that the failure cut short."""
        if self.recorder is None or self._record is None or not self.recorder.is_open:
            return
        self.recorder.close()
        window, steps = self.schedule.window(self._way.step), self._steps_until_now()
        self._record.add_window(window, self.recorder.take_trace(), steps, complete=False)

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

    def _keep_adopted(self, last: bool) -> None:
        """Take the trace of the script's own profiler as this rank's, if it made one."""
        adoption, self._adoption = self._adoption, None
        if adoption is None or self._record is None:
            return
        adoption.close(last=last)
        if adoption.trace is not None:
            self.adopted = True
            self._record.add_adopted(adoption.trace, adoption.steps)

    def _drop_first(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            first.drop()

    def _steps_until_now(self) -> list[int]:
        recorded = self.schedule.active_steps(self.schedule.window(self._way.step))
        return [step for step in recorded if step < self._way.step]

    def _taken_timers(self) -> dict[Phase, StepTimer]:
        """The timers, which are done now."""
        timers, self._timers = self._timers, {}
        return timers
