"""What the host did inside the steps that keeps a device from work: blocking calls, data loading, launches too late."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int, Intervals, empty, intersect, is_in, median, merge, subtract, union, uniques
from traceops.measure.activity import COMPUTE, Activity
from traceops.measure.host_rows import (
    ANNOTATION_CATS,
    BACKWARD_NAME,
    OPERATOR_CATS,
    OPTIMIZER_NAME,
    HostRows,
    groups,
    named,
    rows_named,
)
from traceops.measure.ledger import Lane
from traceops.measure.recording import recording_at_most
from traceops.measure.steps import StepBounds, typical_steps
from traceops.traces.model import Events, TraceMeta, is_annotation

# Autograd's anomaly detection in a trace: behind each function of backward the host reads whether it is NaN.

# What the engine itself calls beside a function, by version of torch. No function of backward is among these: what it
# calls lies in its own row.
_LOOKS = ("aten::isnan", "aten::ne", "aten::any", "aten::_is_any_true")
_READS = "aten::item"


class AnomalyChecks(Struct, frozen=True):
    """By step: how often the engine read whether a result is NaN, and what the host took for it, ns."""

    count: Int
    host_ns: Int


def measure_anomaly(host: HostRows, steps: StepBounds) -> AnomalyChecks | None:
    """None where nothing of it is in the trace."""
    names = host.events.names
    if _READS not in names or not any(look in names for look in _LOOKS):
        return None
    of_engine = np.array([bool(BACKWARD_NAME.search(name)) for name in names], dtype=bool)
    looks = np.array([name in _LOOKS for name in names], dtype=bool)
    reads = np.array([name == _READS for name in names], dtype=bool)
    nesting = host.nesting
    name = host.events.name[nesting.rows]
    at = ((looks | reads)[name] & (nesting.parent >= 0)).nonzero()[0]
    at = at[of_engine[name[nesting.parent[at]]]]
    if not np.count_nonzero(looks[name[at]]) or not np.count_nonzero(reads[name[at]]):
        return None
    rows = nesting.rows[at]
    step = steps.on_host(host.events.ts[rows])
    inside = step >= 0
    step, rows, read = step[inside], rows[inside], reads[name[at[inside]]]
    took = np.bincount(step, host.events.dur[rows], len(steps)).astype(np.int64)
    return AnomalyChecks(np.bincount(step[read], minlength=len(steps)), took)


_WAITED_NS = 20_000  # a call that takes less held nobody up
_CLOCKS_NS = 5_000  # a device's clock may be off: a call returns so much before the end that it waits for
_RETURNS_NS = 50_000  # or so much after it


class HostSyncs(Struct, frozen=True):
    """Blocking calls that waited, in the order of their ends. Times in ns of the rank's own clock. `done` is when the
    device had done what each waited for, `end` when the call returned. `host` is the host's own time (RankProgram.host)
    then, and `host_input` its part in data loading."""

    done: Int
    end: Int
    host: Int
    host_input: Int


def no_syncs() -> HostSyncs:
    """Of a rank whose host never waited, or of which nobody knows."""
    none = np.zeros(0, dtype=np.int64)
    return HostSyncs(none, none, none, none)


def waiting_calls(events: Events, activity: Activity) -> tuple[Int, Int, Intervals, Intervals]:
    """When the device had done what each blocking call waited for, and when the call returned. Where a call returns
    long after anything ended, amid what runs, that is when it returned. The third is when the host waited in the
    allocator, the last when it waited at all: what a call takes once the device is done is its own work."""
    rows = activity.host.waiting
    begin, end, _ = activity.host.allocator_stretches
    if not len(rows) and not len(begin):
        return rows, rows, empty(), empty()
    allocates = np.repeat([False, True], (len(rows), len(begin)))
    begin, end = np.append(events.ts[rows], begin), np.append(events.end[rows], end)
    order = end.argsort(kind="stable")
    order = order[(end - begin)[order] >= _WAITED_NS]
    begin, end, allocates = begin[order], end[order], allocates[order]
    ended = np.sort(activity.end, kind="stable")
    last = ended.searchsorted(end + _CLOCKS_NS, side="right") - 1
    done = np.minimum(ended[np.maximum(last, 0)], end) if len(ended) else end
    amid = (end - done > _RETURNS_NS) & union(activity.start, activity.end).holds(end)
    done = np.where(amid, end, done)
    kept = (last >= 0) & (done > begin)
    done, begin, allocates = done[kept], begin[kept], allocates[kept]
    allocating = union(begin[allocates], done[allocates])
    return done, np.where(allocates, done, end[kept]), allocating, union(begin, done)


MOST_REGIONS = 60
_COLD = 2.0  # times the calls for memory of the median step
_WAITS = re.compile(r"^_c10d_functional(_autograd)?::wait_tensor$")
MOST_EXTRA = 12  # regions kept of a step that is unlike the others


class BlockingCall(Struct, frozen=True):
    """A call that waits for the device, and the operator it was made from ('' outside any). calls: by step. idle_ns:
    what of each step's idle_sync begins in them."""

    call: str
    operator: str
    count: int
    total_ms: float
    calls: tuple[int, ...]
    idle_ns: tuple[int, ...]


