"""What the launching host was in while the device waited for its launches: long operators and calls, or nothing seen.

The begins and ends of events cut a thread's time into stretches. What launches many kernels has short ones. In a long
stretch the host did one thing: it was in the innermost event around it, or in what the trace does not show. Recording
is short each time [measure/recording.py], so it makes no stretch long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from traceops.core.arrays import Int, Intervals, empty, intersect, merge, subtract, union
from traceops.measure.activity import COMPUTE, Activity
from traceops.measure.host_rows import HostRows, named
from traceops.measure.ledger import Lane
from traceops.measure.nesting import groups
from traceops.measure.steps import StepBounds

LONG_NS = 200_000  # a stretch without any begin or end: a launch takes 2 to 50 µs, recorded
UNSEEN_NS = 1_000_000  # the same outside of all events: Python between two operators takes less
_MOST = 8
_MOST_WORK = 3


class HeldLaunches(Struct, frozen=True):
    """Of one operator or call ('' for what the trace does not show): the device's idle time in its long stretches.

    operator: the innermost around a call, '' outside any. idle_ns: by step, of the bucket idle_host. count: of
    stretches by the step that they begin in.
    """

    name: str
    operator: str
    idle_ns: Int
    count: Int

    @property
    def unseen(self) -> bool:
        """Whether the trace shows nothing of it."""
        return not self.name


def measure_held(activity: Activity, steps: StepBounds, lane: Lane) -> tuple[HeldLaunches, ...]:
    """By name, most idle time first; none where no long stretch of the host has a device wait for a launch."""
    late, host = lane.own["idle_host"], activity.host
    if not activity.on_gpu or not late.total or not len(steps):
        return ()
    # Each thread that launches computation: forward's and backward's. Others prefetch.
    launches = activity.launch[(activity.kind == COMPUTE) & (activity.launch >= 0)]
    threads = np.union1d(host.events.tid[launches], host.events.tid[host.steps[0]]).tolist()
    rows = np.concatenate((host.operators, host.launches))
    tid = host.events.tid[rows]
    seen = [_of_thread(host, rows[tid == thread]) for thread in threads]
    if not seen:
        return ()
    found = [*_named(host, seen, late, steps), _unseen(seen, late, steps)]
    found = [one for one in found if one.idle_ns.any()]
    return tuple(sorted(found, key=lambda one: -int(one.idle_ns.sum()))[:_MOST])


_COMPUTES = re.compile(r"^(aten|torchaudio|torchvision)::")
CPU_WORK_NS = 20_000  # an operator that launches nothing and takes less only prepares a launch


class HostWork(Struct, frozen=True):
    """The device's idle time by step while its launching host computes on the CPU, and the operators, most first."""

    idle_ns: Int
    names: tuple[str, ...]


def measure_host_work(activity: Activity, steps: StepBounds, lane: Lane) -> HostWork:
    """Outermost operators that call nothing of the device, while it waits for launches; nothing without a GPU."""
    host, late = activity.host, lane.own["idle_host"]
    events, threads = host.events, np.unique(host.events.tid[activity.launch[activity.launch >= 0]])
    if not activity.on_gpu or not late.total or not len(steps):
        return HostWork(np.zeros(len(steps), dtype=np.int64), ())
    outer = host.nesting.outermost
    calls = np.bincount(host.nesting.outermost_around(host.launches) + 1, minlength=len(host.nesting.rows) + 1)[1:]
    rows = host.nesting.rows[outer[calls[outer] == 0]]
    rows = rows[np.isin(events.tid[rows], threads) & (events.dur[rows] >= CPU_WORK_NS)]
    rows = rows[named(events, _COMPUTES, ("::",)).take(events.name[rows])]
    idle = intersect(union(events.ts[rows], events.end[rows]), late)
    took = np.bincount(events.name[rows], late.within(events.ts[rows], events.end[rows]), len(events.names))
    most = [number for number in np.argsort(-took, kind="stable")[:_MOST_WORK].tolist() if took[number] > 0]
    return HostWork(idle.within(steps.edges[:-1], steps.edges[1:]), tuple(events.names[number] for number in most))


