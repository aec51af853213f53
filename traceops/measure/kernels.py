"""Which kernels (operators, on a CPU) take the device's time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from traceops.core.arrays import Int
from traceops.measure.activity import COMM, COMPUTE, MEMORY, Activity
from traceops.measure.grouping import groups
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

KernelKind = Literal["compute", "comm", "memory"]

_MOST_BLOCKS = 1 << 40  # of one launch; sums over a trace stay within 64 bits

KIND_NAMES: dict[int, KernelKind] = {COMPUTE: "compute", COMM: "comm", MEMORY: "memory"}


@dataclass(frozen=True)
class KernelStats:
    """All launches of one name on one rank inside the steps; durations in µs.

    `blocks` are the thread blocks of all its launches together, -1 where the trace does not say. `grid` is that of its
    longest launch, an operator's input shapes on a CPU; empty where the trace does not say.
    """

    name: str
    kind: str
    count: int
    total_us: float
    min_us: float
    max_us: float
    blocks: int = -1
    grid: str = ""


def measure_kernels(events: Events, activity: Activity, steps: StepBounds) -> tuple[KernelStats, ...]:
    """Statistics by name, most time first. Unlike HTA's, kernels beyond the tenth keep their own min and max."""
    inside = (steps.of_activity >= 0) & (steps.of_activity < len(steps))
    rows, kinds = activity.row[inside], activity.kind[inside]
    if not len(rows):
        return ()
    values, group = groups(events.name[rows], kinds)
    dur = (activity.end - activity.start)[inside]
    count = np.bincount(group, minlength=len(values))
    total = np.zeros(len(values), dtype=np.int64)
    np.add.at(total, group, dur)
    low = np.full(len(values), np.iinfo(np.int64).max)
    np.minimum.at(low, group, dur)
    high = np.zeros(len(values), dtype=np.int64)
    np.maximum.at(high, group, dur)
    blocks = _blocks(events, rows, group, len(values)) if activity.on_gpu else np.full(len(values), -1)
    longest = np.zeros(len(values), dtype=np.int64)
    at = np.flatnonzero(dur == high[group])[::-1]  # of several the first
    longest[group[at]] = np.where(kinds[at] == MEMORY, -1, events.shape[rows[at]])
    order = np.argsort(-total, kind="stable")
    shapes = (*events.shapes, "")
    return tuple(
        KernelStats(events.names[name], KIND_NAMES[kind], *known)
        for (name, kind), *known in zip(
            values[order].tolist(),
            count[order].tolist(),
            (total / 1000.0)[order].tolist(),
            (low / 1000.0)[order].tolist(),
            (high / 1000.0)[order].tolist(),
            blocks[order].tolist(),
            [shapes[shape] for shape in longest[order].tolist()],
            strict=True,
        )
    )


def _blocks(events: Events, rows: Int, group: Int, count: int) -> Int:
    """Thread blocks over the launches of each group, -1 where one of them has no grid."""
    of_shape = np.array([_blocks_of(shape) for shape in events.shapes] + [-1], dtype=np.int64)
    own = of_shape[events.shape[rows]]
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, group, own)
    unknown = np.bincount(group[own < 0], minlength=count) > 0
    known: Int = np.where(unknown, -1, total)
    return known


def _blocks_of(grid: str) -> int:
    """Blocks of a grid such as '[8, 16, 1]'; -1 for what is no grid."""
    sizes = grid.strip("[] ").split(",")
    if len(sizes) != 3 or not all(size.strip().isdigit() for size in sizes):
        return -1
    blocks = math.prod(map(int, sizes))
    return blocks if 0 < blocks <= _MOST_BLOCKS else -1
