"""The step ledger of one rank: every nanosecond of a step in exactly one bucket."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int, Intervals, clip, empty, intersect, merge, split_at, subtract, union, uniques
from traceops.measure.activity import COMM, COMPUTE, MEMORY, Activity
from traceops.measure.host_rows import HOST_CATS, HostRows, rows_named
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
NEVER = np.iinfo(np.int64).max
_STEP_MARK = re.compile("^ProfilerStep")


class Lane(Struct, frozen=True):
    """One rank's time inside its steps, each instant in one set: own work by bucket, or exposed communication.

    `own` holds the buckets of OWN_BUCKETS; `exposed` the time in which only communication runs. `recorded_from` is when
    the host's first event began: idle time before it has no known cause.
    """

    own: dict[str, Intervals]
    exposed: Intervals
    recorded_from: int


class RankLedger(Struct, frozen=True):
    """Nanoseconds per bucket and step, `comm` still whole; `exposed` is the time `comm` counts.

    unrecorded: what of the window's `idle_unknown` lies before the host's first event, ns.
    """

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
    unrecorded = clip(lane.own["idle_unknown"], int(steps.edges[0]), lane.recorded_from).total
    return RankLedger(end - start, buckets, lane.exposed, unrecorded)


def find_lane(events: Events, activity: Activity, steps: StepBounds) -> Lane:
    """What each instant of one rank's steps goes to, first bucket first."""
    whole = union(steps.edges[:-1], steps.edges[1:])
    compute = activity.union_of(COMPUTE)
    exposed = subtract(activity.union_of(COMM), compute)
    memory = subtract(subtract(activity.union_of(MEMORY), compute), exposed)
    recorded_from = int(events.ts[events.in_cats(*HOST_CATS)].min(initial=NEVER))
    cuts = np.append(steps.edges, recorded_from)
    idle = split_at(subtract(whole, activity.union_of(COMPUTE, COMM, MEMORY)), cuts)
    own = {
        "compute": intersect(compute, whole),
        "memory": intersect(memory, whole),
        **_idle_by_cause(events, activity, idle, recorded_from),
    }
    return Lane(own, intersect(exposed, whole), recorded_from)


def _idle_by_cause(events: Events, activity: Activity, idle: Intervals, recorded_from: int) -> dict[str, Intervals]:
    """Idle time by the cause of the activity that ends the gap: the host's until its launch was over.

    recorded_from: when the host's first event began.
    """
    following = np.searchsorted(activity.start[activity.by_start], idle.end, side="left")
    some = following < len(activity.start)
    launch = np.full(len(idle), -1, dtype=np.int64)
    launch[some] = activity.launch[activity.by_start[following[some]]]
    if activity.on_gpu:
        # Behind the last activity the host launched nothing more; before its first event it was not recorded.
        known = ((launch >= 0) | ~some) & (idle.end > recorded_from)
        until = np.where(some, _launched_by(events, activity, idle, launch, following), idle.end)
        host = -1 if some.all() else _main_thread(events)
        thread = np.where(launch >= 0, events.tid[launch], np.where(some, -1, host))
    else:
        known = np.ones(len(idle), dtype=bool)
        until = idle.end
        thread = np.full(len(idle), _main_thread(events))
    short = (idle.end - idle.start < BACK_TO_BACK_NS) & activity.on_gpu
    queued = known & some & (until <= idle.start) & (idle.end - idle.start <= STARTS_NS)
    short[queued] |= _in_one_stream(events, activity, idle.start[queued], following[queued])
    judged = known & (until > idle.start) & ~short
    synced = judged & _blocked_when_idle_began(events, activity.host.waiting, idle.start, thread)
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
    ends = np.flatnonzero(begin[gap] == activity.end)
    ended_in, begins_in = (activity.lane_of(events, which) for which in (ends, activity.by_start[following]))
    found[gap[ends][ended_in == begins_in[gap[ends]]]] = True
    return found


def _launched_by(events: Events, activity: Activity, idle: Intervals, launch: Int, following: Int) -> Int:
    """Until when each gap is the host's: its end, if what ends it began as soon as it was launched.

    Else the moment when the launch was over: what came after had another cause, which the host cannot help. A launch
    that has begun to take effect (the kernels before in a CUDA graph) is over. Gaps whose `launch` is -1 count for
    nothing.
    """
    at = activity.by_start[np.minimum(following, max(len(activity.start) - 1, 0))]
    over = events.ts[launch] + events.dur[launch]
    first = np.zeros(len(events) + 1, dtype=np.int64)  # of each launch: when its first activity began
    backwards = activity.by_start[::-1]
    first[activity.launch[backwards]] = activity.start[backwards]
    over = np.where(first[launch] < activity.start[at], np.minimum(over, first[launch]), over)
    at_once = activity.start[at] - over <= STARTS_NS
    until: Int = np.where(at_once & (over > idle.start), idle.end, np.clip(over, idle.start, idle.end))
    return until


def _main_thread(events: Events) -> int:
    """The thread the steps are marked on, or else the one with most events."""
    if not len(events):
        return -1
    marks = rows_named(events, _STEP_MARK)
    tids = events.tid[marks] if len(marks) else events.tid
    values, counts = np.unique(tids, return_counts=True)
    return int(values[np.argmax(counts)])


def _blocked_when_idle_began(events: Events, rows: Int, gap_start: Int, thread: Int) -> NDArray[np.bool_]:
    """Whether the launching thread was in a blocking call (`rows`) at the moment the device ran out of work.

    A synchronisation that begins later waits for nothing and is not the cause of the gap.
    """
    blocked = np.zeros(len(gap_start), dtype=bool)
    for tid in uniques(events.tid[rows]):
        own = rows[events.tid[rows] == tid]
        gaps = np.flatnonzero(thread == tid)
        blocked[gaps] = union(events.ts[own], events.ts[own] + events.dur[own]).holds(gap_start[gaps])
    return blocked


def _no_longer_than_blocked(host: HostRows, late: Intervals, thread: Int, synced: NDArray[np.bool_]) -> Int:
    """Until when each of these gaps is the fault of the calls in which its thread was blocked.

    Without these calls the host would have come there earlier by as long as it was blocked, less what earlier gaps
    would have taken of that. Of an operator of torch that reads a value, all is such a call. What it
    does for longer, it does for another reason. A gap that is not `synced` is of no call.
    """
    events, rows = host.events, host.may_wait
    around = host.nesting.innermost_around(rows)
    reads = around >= 0
    reads[reads] = np.array([name.startswith("aten::") for name in events.names], dtype=bool)[
        events.name[host.nesting.rows[around[reads]]]
    ]
    rows = np.where(reads, host.nesting.rows[around], rows) if reads.any() else rows
    until: Int = late.start.copy()
    length = late.end - late.start
    for tid in uniques(thread[synced]):
        own = rows[events.tid[rows] == tid]
        gaps = np.flatnonzero(thread == tid)
        blocked = union(events.ts[own], events.ts[own] + events.dur[own])
        ends = late.end[gaps]
        first = min(int(blocked.start[0]), int(ends[0])) if len(blocked) else int(ends[0])
        won = blocked.within(np.concatenate(([first], ends[:-1])), ends)
        left = np.cumsum(won - length[gaps])
        before = np.concatenate(([0], (left - np.minimum(np.minimum.accumulate(left), 0))[:-1]))
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
