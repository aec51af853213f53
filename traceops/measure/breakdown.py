"""Idle, compute and non-compute share and overlap of one rank, by HTA's definitions and HTA's values."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int, clip, intersect, spread_before, union
from traceops.measure.activity import COMM, COMPUTE, MEMORY, Activity
from traceops.measure.hta_tables import HtaTables, hta_kinds
from traceops.measure.nesting import groups
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events


class Breakdown(Struct, frozen=True):
    """Percent of the rank's device time; None where it cannot be said (no communication, no activity).

    `source` is 'hta', or 'traceops' with the reason why HTA's value is not used.
    """

    idle_pct: float | None
    compute_pct: float | None
    non_compute_pct: float | None
    overlap_pct: float | None
    source: str
    why_not_hta: str = ""


def measure_breakdown(events: Events, activity: Activity, steps: StepBounds, hta: HtaTables) -> Breakdown:
    """HTA's temporal breakdown and overlap, or ours by the same definitions where HTA is wrong or fails."""
    reason = hta_is_wrong(events, activity) or _failed(hta)
    if not reason and hta.temporal is not None and hta.overlap is not None:
        return Breakdown(
            idle_pct=hta.temporal["idle_time_pctg"][0],
            compute_pct=hta.temporal["compute_time_pctg"][0],
            non_compute_pct=hta.temporal["non_compute_time_pctg"][0],
            overlap_pct=hta.overlap["comp_comm_overlap_pctg"][0],
            source="hta",
        )
    return own_breakdown(activity, steps, reason)


def own_breakdown(activity: Activity, steps: StepBounds, why_not_hta: str) -> Breakdown:
    """The same four numbers over the device time of all steps, CPU runs included."""
    first, last = int(steps.edges[0]), int(steps.edges[-1])
    kernel_time = last - first
    if kernel_time <= 0:
        return Breakdown(None, None, None, None, "traceops", why_not_hta)
    compute = clip(activity.union_of(COMPUTE), first, last)
    comm = clip(activity.union_of(COMM), first, last)
    idle = kernel_time - clip(activity.union_of(COMPUTE, COMM, MEMORY), first, last).total
    return Breakdown(
        idle_pct=_pct(idle, kernel_time),
        compute_pct=_pct(compute.total, kernel_time),
        non_compute_pct=_pct(kernel_time - idle - compute.total, kernel_time),
        overlap_pct=_pct(intersect(comm, compute).total, comm.total) if comm.total else None,
        source="traceops",
        why_not_hta=why_not_hta,
    )


def hta_is_wrong(events: Events, activity: Activity) -> str:
    """Why HTA would count something as what it is not in this trace; empty where it would not."""
    if not activity.on_gpu:
        return "HTA has no answer for a trace without GPU activity"
    if activity.through_host:
        return "HTA counts no collective that the hosts run (gloo)"
    counted = (events.stream != -1) & (events.correlation >= 0)
    counted[activity.row] = False
    others = np.flatnonzero(counted)
    if len(others):
        cat = events.cats[events.cat[others[0]]]
        return f"HTA counts {len(others)} events of category '{cat}' as GPU work"
    name = events.name[activity.row]
    wrong = np.flatnonzero(hta_kinds(events.names, name)[name] != activity.kind)
    if len(wrong):
        first = events.names[name[wrong[0]]]
        return f"HTA takes {len(wrong)} kernels for another kind, such as {first[:80]}"
    return ""


def _failed(hta: HtaTables) -> str:
    for name, error in hta.failed:
        if name in ("all", "temporal breakdown", "communication-computation overlap"):
            return error if name == "all" else f"HTA's {name} failed: {error}"
    return ""


def _pct(part: int, whole: int) -> float:
    return round(100.0 * part / whole, 2)


# What compute kernels take longer because communication runs beside them.


_LEAST_ALONE = 2  # launches with no communication beside them, to know what a kernel takes alone
_ALIKE = 0.15  # of their median: how far apart the quarters of these may lie; else they differ in size


