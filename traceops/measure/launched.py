"""What a rank's steps launched, as the judgement of its kernels wants it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceops.compute.uses import Launched, Schedule
from traceops.core.arrays import Int, union
from traceops.measure.activity import COMM, Activity
from traceops.measure.host_rows import OPTIMIZER_NAME, rows_named
from traceops.measure.nesting import begin_inside
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

_LONG_CALL_NS = 500_000  # from which a launch has waited for the device
_SHORT_WAIT_NS = 5_000  # up to which the device had nothing left to do


def find_launched(events: Events, activity: Activity, steps: StepBounds) -> Launched:
    """Kernels, copies and fills of the recorded steps with their operators; no collectives."""
    step = steps.of_activity
    order = activity.by_launch
    kept = order[(activity.kind[order] != COMM) & (step[order] >= 0) & (step[order] < len(steps))]
    nesting = activity.host.nesting
    operator = np.full(len(kept), -1, dtype=np.int64)
    launch = activity.launch[kept]
    known = np.flatnonzero(launch >= 0)
    if len(nesting.rows) and len(known):
        operator[known] = nesting.innermost_around(launch[known])
    _by_number(events, activity.row[kept], operator, nesting.rows, np.arange(len(nesting.rows)))
    calls = activity.host.launches
    if len(calls) and len(nesting.rows) and (operator < 0).any():
        _by_number(events, activity.row[kept], operator, calls, nesting.innermost_around(calls))
    optimizing: NDArray[np.bool_] = np.zeros(len(kept), dtype=bool)
    optimizing[known] = begin_inside(events, launch[known], rows_named(events, OPTIMIZER_NAME))
    counted = (step >= 0) & (step < len(steps))
    occupied = union(activity.start[counted], activity.end[counted]).total
    host = steps.host_end - steps.host_start
    return Launched(
        events,
        activity.row[kept],
        step[kept],
        operator,
        nesting.rows,
        nesting.parent,
        optimizing,
        host,
        np.maximum(host - _waited(events, activity, steps), 0),
        occupied / len(steps),
        len(steps),
        _schedule(events, activity, steps, kept),
    )


def _schedule(events: Events, activity: Activity, steps: StepBounds, kept: Int) -> Schedule:
    """The middle step, as host and device went through it. kept: the activities that `Launched` has, in its order."""
    typical = len(steps) // 2
    mine = activity.by_launch[steps.of_activity[activity.by_launch] == typical]
    begin, over = (int(side[typical]) if len(side) else 0 for side in (steps.host_start, steps.host_end))
    launched = np.maximum.accumulate(np.clip(activity.launched[mine], begin, over))
    held = activity.host.held_up(_LONG_CALL_NS)
    waited = union(events.ts[held], events.end[held])
    edges = np.concatenate(([begin], launched, [over]))
    host = np.maximum(np.diff(edges - waited.covered_before(edges)), 0)
    calls = np.sort(np.concatenate((events.ts[activity.host.operators], events.ts[activity.host.launches])))
    counted = np.diff(np.searchsorted(calls, edges))
    position = np.full(len(activity.row), -1, dtype=np.int64)
    position[kept] = np.arange(len(kept))
    waits = np.zeros(len(mine), dtype=bool)
    done = activity.host.waiting
    done = events.ts[done[(events.ts[done] >= begin) & (events.ts[done] < over) & (events.dur[done] > _SHORT_WAIT_NS)]]
    behind = np.searchsorted(launched, done, side="right") - 1
    waits[behind[behind >= 0]] = True
    return Schedule(position[mine], host, counted, _prolonged(activity.start[mine], activity.end[mine]), waits)


def _prolonged(start: Int, end: Int) -> Int:
    """By how much each interval prolongs the union of those that began before it."""
    order = np.argsort(start, kind="stable")
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end[order])[:-1])) if len(order) else end
    longer = np.zeros(len(order), dtype=np.int64)
    longer[order] = np.maximum(end[order] - np.maximum(start[order], reach), 0)
    return longer


def _by_number(events: Events, rows: Int, operator: Int, candidates: Int, theirs: Int) -> None:
    """Kernels without an operator: that of the candidate (an operator or a call) with their external id."""
    lost = np.flatnonzero((operator < 0) & (events.external[rows] > 0))
    if not len(lost) or not len(candidates):
        return
    ids = events.external[candidates]
    order = np.argsort(ids, kind="stable")
    at = np.searchsorted(ids[order], events.external[rows[lost]])
    at = np.minimum(at, len(order) - 1)
    found = order[at]
    hit = ids[found] == events.external[rows[lost]]
    operator[lost[hit]] = theirs[found[hit]]


def _waited(events: Events, activity: Activity, steps: StepBounds) -> Int:
    """Time of each step's calls in which the host waited for the device."""
    calls = activity.host.held_up(_LONG_CALL_NS)
    step = np.searchsorted(steps.host_start, events.ts[calls], side="right") - 1
    inside = (step >= 0) & (events.ts[calls] < steps.host_end[np.maximum(step, 0)])
    waited: Int = np.bincount(step[inside], events.dur[calls][inside], minlength=len(steps)).astype(np.int64)
    return waited