class ExtraRegion(Struct, frozen=True):
    """What the host was in longer, in a step that takes far longer than the rank's others. `ms` is its time in that
    step beyond what it takes in a typical one, `first_use_ms` what of that step's time in it goes to calls that load
    kernels, or create what later calls use, `allocating_ms` to calls that take memory from the device's driver or give
    it back."""

    step: int
    name: str
    ms: float
    first_use_ms: float = 0.0
    allocating_ms: float = 0.0


class HostTime(Struct, frozen=True):
    """Per rank, over all its steps: blocking calls, most time first, data loading by step, ns, and what it was in.

    `regions` are annotations and outermost operators by name with their total in ms, most time first.
    `extra` has what grew in each step that is unlike the others, most first. `allocating`: how many calls of a usual
    step take memory from the device's driver or give it back, and what they take, ns. `recording` has the most that
    recording takes of each step, ns; empty where the trace has no event of a host.
    `optimizing`: the device's idle time before late launches while the host is in an optimizer's step, ns by step;
    empty where that holds a backward pass, so that it calls a closure and its time is not its own.
    """

    blocking: tuple[BlockingCall, ...]
    loading: tuple[int, ...]
    input_names: tuple[str, ...]
    regions: tuple[tuple[str, float], ...]
    extra: tuple[ExtraRegion, ...] = ()
    allocating: tuple[float, float] = (0.0, 0.0)
    recording: tuple[int, ...] = ()
    optimizing: tuple[int, ...] = ()


def measure_host(activity: Activity, steps: StepBounds, meta: TraceMeta, lane: Lane) -> HostTime:
    """Blocking calls and data loading whose call began inside a step, on any thread."""
    host = activity.host
    events = host.events
    loading = _inside_steps(events, host.inputs, steps)
    loads = union(events.ts[loading], events.end[loading])
    took = loads.end - loads.start
    allocating = _inside_steps(events, host.allocations, steps)
    # Usual is what comes behind the first steps that ask for memory twice as often as the median one: the allocator
    # grows in them.
    at = steps.on_host(events.ts[allocating])
    calls, spent = (np.bincount(at, ns, len(steps)) for ns in (None, events.dur[allocating]))
    usual = calls <= _COLD * max(float(median(calls)), 1.0) if len(calls) else calls > 0
    usual = np.logical_or.accumulate(usual) & typical_steps(steps.edges[1:] - steps.edges[:-1])
    most = max(int(usual.sum()), 1)
    stepping = rows_named(events, OPTIMIZER_NAME)
    stepping = stepping[events.in_cats(*ANNOTATION_CATS, *OPERATOR_CATS)[stepping]]
    optimizer = union(events.ts[stepping], events.end[stepping])
    closure = optimizer.holds(events.ts.take(rows_named(events, BACKWARD_NAME))).any()  # as of LBFGS, or in Lightning
    optimizing = intersect(optimizer, lane.own["idle_host"]).within(steps.edges[:-1], steps.edges[1:])
    return HostTime(
        blocking=_waits(activity, steps, lane),
        loading=tuple(np.bincount(steps.on_host(loads.start), took, len(steps)).astype(np.int64).tolist()),
        input_names=tuple(sorted({events.names[i] for i in events.name[loading]})),
        regions=_regions(host, steps),
        extra=_extra_regions(host, steps),
        allocating=(float(calls[usual].sum()) / most, float(spent[usual].sum()) / most),
        recording=recording_at_most(host, steps, meta),
        optimizing=() if closure else tuple(optimizing.tolist()),
    )


