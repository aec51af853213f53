"""The step ledger of one rank, every nanosecond of a step in exactly one bucket, and its breakdown as HTA has it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import (
    Int,
    Intervals,
    clip,
    empty,
    intersect,
    merge,
    split_at,
    spread_before,
    subtract,
    union,
    uniques,
)
from traceops.measure.activity import COMM, COMPUTE, MEMORY, Activity
from traceops.measure.host_rows import HOST_CATS, HostRows, groups
from traceops.measure.hta_tables import HtaTables, hta_kinds
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

# `comm` is split into the three comm_* buckets once the ranks are compared (traceops.across).
COMM_BUCKETS = ("comm_transfer", "comm_wait", "comm_unmatched")
IDLE_BUCKETS = ("idle_input", "idle_sync", "idle_host", "idle_dependency", "idle_unknown", "idle_gap")
BUCKETS = ("compute", *COMM_BUCKETS, "memory", *IDLE_BUCKETS)
OWN_BUCKETS = ("compute", "memory", *IDLE_BUCKETS)

BACK_TO_BACK_NS = 1_000  # a shorter gap between kernels is the device's own
# An idle device starts a kernel this soon after its launch (measured: 1 to 8 µs), and one that is queued this soon
# behind the one before it in its stream (1 to 5 µs, 13 at most, on H200).
STARTS_NS = 20_000
OWN_WORK_NS = 1_000_000  # a host that launches nothing for longer behind a wait does work of its own
NEVER = np.iinfo(np.int64).max


class Lane(Struct, frozen=True):
    """One rank's time inside its steps, each instant in one set: own work by bucket, or exposed communication. `own`
    holds the buckets of OWN_BUCKETS; `exposed` the time in which only communication runs. `recorded_from` is when the
    host's first event began: idle time before it has no known cause."""

    own: dict[str, Intervals]
    exposed: Intervals
    recorded_from: int


class RankLedger(Struct, frozen=True):
    """Nanoseconds per bucket and step, `comm` still whole; `exposed` is the time `comm` counts. unrecorded: what of the
    window's `idle_unknown` lies before the host's first event, ns."""

    duration: Int
    buckets: dict[str, Int]
    exposed: Intervals
    unrecorded: int = 0


def ledger_of(lane: Lane, steps: StepBounds) -> RankLedger:
    """The lane's time per bucket and step [docs/metrics.md, the step ledger]; the buckets add up exactly."""
    start, end = steps.edges[:-1], steps.edges[1:]
    buckets = {
        "compute": lane.own["compute"].within(start, end),
        "comm": lane.exposed.within(start, end),
        **{bucket: lane.own[bucket].within(start, end) for bucket in OWN_BUCKETS[1:]},
    }
    recorded_from = lane.recorded_from if lane.recorded_from < NEVER else int(steps.edges[0])
    unrecorded = clip(lane.own["idle_unknown"], int(steps.edges[0]), recorded_from).total
    return RankLedger(end - start, buckets, lane.exposed, unrecorded)


def find_lane(events: Events, activity: Activity, steps: StepBounds) -> Lane:
    """What each instant of one rank's steps goes to, first bucket first."""
    whole = union(steps.edges[:-1], steps.edges[1:])
    compute = activity.union_of(COMPUTE)
    exposed = subtract(activity.union_of(COMM), compute)
    memory = subtract(subtract(activity.union_of(MEMORY), compute), exposed)
    recorded_from = int(events.ts[events.in_cats(*HOST_CATS)].min(initial=NEVER))
    cuts = np.concatenate((steps.edges, [recorded_from]))
    idle = split_at(subtract(whole, activity.union_of(COMPUTE, COMM, MEMORY)), cuts)
    own = {
        "compute": intersect(compute, whole),
        "memory": intersect(memory, whole),
        **_idle_by_cause(events, activity, idle, recorded_from),
    }
    return Lane(own, intersect(exposed, whole), recorded_from)


