"""What recorded steps tell of a change whatever the profiler costs.

It makes no step shorter, and the device's own work no longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceops.compare.capture import ComparedCapture, step_series
from traceops.compare.metrics import MIN_STEPS
from traceops.core.units import digits_text

_WORK = ("compute", "memory")  # of the device itself; communication may wait


@dataclass(frozen=True)
class StepBound:
    """A side's devices work for longer in each step than the other's whole recorded steps take.

    least_ms: their work in the step that has least of it. most_ms: the longest recorded step of the other side. pct: by
    how much the step time changed at least; positive where head is slower.
    """

    least_ms: float
    most_ms: float
    pct: float

    @property
    def text(self) -> str:
        """Why that is certain."""
        longer, other = ("head", "base") if self.pct > 0 else ("base", "head")
        return (
            f"{longer}'s devices work for {digits_text(self.least_ms)} ms a step, and no recorded step of {other} "
            f"takes more than {digits_text(self.most_ms)}, whatever the profiler costs"
        )


def step_bound(base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]) -> StepBound | None:
    """None where the recorded steps leave the change open, or are too few; hosts' own work is none of a device."""
    if any(capture.run.device_type != "cuda" for capture in (*base, *head)):
        return None
    works = [[step_series(capture, *_WORK) for capture in side] for side in (base, head)]
    takes = [[step_series(capture, "duration_ms") for capture in side] for side in (base, head)]
    if any(sum(map(len, side)) < MIN_STEPS or not all(map(len, side)) for side in (*works, *takes)):
        return None
    least = [min(float(np.min(series)) for series in side) for side in works]
    most = [max(float(np.max(series)) for series in side) for side in takes]
    if least[1] > most[0] > 0:
        return StepBound(least[1], most[0], 100 * (least[1] / most[0] - 1))
    if least[0] > most[1]:
        return StepBound(least[0], most[1], 100 * (most[1] / least[0] - 1))
    return None
