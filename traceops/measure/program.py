"""What a rank did between its collectives: when it was ready for each, and where it waited for one."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int, Intervals, intersect, is_in, merge, union, uniques
from traceops.measure.activity import COMM, Activity
from traceops.measure.host import HostSyncs, no_syncs, waiting_calls
from traceops.measure.host_rows import begin_inside
from traceops.measure.ledger import OWN_BUCKETS, Lane
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

RELEASE_NS = 20_000  # a kernel that waited for a collective starts this soon after its end
FOLLOWS_NS = 50_000  # what began this soon after another's end on another stream waited for it
WAKES = 0.25  # of a thread's wait: how far from the end of a collective it may go on that waited for it
WAKES_NS = 5_000_000  # and at most this
BETWEEN_NS = 1_000_000  # a thread may spend this between two operators without waiting for anything
HELD_UP_NS = 50_000  # a launch that takes this long waits for room in the device's queue
_EVER = np.iinfo(np.int64).max
NEVER = np.iinfo(np.int64).min // 4
PAINTED = 400  # cells a step in the picture of the timeline
EXPOSED = len(OWN_BUCKETS)  # the code of exposed communication in a painted step, others are OWN_BUCKETS'

_Spells = tuple[Int, Int, Int]  # start, end, and the collective of each


class RankProgram(Struct, frozen=True):
    """One rank's work and waiting as the reduce needs them; all times in ns of the rank's own clock.

    `ready[i]` is when collective i (of the rank's communication in start order) could have begun at the
    latest as far as its own work goes: its launch, and the end of the work launched before it.
    Join j: from `join_start[j]` to `join_end[j]` the rank had nothing else to do than to wait for its
    collective `join_comm[j]`. `own[n]` is the time spent in each of OWN_BUCKETS before `times[n]`, and
    `painted[s, c]` the code of what most of cell c of step s went to.
    `unheld` is exposed communication that did not hold the rank up: its own host had not launched what comes next, or
    that began while the communication went on. In `allocating` the host was in the allocator then, which waits for the
    device.
    Of spell k, from `spell_start[k]` to `spell_end[k]`, a rank alone does not tell whether a thread waited for its
    collective `spell_comm[k]`: it went on long before that ended (`across/clocks.py` asks the other ranks).
    `host` is the host's own time (the moment less all time it was held up by the device before) of each
    collective's launch, then of the launch of what ends each step edge, NEVER where there is none;
    `host_input` how much of it the host had spent in data loading. `syncs` are the calls in which the host waited for
    the device, and `syncs_before` how many of them were over by each of the launches that `host` tells of.
    """

    ready: Int
    join_start: Int
    join_end: Int
    join_comm: Int
    unheld: Intervals
    allocating: Intervals
    times: Int
    own: Int
    host: Int
    host_input: Int
    syncs: HostSyncs
    syncs_before: Int
    painted: NDArray[np.uint8]
    spell_start: Int
    spell_end: Int
    spell_comm: Int

    def joined_before(self, t: Int) -> Int:
        """Time spent waiting in joins before each moment."""
        return union(self.join_start, self.join_end).covered_before(t)


def measure_program(events: Events, activity: Activity, steps: StepBounds, lane: Lane, comm: Int) -> RankProgram:
    """The program of one rank; `comm` are the positions of its collectives in `activity`, in start order."""
    ready = _ready(activity, comm)
    done, over, allocating, blocked = waiting_calls(events, activity)
    joins, unheld, spells = _joins(activity, lane, comm, steps, blocked)
    host, host_input, syncs, syncs_before = _host(events, activity, comm, steps, joins[1], done, over, allocating)
    allocating = intersect(unheld, allocating)
    started, ended = activity.start[comm], activity.end[comm]
    times = uniques(
        np.concatenate((started, ended, ready, *joins[:2], *spells[:2], syncs.done, steps.edges)).clip(
            steps.edges[0], steps.edges[-1]
        )
    )
    own = np.empty((len(times), len(OWN_BUCKETS)), dtype=np.int64)
    for place, bucket in enumerate(OWN_BUCKETS):
        own[:, place] = lane.own[bucket].covered_before(times)
    # For each step the code of what most of each of its cells went to
    painted = np.empty((len(steps), PAINTED), dtype=np.uint8)
    sets = (*(lane.own[bucket] for bucket in OWN_BUCKETS), lane.exposed)
    used = np.array([code for code, part in enumerate(sets) if not code or len(part)], dtype=np.uint8)
    for first in range(0, len(steps), _PAINTED_AT_ONCE):
        edges = steps.edges[first : first + _PAINTED_AT_ONCE + 1].astype(np.float64)
        width = (edges[1:] - edges[:-1]) / PAINTED
        cells = (_CELLS * width[:, None] + edges[:-1, None]).astype(np.int64)
        cells[:, -1] = steps.edges[first + 1 : first + 1 + len(cells)]
        before = np.array([sets[code].covered_before(cells) for code in used])
        painted[first : first + _PAINTED_AT_ONCE] = used[(before[:, :, 1:] - before[:, :, :-1]).argmax(axis=0)]
    return RankProgram(
        ready, *joins, unheld, allocating, times, own, host, host_input, syncs, syncs_before, painted, *spells
    )


def _ready(activity: Activity, comm: Int) -> Int:
    """When each collective could have begun: torch lets it wait for what its stream was given before. Where work
    launched before it ended after it had begun, it waited for less. Then it waited for whatever ended just before it
    began, or for the activity launched just before it (a copy into its buffer), if that fits. Else it waited for its
    launch alone."""
    work = activity.by_launch[activity.kind.take(activity.by_launch) != COMM]
    launched = activity.launched[comm]
    before = activity.launched.take(work).searchsorted(launched, side="left") - 1
    start = activity.start[comm]
    ready = np.minimum(launched, start)
    if not len(work):
        return ready
    some = before >= 0
    ends = activity.end.take(work)
    all_done = np.where(some, np.maximum.accumulate(ends)[before], start)
    last_done = np.where(some, ends[before], start)
    ended = np.sort(ends, kind="stable")
    just = ended.searchsorted(start, side="right") - 1
    just_done = np.where(just >= 0, ended[np.maximum(just, 0)], start - FOLLOWS_NS - 1)
    less = np.where(start - just_done <= FOLLOWS_NS, just_done, np.where(last_done <= start, last_done, ready))
    done = np.where(all_done <= start, all_done, less)
    known: Int = np.where(some, np.maximum(ready, done), ready)
    return known


def _joins(
    activity: Activity, lane: Lane, comm: Int, steps: StepBounds, blocked: Intervals
) -> tuple[_Spells, Intervals, _Spells]:
    """Exposed communication that held the rank up: what comes next had been launched and began at its end, or the host
    was `blocked` until then. A rank whose next kernel was launched later was late itself, and communication merely ran
    meanwhile. So it did where the next kernel began before any ended. That time is the second of what this returns. The
    third is what this rank alone does not tell."""
    work = activity.by_start[activity.kind.take(activity.by_start) != COMM]
    spells = _spells(lane.exposed, union(activity.start.take(work), activity.end.take(work)))
    start, end = spells.start, spells.end
    by_end = comm[activity.end[comm].argsort(kind="stable")]
    position = np.empty(len(activity.start), dtype=np.int64)
    position[comm] = np.arange(len(comm))
    if activity.through_host:
        # Where hosts run the collectives, a rank waited if its device ran dry until one of them ended. Where the device
        # went on before that, its host had launched more meanwhile, and waited for nothing.
        none = np.zeros(0, dtype=np.int64)
        last = activity.end[by_end].searchsorted(end, side="right") - 1
        freed = (last >= 0) & (end - activity.end[by_end][np.maximum(last, 0)] <= RELEASE_NS)
        joins = (start[freed], end[freed], position[by_end[last[freed]]])
        return joins, Intervals(start[~freed], end[~freed]), (none, none, none)
    if not activity.on_gpu:
        waited_for, within = _thread_waited_for(activity, spells, by_end)
        kept = waited_for >= 0
        between = ~kept & (end - start < BETWEEN_NS)
        asked = ~kept & ~between & (within >= 0)
        joins, open_ = (
            (start[those], end[those], position[at[those]]) for those, at in ((kept, waited_for), (asked, within))
        )
        return joins, union(start[between], end[between]), open_
    last = activity.end[by_end].searchsorted(end, side="right") - 1
    ended = np.where(last >= 0, activity.end[by_end].take(np.maximum(last, 0)), 0) if len(by_end) else end * 0
    freed = (last >= 0) & (end - ended <= RELEASE_NS)
    following = activity.start.take(work).searchsorted(end, side="left")
    some = following < len(work)
    first = work.take(np.minimum(following, len(work) - 1)) if len(work) else np.zeros(len(end), dtype=np.int64)
    begins = np.where(some, activity.start.take(first) if len(work) else 0, _EVER)
    known = np.where(activity.launch.take(first) >= 0, activity.launched.take(first), start) if len(work) else start
    issued = np.where(some, known, end)
    # What ends a step is waited for by whatever comes after it.
    closes = is_in(end, steps.edges)
    released = freed & (closes | ((begins - end <= RELEASE_NS) & (issued < end)))
    launched = np.where(closes, start, np.minimum(np.maximum(issued, start), end))
    held = (freed & ~released & blocked.holds(end - 1)).nonzero()[0]
    begun = blocked.start.take(blocked.start.searchsorted(end.take(held)) - 1)
    launched[held] = np.maximum(start.take(held), begun)
    released[held] = True
    kept = released & (end > launched)
    joined = position[by_end[last[kept]]]
    none = np.zeros(0, dtype=np.int64)
    unheld = union(start, np.where(freed | closes, launched, end))
    return (launched[kept], end[kept], joined), unheld, (none, none, none)


def _thread_waited_for(activity: Activity, spells: Intervals, by_end: Int) -> tuple[Int, Int]:
    """The collective that each spell without a GPU waited for, as a position in `activity`; -1 for none. The second is
    the collective that was under way at the spell's end, -1 for none. It is the one that ends nearest to the spell's
    end. A thread that waited goes on a little after the collective's end, when it is woken up, or a little before what
    the backend's own thread recorded as its end."""
    start, end = spells.start, spells.end
    if not len(by_end):
        return np.full(len(end), -1, dtype=np.int64), np.full(len(end), -1, dtype=np.int64)
    near = np.minimum(np.maximum(WAKES * (end - start), RELEASE_NS), WAKES_NS)
    after = activity.end[by_end].searchsorted(end, side="right")
    before, after = np.maximum(after - 1, 0), np.minimum(after, len(by_end) - 1)
    woken, early = (np.abs(activity.end[by_end[at]] - end) for at in (before, after))
    woke = (woken <= near) & (activity.end[by_end[before]] <= end) & (activity.end[by_end[before]] > start)
    under_way = (activity.end[by_end[after]] > end) & (activity.start[by_end[after]] < end)
    went = (early <= near) & under_way
    nearest = np.where(went & ~(woke & (woken <= early)), by_end[after], by_end[before])
    return np.where(woke | went, nearest, -1), np.where(under_way, by_end[after], -1)


def _spells(exposed: Intervals, work: Intervals) -> Intervals:
    """Exposed communication, with one collective following another closely taken as one stretch."""
    if not len(exposed):
        return exposed
    before, after = exposed.end[:-1], exposed.start[1:]
    close = (after - before <= RELEASE_NS) & (work.within(before, after) == 0)
    return Intervals(exposed.start[np.concatenate(([True], ~close))], exposed.end[np.concatenate((~close, [True]))])


def _host(
    events: Events,
    activity: Activity,
    comm: Int,
    steps: StepBounds,
    joined: Int,
    done: Int,
    end: Int,
    allocating: Intervals,
) -> tuple[Int, Int, HostSyncs, Int]:
    """The host's own time at the launches of collectives and of what ends the steps, and its part in loading. joined:
    the ends of the joins. done, end, allocating: of `waiting_calls`. Behind them the rest of what RankProgram has of
    the host."""
    if not len(activity.end):
        none = np.zeros(len(steps.edges), dtype=np.int64)
        return np.full(len(steps.edges), NEVER, dtype=np.int64), none, no_syncs(), none
    order = activity.end.argsort(kind="stable")
    last = activity.end.take(order).searchsorted(steps.edges, side="right") - 1
    closing = order[np.maximum(last, 0)]
    rows = np.concatenate((comm, closing))
    launch = activity.launch[rows]
    calls = activity.host.held_up(HELD_UP_NS)
    held = merge(union(events.ts[calls], events.ts[calls] + events.dur[calls]), allocating)
    if activity.through_host:
        # From the last launch before each of these moments to it: the host waited for a collective that ended then.
        # Such a wait is no call that torch records.
        launches = uniques(activity.launch[(activity.launch >= 0) & (activity.kind != COMM)])
        launches = launches[~begin_inside(events, launches, activity.host.exchanged)]
        begun = np.sort(events.ts[launches] + events.dur[launches], kind="stable")
        before = begun.searchsorted(joined, side="right") - 1
        known = before >= 0
        held = merge(held, union(begun[before[known]], joined[known]))
    loads = activity.host.inputs
    loading = union(events.ts[loads], events.ts[loads] + events.dur[loads])
    moment = events.ts[np.maximum(launch, 0)] if len(events) else rows
    known = (launch >= 0) & activity.on_gpu
    known[len(comm) :] &= last >= 0  # before the first activity nothing was launched
    host = np.where(known, moment - held.covered_before(moment), NEVER)
    # A step is over when its last kernel is, not when that was launched.
    host[len(comm) :] += np.where(known[len(comm) :], (activity.end - activity.start)[closing], 0)
    syncs = no_syncs()
    if activity.on_gpu and not activity.through_host:
        syncs = HostSyncs(done, end, end - held.covered_before(end), loading.covered_before(end))
    return (
        host,
        np.where(known, loading.covered_before(moment), 0),
        syncs,
        syncs.end.searchsorted(moment, side="right"),
    )


_CELLS = np.arange(PAINTED + 1, dtype=np.float64)
_PAINTED_AT_ONCE = 512  # steps: a step takes 60 kB meanwhile