def _idle_by_cause(events: Events, activity: Activity, idle: Intervals, recorded_from: int) -> dict[str, Intervals]:
    """Idle time by the cause of the activity that ends the gap. recorded_from: when the host's first event began."""
    following = activity.start.take(activity.by_start).searchsorted(idle.end, side="left")
    some = following < len(activity.start)
    launch = np.full(len(idle), -1, dtype=np.int64)
    launch[some] = activity.launch.take(activity.by_start.take(following[some]))
    if activity.on_gpu:
        # Behind the last activity the host launched nothing more; before its first event it was not recorded.
        known = ((launch >= 0) | ~some) & (idle.end > recorded_from)
        until = np.where(some, _launched_by(events, activity, idle, launch, following), idle.end)
        host = -1 if some.all() else activity.host.main_thread
        thread = np.where(launch >= 0, events.tid.take(launch), np.where(some, -1, host))
    else:
        known = np.ones(len(idle), dtype=bool)
        until = idle.end
        thread = np.full(len(idle), activity.host.main_thread)
    short = (idle.end - idle.start < BACK_TO_BACK_NS) & activity.on_gpu
    queued = known & some & (until <= idle.start) & (idle.end - idle.start <= STARTS_NS)
    short[queued] |= _in_one_stream(events, activity, idle.start[queued], following[queued])
    judged = known & (until > idle.start) & ~short
    # Whether the launching thread was in a blocking call at the moment the device ran out of work. A
    # synchronisation that begins later waits for nothing and is not the cause of the gap.
    blocked = np.zeros(len(idle.start), dtype=bool)
    for tid in uniques(events.tid[activity.host.waiting]):
        own = activity.host.waiting[events.tid[activity.host.waiting] == tid]
        gaps = (thread == tid).nonzero()[0]
        blocked[gaps] = union(events.ts[own], events.ts[own] + events.dur[own]).holds(idle.start.take(gaps))
    synced = judged & blocked
    waited = idle.start.copy()  # until when each gap is the synchronisation's
    waited[judged] = _no_longer_than_blocked(
        activity.host, Intervals(idle.start[judged], until[judged]), thread[judged], synced[judged]
    )
    late = Intervals(idle.start[judged], until[judged])
    loading = _loading_within(events, activity.host.inputs, late, thread[judged])
    after = known & ~short & (until < idle.end)
    return {
        "idle_input": loading,
        "idle_sync": subtract(_some(idle.start[synced], waited[synced]), loading),
        "idle_host": subtract(_some(waited[judged], until[judged]), loading),
        "idle_dependency": Intervals(until[after], idle.end[after]),
        "idle_unknown": Intervals(idle.start[~known & ~short], idle.end[~known & ~short]),
        "idle_gap": Intervals(idle.start[short], idle.end[short]),
    }


def _in_one_stream(events: Events, activity: Activity, begin: Int, following: Int) -> NDArray[np.bool_]:
    """Whether what ended as each gap began ran in the stream of what ends the gap: it waited for no other one."""
    found = np.zeros(len(begin), dtype=bool)
    if not len(begin):
        return found
    gap = np.minimum(begin.searchsorted(activity.end), len(begin) - 1)
    ends = (begin.take(gap) == activity.end).nonzero()[0]
    ended_in, begins_in = (activity.lane_of(events, which) for which in (ends, activity.by_start.take(following)))
    found[gap.take(ends)[ended_in == begins_in.take(gap.take(ends))]] = True
    return found


def _launched_by(events: Events, activity: Activity, idle: Intervals, launch: Int, following: Int) -> Int:
    """Until when each gap is the host's: its end, if what ends it began as soon as it was launched. Else the moment
    when the launch was over: what came after had another cause, which the host cannot help. A launch that has begun to
    take effect (the kernels before in a CUDA graph) is over. Gaps whose `launch` is -1 count for nothing."""
    at = activity.by_start.take(np.minimum(following, max(len(activity.start) - 1, 0)))
    over = events.ts.take(launch) + events.dur.take(launch)
    first = np.zeros(len(events) + 1, dtype=np.int64)  # of each launch: when its first activity began
    backwards = activity.by_start[::-1]
    first[activity.launch.take(backwards)] = activity.start.take(backwards)
    over = np.where(first.take(launch) < activity.start.take(at), np.minimum(over, first.take(launch)), over)
    at_once = activity.start.take(at) - over <= STARTS_NS
    until: Int = np.where(at_once & (over > idle.start), idle.end, np.minimum(np.maximum(over, idle.start), idle.end))
    return until


