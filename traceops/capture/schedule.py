"""Which training steps are skipped, timed without the profiler, warmed up and recorded; windows requested later too."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path

from traceops.core.errors import UsageError
from traceops.core.files import write_whole

NEVER = sys.maxsize  # the number of no step


class Phase(Enum):
    """What the capture does during one step."""

    SKIP = "skip"
    UNPROFILED = "unprofiled"
    WARMUP = "warmup"
    ACTIVE = "active"
    DONE = "done"


@dataclass(frozen=True)
class Schedule:
    """`skip_first` steps, then `repeat` windows of `unprofiled` + `warmup` + `active` steps each.

    A step is what lies between two calls of ``capture.step()``; step 0 begins where the capture is entered.

    skip_first: steps left alone at the start (compilation, allocator and first-batch effects).
    unprofiled: steps timed before the profiler starts, so that its own cost is known (TO-V005).
    warmup: steps with the profiler running whose events are thrown away; starting it is not free.
    active: steps recorded into one trace.
    repeat: number of windows, one trace file a rank for each.

    Raises UsageError for a value that cannot work.
    """

    skip_first: int = 2
    unprofiled: int = 6
    warmup: int = 2
    active: int = 4
    repeat: int = 1

    def __post_init__(self) -> None:
        for name in Schedule.__dataclass_fields__:
            value, least = getattr(self, name), 1 if name in ("active", "repeat") else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag} {value!r}: must be a whole number, {least} or more")

    @cached_property  # asked for in every step of a training
    def window_steps(self) -> int:
        """Steps of one window, recorded or not."""
        return self.unprofiled + self.warmup + self.active

    @cached_property
    def total_steps(self) -> int:
        """Steps after which the last window is complete."""
        return self.skip_first + self.repeat * self.window_steps

    def phase(self, step: int) -> Phase:
        """What happens during step number `step`, counted from 0."""
        if step < self.skip_first:
            return Phase.SKIP
        if step >= self.total_steps:
            return Phase.DONE
        position = (step - self.skip_first) % self.window_steps
        if position < self.unprofiled:
            return Phase.UNPROFILED
        return Phase.WARMUP if position < self.unprofiled + self.warmup else Phase.ACTIVE

    def window(self, step: int) -> int:
        """Index of the window that `step` belongs to; steps before the first count as window 0."""
        return max(0, min(step - self.skip_first, self.repeat * self.window_steps - 1)) // self.window_steps

    def ends_window(self, step: int) -> bool:
        """Whether `step` is the last recorded one of its window."""
        return self.phase(step) is Phase.ACTIVE and ((step + 1 - self.skip_first) % self.window_steps == 0)

    def active_steps(self, window: int) -> range:
        """Numbers of the recorded steps of `window`, as ``ProfilerStep#<n>`` in the trace."""
        end = self.skip_first + (window + 1) * self.window_steps
        return range(end - self.active, end)

    def idle_until(self, step: int) -> int:
        """The first step from `step` on that is timed or recorded."""
        if (phase := self.phase(step)) is Phase.SKIP:
            return self.skip_first
        return NEVER if phase is Phase.DONE else step

    def check(self, total_steps: int) -> None:
        """Raise UsageError if the windows cannot be complete after `total_steps` steps."""
        if total_steps < self.total_steps:
            raise UsageError(
                f"the schedule needs {self.total_steps} steps ({self.explain()}) and there are only "
                f"{total_steps}; train at least {self.total_steps} steps, or lower --skip-first, "
                "--unprofiled, --warmup, --active or --repeat"
            )

    def check_sync(self, grad_accum: int) -> None:
        """Raise UsageError if a window misses every synchronising micro-batch (steps are micro-batches). With gradient
        accumulation only every `grad_accum`-th micro-batch exchanges gradients."""
        for window in range(self.repeat):
            steps = self.active_steps(window)
            if not any((step + 1) % grad_accum == 0 for step in steps):
                raise UsageError(
                    f"gradients are exchanged every {grad_accum} micro-batches (--grad-accum {grad_accum}, "
                    f"--step-unit batch) and the recorded steps {steps.start} to {steps.stop - 1} hold no "
                    f"such micro-batch; use --active {grad_accum}, or --step-unit optimizer"
                )

    @classmethod
    def quick(cls) -> Schedule:
        """The shortest that still tells the profiler's own cost: six steps."""
        return cls(skip_first=1, unprofiled=2, warmup=1, active=2)

    def explain(self) -> str:
        """The sum that gives `total_steps`, in words."""
        window = f"{self.unprofiled} unprofiled + {self.warmup} warmup + {self.active} active"
        times = f"{self.repeat} × ({window})" if self.repeat > 1 else window
        return f"{self.skip_first} skipped + {times}"


REQUEST = "window.json"  # beside the heartbeats, which are the launcher's and its ranks' own
_LOOK_EVERY_S = 0.45  # a little less than from one step's end that looks at everything to the next


@dataclass(frozen=True)
class LaterWindow:
    """`warmup` steps from step `start` on, then `active` recorded ones; `number` of the window among the run's.
    with_memory: with the stack of each allocation from now on, and a memory snapshot at its end. why: the launcher asks
    for it by itself, in a word of `launch/on_demand.py`."""

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
        if (window := self._at(step)) is None:
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
        if (now := time.monotonic()) < self._next:
            return None
        self._next = now + _LOOK_EVERY_S
        try:
            if (inode := self._path.stat().st_ino) == self._seen:
                return None
            window = LaterWindow(**json.loads(self._path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        self._seen = inode
        return window


STEP_ON = ("optimizer", "forward")  # what may end a step of a script that says nothing of steps


@dataclass(frozen=True)
class StepEnds:
    """How often what ended a step, and what ran within one, by name: ``AdamW.step``, ``GradScaler.update``. within:
    what might have ended a step and was taken for a part of one: the other optimizers. beside: what other threads did
    meanwhile, whose training is another one."""

    ends: dict[str, int] = field(default_factory=dict)
    within: dict[str, int] = field(default_factory=dict)
    beside: dict[str, int] = field(default_factory=dict)
