"""Which training steps are skipped, timed without the profiler, warmed up and recorded."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property

from traceops.core.errors import UsageError

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
        for field in fields(self):
            value, least = getattr(self, field.name), 1 if field.name in ("active", "repeat") else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                flag = "--" + field.name.replace("_", "-")
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
        phase = self.phase(step)
        if phase is Phase.SKIP:
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
        """Raise UsageError if a window misses every synchronising micro-batch (steps are micro-batches).

        With gradient accumulation only every `grad_accum`-th micro-batch exchanges gradients.
        """
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