def _no_longer_than_blocked(host: HostRows, late: Intervals, thread: Int, synced: NDArray[np.bool_]) -> Int:
    """Until when each of these gaps is the fault of the calls in which its thread was blocked. Without these calls the
    host would have come there earlier by as long as it was blocked, less what earlier gaps would have taken of that.
    What it does for longer, it does for another reason. A gap that is not `synced` is of no call."""
    until: Int = late.start.copy()
    if not np.count_nonzero(synced):
        return until
    events, rows = host.events, host.readers(host.may_wait)
    length = late.end - late.start
    for tid in uniques(thread[synced]):
        own = rows[events.tid[rows] == tid]
        own = own[events.ts[own].argsort(kind="stable")]
        gaps = (thread == tid).nonzero()[0]
        blocked = union(events.ts[own], events.ts[own] + events.dur[own])
        start, ends = late.start[gaps], late.end[gaps]
        first = np.append(blocked.start, start[0])[:1].clip(max=start[0])
        # A call that begins in the gap waits for nothing, unless it is one more of a chain, as of copies.
        over = np.append(0, blocked.end)[blocked.start.searchsorted(start, side="right")].clip(start, ends)
        won = blocked.within(np.append(first, ends[:-1]), over)
        began_in = np.append(-1, events.name[own])[events.ts[own].searchsorted(start, side="right")]
        for name in uniques(began_in[synced[gaps]]):
            same, alike = synced[gaps] & (began_in == name), own[events.name[own] == name]
            won[same] += union(events.ts[alike], events.end[alike]).within(over[same], ends[same])
        left = (won - length[gaps]).cumsum()
        before = np.concatenate(([0], (left - np.minimum(np.minimum.accumulate(left), 0))[:-1]))
        before = np.minimum(before, OWN_WORK_NS)
        until[gaps] += np.where(synced[gaps], np.minimum(length[gaps], before + won), 0)
    return until


def _some(start: Int, end: Int) -> Intervals:
    """Those that last."""
    lasts = end > start
    return Intervals(start[lasts], end[lasts])


def _loading_within(events: Events, rows: Int, late: Intervals, thread: Int) -> Intervals:
    """The part of these gaps in which their launching thread was inside data loading (`rows`)."""
    found = empty()
    for tid in uniques(events.tid[rows]):
        own = rows[events.tid[rows] == tid]
        gaps = thread == tid
        loading = union(events.ts[own], events.ts[own] + events.dur[own])
        found = merge(found, intersect(Intervals(late.start[gaps], late.end[gaps]), loading))
    return found


class Breakdown(Struct, frozen=True):
    """Percent of the rank's device time; None where it cannot be said (no communication, no activity). `source` is
    'hta', or 'traceops' with the reason why HTA's value is not used."""

    idle_pct: float | None
    compute_pct: float | None
    non_compute_pct: float | None
    overlap_pct: float | None
    source: str
    why_not_hta: str = ""


def measure_breakdown(events: Events, activity: Activity, steps: StepBounds, hta: HtaTables) -> Breakdown:
    """HTA's temporal breakdown and overlap, or ours by the same definitions where HTA is wrong or fails."""
    reason = hta_is_wrong(events, activity) or why_failed(hta)
    if not reason and (known := breakdown_of(hta)) is not None:
        return known
    # Compute the same four numbers over the device time of all steps, CPU runs included.
    first, last = int(steps.edges[0]), int(steps.edges[-1])
    kernel_time = last - first
    if kernel_time <= 0:
        return Breakdown(None, None, None, None, "traceops", reason)
    compute = clip(activity.union_of(COMPUTE), first, last)
    comm = clip(activity.union_of(COMM), first, last)
    idle = kernel_time - clip(activity.union_of(COMPUTE, COMM, MEMORY), first, last).total
    return Breakdown(
        idle_pct=_pct(idle, kernel_time),
        compute_pct=_pct(compute.total, kernel_time),
        non_compute_pct=_pct(kernel_time - idle - compute.total, kernel_time),
        overlap_pct=_pct(intersect(comm, compute).total, comm.total) if comm.total else None,
        source="traceops",
        why_not_hta=reason,
    )


def breakdown_of(hta: HtaTables) -> Breakdown | None:
    """The breakdown as HTA's tables have it; None where HTA has none."""
    if hta.temporal is None or hta.overlap is None:
        return None
    return Breakdown(
        idle_pct=hta.temporal["idle_time_pctg"][0],
        compute_pct=hta.temporal["compute_time_pctg"][0],
        non_compute_pct=hta.temporal["non_compute_time_pctg"][0],
        overlap_pct=hta.overlap["comp_comm_overlap_pctg"][0],
        source="hta",
    )


