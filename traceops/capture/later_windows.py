"""A window that somebody asks for while the training runs: `traceops capture`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from traceops.capture.schedule import Phase, Schedule
from traceops.core.files import write_whole

REQUEST = "window.json"  # beside the heartbeats, which are the launcher's and its ranks' own
_LOOK_EVERY_S = 0.45  # a little less than from one step's end that looks at everything to the next


@dataclass(frozen=True)
class LaterWindow:
    """`warmup` steps from step `start` on, then `active` recorded ones; `number` of the window among the run's.

    with_memory: with the stack of each allocation from now on, and a memory snapshot at its end. why: the launcher asks
    for it by itself, in a word of `launch/second_window.py`.
    """

    number: int
    start: int
    warmup: int
    active: int
    with_memory: bool = False
    why: str = ""

    @property
    def end(self) -> int:
        """The first step behind it."""
        return self.start + self.warmup + self.active

    def missed(self, step: int) -> str:
        """What to note where it came too late."""
        return f"window {self.number} was asked for from step {self.start} on, when step {step} had begun"


@dataclass(frozen=True)
class LongerSchedule(Schedule):
    """A schedule with windows after its own; `total_steps` and what follows from it are those of the schedule."""

    later: tuple[LaterWindow, ...] = field(default=())

    def __post_init__(self) -> None:
        """Its numbers are those of a schedule that was checked."""

    @classmethod
    def of(cls, schedule: Schedule, window: LaterWindow) -> LongerSchedule:
        """`schedule` with this window too, where it is asked for or behind all that the schedule has."""
        own = {name: getattr(schedule, name) for name in Schedule.__dataclass_fields__}
        later: tuple[LaterWindow, ...] = getattr(schedule, "later", ())
        free_from = max([schedule.total_steps, *(other.end for other in later)])
        return cls(**own, later=(*later, replace(window, start=max(window.start, free_from))))

    def phase(self, step: int) -> Phase:
        window = self._at(step)
        if window is None:
            return super().phase(step)
        return Phase.WARMUP if step < window.start + window.warmup else Phase.ACTIVE

    def window(self, step: int) -> int:
        before = [window for window in self.later if window.start <= step]
        return before[-1].number if before else super().window(step)

    def ends_window(self, step: int) -> bool:
        window = self._at(step)
        return super().ends_window(step) if window is None else step == window.end - 1

    def active_steps(self, window: int) -> range:
        for later in self.later:
            if later.number == window:
                return range(later.end - later.active, later.end)
        return super().active_steps(window)

    def idle_until(self, step: int) -> int:
        if self._at(step) is not None:
            return step
        return min([super().idle_until(step), *(window.start for window in self.later if window.start > step)])

    def why(self, window: int) -> str:
        """Why the launcher asked for it by itself; empty where it did not."""
        return next((later.why for later in self.later if later.number == window), "")

    def _at(self, step: int) -> LaterWindow | None:
        return next((window for window in self.later if window.start <= step < window.end), None)


def ask(folder: Path, window: LaterWindow) -> None:
    """Have the ranks whose heartbeats are in `folder` record this window."""
    told = {name: value for name, value in asdict(window).items() if value is not False and value != ""}
    write_whole(folder / REQUEST, json.dumps(told).encode())


class AskedWindows:
    """What was asked of this rank; a look costs a `stat`, and one is made every half a second."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / REQUEST
        self._seen: int | None = None
        self._next = 0.0

    def look(self) -> LaterWindow | None:
        """A window that was asked for since the last look."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + _LOOK_EVERY_S
        try:
            inode = self._path.stat().st_ino
            if inode == self._seen:
                return None
            window = LaterWindow(**json.loads(self._path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        self._seen = inode
        return window