def _unseen(threads: Sequence[_Thread], late: Intervals, steps: StepBounds) -> HeldLaunches:
    """When all these threads are outside of all events."""
    inside = merge(*(one.inside for one in threads))
    start, end = inside.end[:-1], inside.start[1:]
    long = (end - start >= UNSEEN_NS) & (late.within(start, end) >= LONG_NS)
    start, end = start[long], end[long]
    return _held("", "", intersect(Intervals(start, end), late), start, steps)


class _Thread(Struct, frozen=True):
    """When a thread is inside operators and calls, when it has many short ones, and its long stretches inside one.

    row: which one each of these lies in.
    """

    inside: Intervals
    launching: Intervals
    long: Intervals
    row: Int


def _of_thread(host: HostRows, rows: Int) -> _Thread:
    """rows: of the thread's operators and calls."""
    ts, end = host.events.ts[rows], host.events.end[rows]
    inside = union(ts, end)
    at = np.concatenate((ts, end))
    at.sort(kind="stable")  # two runs nearly in order
    long = np.flatnonzero(np.diff(at) >= LONG_NS)
    start, over = at[long], at[long + 1]
    launching = union(np.concatenate((at[:1], over)), np.concatenate((start, at[-1:])))
    # Which of these lie in an event, and in which: the last that began of those that are around one.
    rows = rows[end - ts >= LONG_NS]
    ts, end = host.events.ts[rows], host.events.end[rows]
    first, behind = start.searchsorted(ts), over.searchsorted(end, side="right")
    around = np.flatnonzero(behind > first)
    row = np.full(len(long), -1, dtype=np.int64)
    for one in around[np.lexsort((-end[around], ts[around]))].tolist():
        row[first[one] : behind[one]] = rows[one]
    held = row >= 0
    return _Thread(inside, launching, Intervals(start[held], over[held]), row[held])


def _named(host: HostRows, threads: Sequence[_Thread], late: Intervals, steps: StepBounds) -> list[HeldLaunches]:
    """Of the operators and calls by name, those with most idle time."""
    events = host.events
    alone = [
        subtract(late, merge(empty(), *(other.launching for at, other in enumerate(threads) if at != number)))
        for number in range(len(threads))
    ]
    took = [own.within(one.long.start, one.long.end) for own, one in zip(alone, threads, strict=True)]
    held = [ns >= LONG_NS for ns in took]  # the rest lies beside work of the device
    start, end, row, took_ns, thread = (
        np.concatenate([column[chosen] for column, chosen in zip(columns, held, strict=True)])
        for columns in (
            [one.long.start for one in threads],
            [one.long.end for one in threads],
            [one.row for one in threads],
            took,
            [np.full(len(ns), number) for number, ns in enumerate(took)],
        )
    )
    is_call = np.zeros(len(events), dtype=bool)
    is_call[host.launches] = True
    called = np.flatnonzero(is_call[row])
    around = host.nesting.innermost_around(row[called])
    operator = np.full(len(row), -1, dtype=np.int64)
    inside = around >= 0
    operator[called[inside]] = events.name[host.nesting.rows[around[inside]]]
    keys, group = groups(events.name[row], operator)
    total = np.bincount(group, weights=took_ns, minlength=len(keys))
    found = []
    for number in np.argsort(-total, kind="stable")[:_MOST].tolist():
        name, where = keys[number].tolist()
        mine = group == number
        idle = [
            intersect(own, union(start[mine & (thread == at)], end[mine & (thread == at)]))
            for at, own in enumerate(alone)
        ]
        text = events.names[where] if where >= 0 else ""
        found.append(_held(events.names[name], text, merge(*idle), start[mine], steps))
    return found


def _held(name: str, operator: str, idle: Intervals, begin: Int, steps: StepBounds) -> HeldLaunches:
    """begin: when each stretch begins."""
    step = np.clip(steps.edges.searchsorted(begin, side="right") - 1, 0, len(steps) - 1)
    took = idle.within(steps.edges[:-1], steps.edges[1:])
    return HeldLaunches(name, operator, took, np.bincount(step, minlength=len(steps)))