def hta_is_wrong(events: Events, activity: Activity) -> str:
    """Why HTA would count something as what it is not in this trace; empty where it would not."""
    if not activity.on_gpu:
        return "HTA has no answer for a trace without GPU activity"
    if activity.through_host:
        return "HTA counts no collective that the hosts run (gloo)"
    counted = events.stream != -1
    counted[activity.row] = False
    others = counted.nonzero()[0]
    if len(others):
        cat = events.cats[events.cat[others[0]]]
        return f"HTA counts {len(others)} events of category '{cat}' as GPU work"
    if 100 * (dropped := int(np.count_nonzero(activity.launch < 0))) > len(activity.launch):
        return f"HTA leaves out {dropped} kernels whose launch the trace does not hold"
    name = events.name.take(activity.row)
    wrong = (hta_kinds(events.names, name).take(name) != activity.kind).nonzero()[0]
    if len(wrong):
        first = events.names[name[wrong[0]]]
        return f"HTA takes {len(wrong)} kernels for another kind, such as {first[:80]}"
    return ""


def why_failed(hta: HtaTables) -> str:
    """Why HTA has no breakdown; empty where it has one."""
    for name, error in hta.failed:
        if name in ("all", "temporal breakdown", "communication-computation overlap"):
            return error if name == "all" else f"HTA's {name} failed: {error}"
    return ""


def _pct(part: int, whole: int) -> float:
    return round(100.0 * part / whole, 2)


_LEAST_ALONE = 2  # launches with no communication beside them, to know what a kernel takes alone
_ALIKE = 0.15  # of their median: how far apart the quarters of these may lie; else they differ in size


def measure_beside(events: Events, activity: Activity, steps: StepBounds, comm: Int) -> Int:
    """By collective, in the order of `comm`: what compute kernels beside it took longer than they do alone, ns. A
    kernel of communication has some of the device's multiprocessors, also while it only waits for other ranks, and
    kernels of as many blocks as the device has room for then take two turns. Launches of one kernel with one grid by
    one operator on one shape are alike: those without communication beside them say what it takes alone. 0 where they
    do not tell, and where no communication runs on the device."""
    found = np.zeros(len(comm), dtype=np.int64)
    kernels = ((activity.kind == COMPUTE) & (steps.of_activity >= 0) & (steps.of_activity < len(steps))).nonzero()[0]
    if not activity.comm_on_gpu or not len(comm) or not len(kernels):
        return found
    start, end = activity.start.take(kernels), activity.end.take(kernels)
    held = union(activity.start[comm], activity.end[comm]).within(start, end) > 0
    name = events.name.take(activity.row.take(kernels))
    some = (np.bincount(name[held], minlength=len(events.names)) > 0).take(name).nonzero()[0]
    if not len(some):
        return found
    kernels, start, end, held = (column.take(some) for column in (kernels, start, end, held))
    # What each kernel took longer than the median of its like that are not `held`, ns; 0 for these themselves. Kernels
    # vary: it counts only if those that are held take longer in the mean than three quarters of the others do, and what
    # some of them take less is taken off what the rest take longer.
    alike = _alike(events, activity, kernels)
    took = end - start
    longer = np.zeros(len(took), dtype=np.int64)
    order, count = alike.argsort(kind="stable"), np.bincount(alike)
    alone, behind = count - np.bincount(alike, held).astype(np.int64), count.cumsum()
    for group in ((alone < count) & (alone >= _LEAST_ALONE)).nonzero()[0].tolist():
        own = order[behind[group] - count[group] : behind[group]]
        beside = held.take(own)
        low, usual, high = _quartiles(took[own[~beside]])
        more = took.take(own[beside]) - round(usual)
        net = float(more.sum())
        if high - low <= _ALIKE * usual and net > len(more) * (high - usual):
            more = np.maximum(more, 0)
            longer[own[beside]] = np.rint(more * (net / more.sum()))
    slowed = longer.nonzero()[0]
    if not len(slowed):
        return found
    return _divided(start[slowed], end[slowed], longer[slowed], activity.start[comm], activity.end[comm])


def _alike(events: Events, activity: Activity, kernels: Int) -> Int:
    """A number for each kernel: the same for launches that do the same work."""
    rows, launch = activity.row.take(kernels), activity.launch.take(kernels)
    around = np.append(activity.host.nesting.rows, -1).take(activity.host.operator_around.take(launch))
    name, shape = (np.where(around >= 0, of.take(around), -1) for of in (events.name, events.shape))
    _, kernel = groups(events.name.take(rows), events.shape.take(rows))
    _, operator = groups(name, shape)
    _, alike = groups(kernel, operator)
    return alike


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
    order = comm_start.argsort(kind="stable")
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
