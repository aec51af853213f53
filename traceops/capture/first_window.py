"""The first window: two steps at a program's start, kept only where the program ends before its schedule does.

Nobody knows how many steps a program will have. So two are recorded at once and stay in memory. They are written where
the program ended before its own window held a whole step, and let go of as soon as that window is complete.

Only on machines without a GPU: on one, torch's profiler leaves CUPTI attached behind its window, and that makes the
steps longer that are to show what a step takes without it (docs/observe.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceops.capture.guard import contained, raised_by_a_handler
from traceops.capture.recorder import Recorder
from traceops.capture.schedule import Schedule
from traceops.capture.timing import Durations, StepTimer, uses_gpu
from traceops.core.capture_failure import FIRST_STEPS, CaptureOperation

_START = 1  # step 0 holds the program's start
FIRST = Schedule(skip_first=_START, unprofiled=0, warmup=0, active=FIRST_STEPS - _START)
_DEVICES = ("nvidia[0-9]*", "kfd", "dxg")  # what drivers of GPUs make in /dev


def may_have_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether this machine shows a GPU; looks at names only, and wakes none."""
    return any(next(devices.glob(name), None) is not None for name in _DEVICES)


@dataclass(frozen=True)
class KeptWindow:
    """What was written: the trace, relative to the run folder, and the whole steps in it."""

    trace: str
    steps: list[int]
    durations: Durations


class FirstWindow:
    """One rank's. An error of it ends only the first window, until it is to be written."""

    def __init__(
        self, out: Path, rank: int, options: Mapping[str, Any], doing: Callable[[CaptureOperation], None]
    ) -> None:
        self._recorder = Recorder(out, rank, FIRST, options, doing)
        self._timer: StepTimer | None = None
        self._steps: list[int] = []
        self.is_open = False

    @property
    def steps(self) -> list[int]:
        """The whole steps that it holds."""
        return list(self._steps)

    @property
    def has_left(self) -> bool:
        """See `Recorder`."""
        return self._recorder.has_left

    def stop_left(self) -> None:
        """See `Recorder`."""
        self._recorder.stop_left()

    def step_begins(self, step: int, give_way: Callable[[], None]) -> None:
        """Open, if it is time. give_way: called just before a profiler of the training's own starts.

        In the main thread only: torch's profiler is its thread's, and crashes the process where that has ended.
        """
        if step != FIRST.skip_first or uses_gpu() or threading.current_thread() is not threading.main_thread():
            return
        try:
            self._recorder.open(step, give_way)
            self._timer = StepTimer()
            self.is_open = True
        except Exception as error:
            self._end(error)

    def step_ended(self, step: int) -> None:
        """Count the step if it was recorded; stop behind the last one."""
        if not self.is_open:
            return
        try:
            assert self._timer is not None
            self._timer.mark()
            if not FIRST.ends_window(step):
                self._recorder.step()
            self._steps.append(step)
            if FIRST.ends_window(step):
                self.stop()
        except Exception as error:
            self._end(error)

    def stop(self) -> None:
        """Record no more; what is recorded stays in memory."""
        if self.is_open:
            self.is_open = False
            self._recorder.hold()

    def give_way(self) -> None:
        """A profiler of the training's own starts: the whole steps until now stay."""
        try:
            self.stop()
        except Exception as error:
            self._end(error)

    def keep(self) -> KeptWindow | None:
        """Write what it holds; None where that is no whole step. Raises what writing a trace does."""
        self.stop()
        if not self._steps or self._timer is None:
            return None
        self._recorder.write_held()
        trace = self._recorder.take_trace()
        return None if trace is None else KeptWindow(trace, self._steps, self._timer.durations())

    def drop(self) -> None:
        """Let go of everything, and raise nothing."""
        self.is_open = False
        self._steps = []
        contained(self._recorder.abandon)

    def _end(self, error: Exception) -> None:
        self.drop()
        if raised_by_a_handler(error):
            raise error