def measure_beside(events: Events, activity: Activity, steps: StepBounds, comm: Int) -> Int:
    """By collective, in the order of `comm`: what compute kernels beside it took longer than they do alone, ns.

    A kernel of communication has some of the device's multiprocessors, also while it only waits for other ranks, and
    kernels of as many blocks as the device has room for then take two turns. Launches of one kernel with one grid by
    one operator on one shape are alike: those without communication beside them say what it takes alone. 0 where they
    do not tell, and where no communication runs on the device.
    """
    found = np.zeros(len(comm), dtype=np.int64)
    kernels = np.flatnonzero((activity.kind == COMPUTE) & (steps.of_activity >= 0) & (steps.of_activity < len(steps)))
    if not activity.comm_on_gpu or not len(comm) or not len(kernels):
        return found
    start, end = activity.start[kernels], activity.end[kernels]
    overlap = union(activity.start[comm], activity.end[comm]).within(start, end)
    longer = _longer_than_alone(_alike(events, activity, kernels), end - start, overlap > 0)
    return _divided(start, end, longer, activity.start[comm], activity.end[comm])


def _alike(events: Events, activity: Activity, kernels: Int) -> Int:
    """A number for each kernel: the same for launches that do the same work."""
    rows, launch = activity.row[kernels], activity.launch[kernels]
    nesting = activity.host.nesting
    around = np.full(len(kernels), -1, dtype=np.int64)
    if len(known := np.flatnonzero(launch >= 0)):
        at = nesting.innermost_around(launch[known])
        around[known] = np.where(at >= 0, nesting.rows[at], -1) if len(nesting.rows) else -1
    name, shape = (np.where(around >= 0, of[around], -1) for of in (events.name, events.shape))
    _, kernel = groups(events.name[rows], events.shape[rows])
    _, operator = groups(name, shape)
    _, alike = groups(kernel, operator)
    return alike


def _longer_than_alone(alike: Int, took: Int, held: NDArray[np.bool_]) -> Int:
    """What each kernel took longer than the median of its like that are not `held`, ns; 0 for these themselves.

    Kernels vary: it counts only if those that are held take longer in the mean than three quarters of the others do,
    and what some of them take less is taken off what the rest take longer.
    """
    longer = np.zeros(len(took), dtype=np.int64)
    order, count = np.argsort(alike, kind="stable"), np.bincount(alike)
    alone, behind = count - np.bincount(alike, held).astype(np.int64), np.cumsum(count)
    for group in np.flatnonzero((alone < count) & (alone >= _LEAST_ALONE)).tolist():
        own = order[behind[group] - count[group] : behind[group]]
        beside = held[own]
        low, usual, high = _quartiles(took[own[~beside]])
        more = took[own[beside]] - round(usual)
        net = float(more.sum())
        if high - low <= _ALIKE * usual and net > len(more) * (high - usual):
            more = np.maximum(more, 0)
            longer[own[beside]] = np.rint(more * (net / more.sum()))
    return longer


def _quartiles(took: Int) -> tuple[float, float, float]:
    """As `np.percentile` has them, which takes ten times as long for so few numbers."""
    ordered = np.sort(took).tolist()
    found = []
    for quarter in (1, 2, 3):
        at, part = divmod(quarter * (len(ordered) - 1), 4)
        below, above = ordered[at], ordered[min(at + 1, len(ordered) - 1)]
        found.append(below + (above - below) * part / 4)
    return found[0], found[1], found[2]


def _divided(start: Int, end: Int, longer: Int, comm_start: Int, comm_end: Int) -> Int:
    """Each kernel's time over the communication that it overlapped; of several at once the first has it."""
    order = np.argsort(comm_start, kind="stable")
    reached = np.concatenate((comm_start[order[:1]], np.maximum.accumulate(comm_end[order])[:-1]))
    begin = np.maximum(comm_start[order], reached)
    covered = union(comm_start, comm_end)  # a kernel's time is spread over what communication covers of it
    of_kernels = covered.covered_before(start), covered.covered_before(end)
    before = [
        spread_before(*of_kernels, longer, covered.covered_before(moment))
        for moment in (begin, np.maximum(comm_end[order], begin))
    ]
    found = np.zeros(len(comm_start), dtype=np.int64)
    found[order] = np.rint(before[1] - before[0]).astype(np.int64)
    return found
