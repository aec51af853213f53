"""Which kernels (operators, on a CPU) take the device's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from traceops.measure.activity import COMM, COMPUTE, MEMORY, Activity
from traceops.measure.grouping import groups
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

KernelKind = Literal["compute", "comm", "memory"]

KIND_NAMES: dict[int, KernelKind] = {COMPUTE: "compute", COMM: "comm", MEMORY: "memory"}


@dataclass(frozen=True)
class KernelStats:
    """All launches of one name on one rank inside the steps; durations in µs."""

    name: str
    kind: str
    count: int
    total_us: float
    min_us: float
    max_us: float


def measure_kernels(events: Events, activity: Activity, steps: StepBounds) -> tuple[KernelStats, ...]:
    """Statistics by name, most time first. Unlike HTA's, kernels beyond the tenth keep their own min and max."""
    inside = (steps.of_activity >= 0) & (steps.of_activity < len(steps))
    rows, kinds = activity.row[inside], activity.kind[inside]
    if not len(rows):
        return ()
    values, group = groups(events.name[rows], kinds)
    dur = events.dur[rows]
    count = np.bincount(group, minlength=len(values))
    total = np.zeros(len(values), dtype=np.int64)
    np.add.at(total, group, dur)
    low = np.full(len(values), np.iinfo(np.int64).max)
    np.minimum.at(low, group, dur)
    high = np.zeros(len(values), dtype=np.int64)
    np.maximum.at(high, group, dur)
    order = np.argsort(-total, kind="stable")
    return tuple(
        KernelStats(events.names[name], KIND_NAMES[kind], *numbers)
        for (name, kind), *numbers in zip(
            values[order].tolist(),
            count[order].tolist(),
            (total / 1000.0)[order].tolist(),
            (low / 1000.0)[order].tolist(),
            (high / 1000.0)[order].tolist(),
            strict=True,
        )
    )
