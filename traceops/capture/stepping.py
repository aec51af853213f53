"""What happens at a step's end: who is told, what ends and begins, and when nothing of that is due."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from traceops.capture.guard import Guard, contained
from traceops.capture.observing.observer import Observer
from traceops.capture.progress import ProgressWriter
from traceops.capture.schedule import Phase, Schedule
from traceops.capture.script_profiler import ScriptProfiler
from traceops.capture.short_way.ways import short_way
from traceops.capture.watchers import Watchers
from traceops.capture.windows import Windows
from traceops.core.capture_failure import CaptureFailure, CaptureOperation

_LONG_WAY_NS = 500_000_000  # from one step's end that looks at everything to the next


class Stepping(ABC):
    """The steps of a capture, which has those who watch them and may end them.

    automatic: steps are found by hooks, and the first may never come.
    """

    def __init__(self, schedule: Schedule, *, automatic: bool) -> None:
        self.automatic = automatic
        self._way = short_way()  # has the number of steps, and of samples
        self._open = False
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
            schedule, self._way, self._others, self.guard,
            tell=self._tell, save=self._save, give_way=self.give_way, is_open=lambda: self._open,
        )  # fmt: skip
        # What `step` asks first, for who need not call it then.
        self.passed: Callable[[], bool] = self._way.passed

    @abstractmethod
    def give_way(self, reason: str, *, adopt: bool = True) -> None:
        """Stop recording because something else has the better claim; what was recorded is kept.

        adopt: wait for the trace of a profiler of the script's own.
        """

    @abstractmethod
    def _failed(self, operation: CaptureOperation, error: BaseException) -> None:
        """Told by the guard: end the capture."""

    @abstractmethod
    def _save(self) -> None:
        """Write the manifest."""

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
            asked = self._tell(self._phase, step) and contained(self._hear_of_windows)
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
                self._tell(Phase.DONE.value, step)
            if observer is not None:
                observer.step_begins(recorded=windows.recording() or self._others.at_work)

    def _hear_of_windows(self) -> bool:
        changed = self._windows.hear()
        if changed:
            self._idle_until = 0
        return changed

    def _begin(self, step: int) -> None:
        phase = self._windows.step_begins(step)
        self._phase = "starting" if self.automatic and step == 0 else phase.value
        self._tell(self._phase, step)

    def _tell(self, phase: str, step: int) -> bool:
        """Whether it went to the file too, which it need not in each of many short steps."""
        if self._progress is None:
            return False
        self.guard.doing = CaptureOperation.HEARTBEAT
        return self._progress.write(phase, step, self._samples)

    def _doing(self, operation: CaptureOperation) -> None:
        self.guard.doing = operation