def _waits(activity: Activity, steps: StepBounds, lane: Lane) -> tuple[BlockingCall, ...]:
    """Blocking calls with what they cost; a copy into pageable memory and the wait behind it are one."""
    host, events = activity.host, activity.host.events
    rows, step = host.waiting, steps.on_host(events.ts[host.waiting])
    if steps.by == "repetition":  # whose edges on the host are launches': a wait between two counts where it ends
        step = steps.edges.searchsorted(events.end[rows], side="right") - 1
        step[step == len(steps)] = -1
    rows, step = rows[step >= 0], step[step >= 0]
    order = np.lexsort((events.ts[rows], events.tid[rows]))
    rows, step = rows[order], step[order]
    if not len(rows):
        return ()
    around, tid = host.operator_around.take(rows), events.tid[rows]
    opens = np.ones(len(rows), dtype=bool)
    opens[1:] = (tid[1:] != tid[:-1]) | (around[1:] != around[:-1]) | (around[1:] < 0)
    opens[1:] |= ~is_in(rows[:-1], host.copies_to_pageable)
    first = opens.nonzero()[0]
    begin, took = events.ts[rows[first]], np.add.reduceat(events.dur[rows], first)
    rows = rows[np.append(first[1:], len(rows)) - 1]
    # By name and the outermost operator around them.
    around = np.append(host.nesting.rows, -1)[host.nesting.outermost_around(rows)]
    operator = np.where(around >= 0, events.name.take(around), -1)
    if "" in events.names:
        operator[operator == events.names.index("")] = -1
    values, group = groups(events.name[rows], operator)
    count = np.bincount(group)
    spent = np.bincount(group, weights=took)
    earliest = np.full(len(values), len(rows))
    np.minimum.at(earliest, group, np.arange(len(rows)))
    # Idle time is of the wait that began last before it.
    idle, order = lane.own["idle_sync"], begin.argsort(kind="stable")
    behind = begin[order].searchsorted(idle.start, side="right") - 1
    at = group[order[behind]] * len(steps) + steps.edges.searchsorted(idle.start, side="right") - 1
    took_idle = np.where(behind >= 0, idle.end - idle.start, 0)
    size = len(values) * len(steps)
    times = np.bincount(group * len(steps) + step[first], minlength=size).reshape(-1, len(steps))
    cost = np.bincount(at, took_idle, size).reshape(-1, len(steps))
    return tuple(
        BlockingCall(
            events.names[values[i, 0]],
            events.names[values[i, 1]] if values[i, 1] >= 0 else "",
            int(count[i]),
            int(spent[i]) / 1e6,
            tuple(times[i].astype(np.int64).tolist()),
            tuple(cost[i].astype(np.int64).tolist()),
        )
        for i in np.lexsort((earliest, -spent))
    )


def _regions(host: HostRows, steps: StepBounds) -> tuple[tuple[str, float], ...]:
    """Total time by name of annotations and of operators inside no other operator, ms. Without what an operator waits
    inside for a collective: DTensor's `aten::add` does so where its operand is partial."""
    if not len(steps):
        return ()
    events, rows = host.events, _region_rows(host)
    begin = events.ts[rows].clip(min=int(steps.host_start[0]))  # a window cuts what it begins in
    end = events.end[rows].clip(max=int(steps.host_end[-1]))
    inside = union(steps.host_start, steps.host_end).holds(begin) & (begin < end)
    total = np.bincount(events.name[rows[inside]], (end - begin)[inside], minlength=len(events.names)).astype(
        np.float64
    )
    waits = _inside_steps(events, rows_named(events, _WAITS), steps)
    around = host.nesting.outermost_around(waits)
    waits, around = waits[around >= 0], host.nesting.rows[around[around >= 0]]
    np.subtract.at(total, events.name[around], events.dur[waits])
    most = (-total).argsort(kind="stable")[:MOST_REGIONS]
    return tuple((events.names[i], float(total[i]) / 1e6) for i in most if total[i] > 0)


def _region_rows(host: HostRows) -> Int:
    """Annotations, and operators inside no other operator, but for a backend's notes: these wait for others."""
    rows = np.concatenate((host.annotations, np.sort(host.nesting.rows.take(host.nesting.outermost), kind="stable")))
    return rows.compress(~np.array([is_annotation(n) for n in host.events.names], dtype=bool)[host.events.name[rows]])


