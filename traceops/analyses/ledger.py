"""The step ledger of one rank: every nanosecond of a step in exactly one bucket."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceops.analyses.activity import (
    COMM,
    COMPUTE,
    MEMORY,
    Activity,
    blocking_rows,
    input_rows,
)
from traceops.analyses.steps import StepBounds
from traceops.intervals import Intervals, intersect, merge, split_at, subtract, union
from traceops.model import Events, Int

# `comm` is split into the three comm_* buckets once the ranks are compared (traceops.align).
COMM_BUCKETS = ("comm_transfer", "comm_wait", "comm_unmatched")
IDLE_BUCKETS = ("idle_input", "idle_sync", "idle_host", "idle_dependency", "idle_gap")
BUCKETS = ("compute", *COMM_BUCKETS, "memory", *IDLE_BUCKETS)

BACK_TO_BACK_NS = 1_000  # a shorter gap between kernels is the device's own


@dataclass(frozen=True)
class RankLedger:
    """Nanoseconds per bucket and step, `comm` still whole; `exposed` is the time `comm` counts."""

    duration: Int
    buckets: dict[str, Int]
    exposed: Intervals


def measure_ledger(events: Events, activity: Activity, steps: StepBounds) -> RankLedger:
    """Split each step of one rank [docs/metrics.md, the step ledger]; the buckets add up exactly."""
    start, end = steps.edges[:-1], steps.edges[1:]
    whole = union(start, end)
    compute = activity.union_of(COMPUTE)
    exposed = subtract(activity.union_of(COMM), compute)
    busy = merge(compute, exposed)
    memory = subtract(activity.union_of(MEMORY), busy)
    idle = split_at(subtract(whole, merge(busy, memory)), steps.edges)
    buckets = {
        "compute": compute.within(start, end),
        "comm": exposed.within(start, end),
        "memory": memory.within(start, end),
        **_idle_by_cause(events, activity, idle, start, end),
    }
    return RankLedger(end - start, buckets, intersect(exposed, whole))


def _idle_by_cause(
    events: Events, activity: Activity, idle: Intervals, start: Int, end: Int
) -> dict[str, Int]:
    """Idle time per step by the cause of the activity that ends the gap."""
    order = np.argsort(activity.start, kind="stable")
    following = np.searchsorted(activity.start[order], idle.end, side="left")
    has_next = following < len(order)
    launch = (
        np.where(has_next, activity.launch[order][np.minimum(following, len(order) - 1)], -1)
        if len(order)
        else (np.full(len(idle), -1, dtype=np.int64))
    )
    if activity.on_gpu:
        launched = np.where(launch >= 0, events.ts[launch], np.iinfo(np.int64).min)
        late = launched > idle.start  # idle came first: the device waited for the host
        thread = np.where(launch >= 0, events.tid[launch], -1)
    else:
        late = np.ones(len(idle), dtype=bool)
        thread = np.full(len(idle), _main_thread(events))
    gap_cause = np.where(late, "idle_host", "idle_dependency")
    synced = late & _blocked_when_idle_began(events, idle.start, thread)
    gap_cause[synced] = "idle_sync"
    gap_cause[(idle.end - idle.start < BACK_TO_BACK_NS) & activity.on_gpu] = "idle_gap"

    input_ns = np.where(late & (gap_cause != "idle_gap"), _input_within(events, idle, thread), 0)
    rest_ns = idle.end - idle.start - input_ns
    step = np.searchsorted(start, idle.start, side="right") - 1
    result = {}
    for bucket in IDLE_BUCKETS:
        ns = input_ns if bucket == "idle_input" else np.where(gap_cause == bucket, rest_ns, 0)
        result[bucket] = _sum_by(step, ns, len(start))
    return result


def _sum_by(step: Int, ns: Int, count: int) -> Int:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, step, ns)  # bincount would sum in floating point
    return total


def _main_thread(events: Events) -> int:
    """The thread the steps are marked on, or else the one with most events."""
    if not len(events):
        return -1
    hits = [i for i, name in enumerate(events.names) if name.startswith("ProfilerStep")]
    rows = np.flatnonzero(np.isin(events.name, hits))
    tids = events.tid[rows] if len(rows) else events.tid
    values, counts = np.unique(tids, return_counts=True)
    return int(values[np.argmax(counts)])


def _blocked_when_idle_began(events: Events, gap_start: Int, thread: Int) -> NDArray[np.bool_]:
    """Whether the launching thread was waiting for the device at the moment the device ran out of work.

    A synchronisation that begins later waits for nothing and is not the cause of the gap.
    """
    rows = blocking_rows(events)
    blocked = np.zeros(len(gap_start), dtype=bool)
    for tid in np.unique(events.tid[rows]):
        own = rows[events.tid[rows] == tid]
        blocked |= union(events.ts[own], events.end[own]).holds(gap_start) & (thread == tid)
    return blocked


def _input_within(events: Events, idle: Intervals, thread: Int) -> Int:
    """Time of each gap in which the launching thread was inside data loading, ns."""
    rows = input_rows(events)
    inside = np.zeros(len(idle), dtype=np.int64)
    for tid in np.unique(events.tid[rows]):
        own = rows[events.tid[rows] == tid]
        loading = union(events.ts[own], events.end[own])
        inside += np.where(thread == tid, loading.within(idle.start, idle.end), 0)
    return inside