def _extra_regions(host: HostRows, steps: StepBounds) -> tuple[ExtraRegion, ...]:
    """The regions that grew in steps unlike the others, by step, most growth first."""
    typical = typical_steps(steps.edges[1:] - steps.edges[:-1])
    if typical.all():
        return ()
    events, rows = host.events, _region_rows(host)
    begin = np.maximum(events.ts[rows], steps.host_start[0])  # what straddles it counts from there: torch.compile may
    step, took = steps.on_host(begin), events.end[rows] - begin
    step[took <= 0] = -1
    used_in, allocated_in = (steps.on_host(events.ts[calls]) for calls in (host.first_uses, host.allocations))

    def spent(chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        names = events.name[rows[chosen]]
        return np.bincount(names, weights=took[chosen], minlength=len(events.names)).astype(np.float64)

    usual = spent(np.append(typical, False)[step]) / max(int(typical.sum()), 1)
    found: list[ExtraRegion] = []
    for odd in (~typical).nonzero()[0].tolist():
        more = spent(step == odd) - usual
        most = (-more).argsort(kind="stable")[:MOST_EXTRA]
        number, first = int(steps.number[odd]), _inside_regions(host, host.first_uses[used_in == odd])
        allocating = _inside_regions(host, host.allocations[allocated_in == odd])
        found += [
            ExtraRegion(number, events.names[i], *(float(ns[i]) / 1e6 for ns in (more, first, allocating)))
            for i in most
            if more[i] > 0
        ]
    return tuple(found)


def _inside_regions(host: HostRows, uses: Int) -> NDArray[np.float64]:
    """Time in these calls by the name of the outermost operator around them, ns."""
    events, around = host.events, host.nesting.outermost_around(uses)
    total = np.zeros(len(events.names))
    inside = around >= 0
    np.add.at(total, events.name[host.nesting.rows[around[inside]]], events.dur[uses[inside]])
    return total


def _inside_steps(events: Events, rows: Int, steps: StepBounds) -> Int:
    return rows[union(steps.host_start, steps.host_end).holds(events.ts.take(rows))]


LONG_NS = 200_000  # a stretch without any begin or end: a launch takes 2 to 50 µs, recorded
UNSEEN_NS = 1_000_000  # the same outside of all events: Python between two operators takes less
_MOST = 64  # kinds: the sum of their idle time is reported too
_MOST_WORK = 3


class HeldLaunches(Struct, frozen=True):
    """Of one operator or call ('' for what the trace does not show): the device's idle time in its long stretches.
    operator: the innermost around a call, or the program's range around what is not shown, '' outside any. idle_ns: by
    step, of the bucket idle_host. count: of calls, or of stretches without one, by the step that they begin in.
    launches: whether the device works for it."""

    name: str
    operator: str
    idle_ns: Int
    count: Int
    launches: bool = False

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
    threads = uniques(host.events.tid.take(launches), host.events.tid[host.steps[0]]).tolist()
    rows = np.concatenate((host.operators, host.launches, host.compilations))
    tid = host.events.tid.take(rows)
    if not (seen := [_of_thread(host, rows[tid == thread]) for thread in threads]):
        return ()
    # Find when all these threads are outside of all events.
    inside = merge(*(one.inside for one in seen))
    start, end = np.append(steps.edges[:1], inside.end), np.append(inside.start, steps.edges[-1:])
    long = (end - start >= UNSEEN_NS) & (late.within(start, end) >= LONG_NS)
    start, end = start[long], end[long]
    # What the program named there tells where it is, and not what it does.
    rows, unseen = host.annotations, intersect(Intervals(start, end), late)
    noted = [_of_thread(host, rows[host.events.tid.take(rows) == thread]) for thread in threads]
    alone = subtract(unseen, merge(*(one.long for one in noted)))
    found = [*_named(host, seen, late, steps), _held("", "", alone, start[alone.within(start, end) >= LONG_NS], steps)]
    found += [HeldLaunches("", one.name, one.idle_ns, one.count) for one in _named(host, noted, unseen, steps)]
    found = [one for one in found if np.count_nonzero(one.idle_ns)]
    return tuple(sorted(found, key=lambda one: -int(one.idle_ns.sum()))[:_MOST])


# What only makes a view, or room, computes nothing, however often it is called.
COMPUTES = re.compile(
    r"^(torchaudio|torchvision)::|^aten::(?!(view\w*|as_strided\w*|split\w*|chunk|unbind|select|slice|narrow|reshape|t"
    r"|transpose|permute|expand\w*|squeeze|unsqueeze|detach\w*|alias|lift_fresh|empty\w*|resize_|_?pin_memory)$)"
)
CPU_WORK_NS = 20_000  # an operator that launches nothing and takes less only prepares a launch


class HostWork(Struct, frozen=True):
    """The device's idle time by step while its launching host computes on the CPU, and the operators, most first."""

    idle_ns: Int
    names: tuple[str, ...]


def measure_host_work(activity: Activity, steps: StepBounds, lane: Lane) -> HostWork:
    """Outermost operators that call nothing of the device, while it waits for launches; nothing without a GPU."""
    host, late = activity.host, lane.own["idle_host"]
    events, threads = host.events, uniques(host.events.tid.take(activity.launch[activity.launch >= 0]))
    if not activity.on_gpu or not late.total or not len(steps):
        return HostWork(np.zeros(len(steps), dtype=np.int64), ())
    outer = host.nesting.outermost
    calls = np.bincount(host.nesting.outermost_around(host.launches) + 1, minlength=len(host.nesting.rows) + 1)[1:]
    rows = host.nesting.rows.take(outer[calls.take(outer) == 0])
    rows = rows[is_in(events.tid.take(rows), threads) & (events.dur.take(rows) >= CPU_WORK_NS)]
    rows = rows[named(events, COMPUTES, ("::",)).take(events.name[rows])]
    idle = intersect(union(events.ts[rows], events.end[rows]), late)
    took = np.bincount(events.name[rows], late.within(events.ts[rows], events.end[rows]), len(events.names))
    most = [number for number in (-took).argsort(kind="stable")[:_MOST_WORK].tolist() if took[number] > 0]
    return HostWork(idle.within(steps.edges[:-1], steps.edges[1:]), tuple(events.names[number] for number in most))


class _Thread(Struct, frozen=True):
    """When a thread is inside operators and calls, when it has many short ones, and its long stretches inside one. row:
    which one each of these lies in."""

    inside: Intervals
    launching: Intervals
    long: Intervals
    row: Int


def _of_thread(host: HostRows, rows: Int) -> _Thread:
    """rows: of the thread's operators and calls."""
    ts, end = host.events.ts.take(rows), host.events.end.take(rows)
    inside = union(ts, end)
    at = np.concatenate((ts, end))
    at.sort(kind="stable")  # two runs nearly in order
    long = ((at[1:] - at[:-1]) >= LONG_NS).nonzero()[0]
    start, over = at[long], at[long + 1]
    launching = union(np.concatenate((at[:1], over)), np.concatenate((start, at[-1:])))
    # Which of these lie in an event, and in which: the last that began of those that are around one.
    rows = rows[end - ts >= LONG_NS]
    ts, end = host.events.ts[rows], host.events.end[rows]
    first, behind = start.searchsorted(ts), over.searchsorted(end, side="right")
    around = (behind > first).nonzero()[0]
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
    parts = []
    for number, (own, one) in enumerate(zip(alone, threads, strict=True)):
        took = own.within(one.long.start, one.long.end)
        columns = (one.long.start, one.long.end, one.row, took, np.full(len(took), number))
        parts.append([column[took >= LONG_NS] for column in columns])  # the rest lies beside work of the device
    start, end, row, took_ns, thread = map(np.concatenate, zip(*parts, strict=True))
    around = np.append(host.nesting.rows, -1)[np.where(is_in(row, host.launches), host.operator_around.take(row), -1)]
    operator = np.where(around >= 0, events.name.take(around), -1)
    keys, group = groups(events.name[row], operator)
    total = np.bincount(group, weights=took_ns, minlength=len(keys))
    found = []
    for number in (-total).argsort(kind="stable")[:_MOST].tolist():
        name, where = keys[number].tolist()
        mine = group == number
        idle = [
            intersect(own, union(start[mine & (thread == at)], end[mine & (thread == at)]))
            for at, own in enumerate(alone)
        ]
        text = events.names[where] if where >= 0 else ""
        _, first = np.unique(row[mine], return_index=True)  # one call may hold several stretches
        calls = union(events.ts[row[mine]], events.end[row[mine]]).holds(events.ts[host.launches]).any()
        found.append(_held(events.names[name], text, merge(*idle), start[mine][first], steps, bool(calls)))
    return found


def _held(name: str, around: str, idle: Intervals, begin: Int, steps: StepBounds, calls: bool = False) -> HeldLaunches:
    """begin: when each call's first stretch begins, or each stretch."""
    step = np.minimum(np.maximum(steps.edges.searchsorted(begin, side="right") - 1, 0), len(steps) - 1)
    took = idle.within(steps.edges[:-1], steps.edges[1:])
    return HeldLaunches(name, around, took, np.bincount(step, minlength=len(steps)), calls)
