"""What a rank's steps launched, as the judgement of its kernels wants it."""

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from traceops.compute.uses import Launched, Place, Schedule
from traceops.core.arrays import Int, is_in, union, uniques
from traceops.measure.activity import COMM, Activity
from traceops.measure.host_places import frame_of, is_own
from traceops.measure.host_rows import OPTIMIZER_NAME, Nesting, begin_inside, rows_named
from traceops.measure.steps import NO_STEP, StepBounds
from traceops.traces.model import MODULE, NO_FRAMES, Events, Frames

_LONG_AGO = np.iinfo(np.int64).min
_LONG_CALL_NS = 500_000  # from which a launch has waited for the device
_SHORT_WAIT_NS = 5_000  # up to which the device had nothing left to do
_TOUCHES_NS = 1_000  # a frame that begins this shortly before another ends follows it
_DEEPEST = 64  # operators around one


def find_launched(events: Events, activity: Activity, steps: StepBounds, frames: Frames = NO_FRAMES) -> Launched:
    """Kernels, copies and fills of the recorded steps with their operators; no collectives."""
    step = steps.of_activity
    inside = (step >= 0) & (step < len(steps))
    inside &= _on_busiest(events.pid.take(activity.row), np.where(inside, activity.end - activity.start, 0))
    order = activity.by_launch
    kept = order[(activity.kind.take(order) != COMM) & inside.take(order)]
    nesting = activity.host.nesting
    launch = activity.launch.take(kept)
    operator = activity.host.operator_around.take(launch)
    _by_number(events, activity.row.take(kept), operator, nesting.rows, np.arange(len(nesting.rows)))
    calls = activity.host.launches
    if len(calls) and len(nesting.rows) and np.count_nonzero(operator < 0):
        _by_number(events, activity.row.take(kept), operator, calls, activity.host.operator_around.take(calls))
    optimizing: NDArray[np.bool_] = np.zeros(len(kept), dtype=bool)
    known = (launch >= 0).nonzero()[0]
    optimizing[known] = begin_inside(events, launch.take(known), rows_named(events, OPTIMIZER_NAME))
    # What was launched before the steps may run in them: no device is busy for longer than they take.
    occupied = min(union(activity.start[inside], activity.end[inside]).total, int(steps.edges[-1] - steps.edges[0]))
    host = steps.host_end - steps.host_start
    held = _held(events, activity)
    return Launched(
        events,
        activity.row.take(kept),
        step.take(kept),
        operator,
        nesting.rows,
        nesting.parent,
        optimizing,
        host,
        np.maximum(host - _waited(events, held, steps), 0),
        occupied / len(steps),
        len(steps),
        partial(_schedule, events, activity, steps, kept, held),
        *module_places(frames, nesting),
    )


def _on_busiest(device: Int, spent: Int) -> NDArray[np.bool_]:
    """What ran on the device that worked most, of a process that uses several."""
    busiest = device[:1]
    if (device != busiest).any():
        devices, which = np.unique(device, return_inverse=True)
        busiest = devices[np.bincount(which, weights=spent).argmax()]
    on_it: NDArray[np.bool_] = device == busiest
    return on_it


def _held(events: Events, activity: Activity) -> Int:
    """Calls in which the host waited for the device. Of long launches those beside a busy device: else they load."""
    rows = activity.host.held_up(_LONG_CALL_NS)
    busy = union(activity.start, activity.end)
    beside = busy.covered_before(events.end[rows]) - busy.covered_before(events.ts[rows])
    kept: Int = rows[is_in(rows, activity.host.waiting) | (2 * beside >= events.dur[rows])]
    return kept


def _schedule(events: Events, activity: Activity, steps: StepBounds, kept: Int, held: Int) -> Schedule:
    """The middle step, as host and device went through it. kept: the activities that `Launched` has, in its order."""
    typical = len(steps) // 2
    mine = activity.by_launch[steps.of_activity.take(activity.by_launch) == typical]
    begin, over = (int(side[typical]) if len(side) else 0 for side in (steps.host_start, steps.host_end))
    launched = np.maximum.accumulate(np.minimum(np.maximum(activity.launched[mine], begin), over))
    waited = union(events.ts[held], events.end[held])
    edges = np.concatenate(([begin], launched, [over]))
    host = np.maximum(np.diff(edges - waited.covered_before(edges)), 0)
    calls = np.concatenate((events.ts.take(activity.host.operators), events.ts.take(activity.host.launches)))
    calls = np.sort(calls[(calls >= begin) & (calls < over)])
    counted = np.diff(calls.searchsorted(edges))
    position = np.full(len(activity.row), -1, dtype=np.int64)
    position[kept] = np.arange(len(kept))
    waits = np.zeros(len(mine), dtype=bool)
    # A long copy that began before its call was over had the host wait until all before it was done.
    began = activity.launch[activity.start < events.end.take(activity.launch)]
    done = held[is_in(held, activity.host.waiting) | (is_in(held, began) & is_in(held, activity.host.may_wait))]
    done = events.ts[done[(events.ts[done] >= begin) & (events.ts[done] < over) & (events.dur[done] > _SHORT_WAIT_NS)]]
    behind = launched.searchsorted(done, side="right") - 1
    waits[behind[behind >= 0]] = True
    if steps.number[typical] == NO_STEP:  # no other one follows a window
        waits[-1:] = True
    # Measure by how much each interval prolongs the union of those that began before it.
    start, end = activity.start[mine], activity.end[mine]
    order = start.argsort(kind="stable")
    reach = np.concatenate(([_LONG_AGO], np.maximum.accumulate(end[order])[:-1])) if len(order) else end
    longer = np.zeros(len(order), dtype=np.int64)
    longer[order] = np.maximum(end[order] - np.maximum(start[order], reach), 0)
    return Schedule(position[mine], host, counted, longer, waits, int(steps.edges[typical + 1] - steps.edges[typical]))


def _by_number(events: Events, rows: Int, operator: Int, candidates: Int, theirs: Int) -> None:
    """Kernels without an operator: that of the candidate (an operator or a call) with their external id."""
    lost = ((operator < 0) & (events.external.take(rows) > 0)).nonzero()[0]
    if not len(lost) or not len(candidates):
        return
    ids = events.external[candidates]
    order = ids.argsort(kind="stable")
    at = ids[order].searchsorted(events.external[rows[lost]])
    at = np.minimum(at, len(order) - 1)
    found = order[at]
    hit = ids[found] == events.external[rows[lost]]
    operator[lost[hit]] = theirs[found[hit]]


def _waited(events: Events, calls: Int, steps: StepBounds) -> Int:
    """Time of each step's calls in which the host waited for the device."""
    step = steps.on_host(events.ts[calls])
    inside = step >= 0
    waited: Int = np.bincount(step[inside], events.dur[calls][inside], minlength=len(steps)).astype(np.int64)
    return waited


def module_places(frames: Frames, nesting: Nesting) -> tuple[Int, tuple[Place, ...]]:
    """By the operator's position a position in the places, -1 for none; in backward that of the forward operator."""
    rows, events = nesting.rows, nesting.events
    found = np.full(len(rows), -1, dtype=np.int64)
    if not len(rows) or not any(name.startswith(MODULE) for name in frames.names):
        return found, ()
    places: dict[Place, int] = {}
    for thread in uniques(frames.tid).tolist():
        moments, inside = _changes(frames, (frames.tid == thread).nonzero()[0], places)
        mine = (events.tid[rows] == thread).nonzero()[0]
        at = moments.searchsorted(events.ts[rows[mine]], side="right") - 1
        found[mine] = np.where(at >= 0, inside[np.maximum(at, 0)], -1)
    _of_backward(found, events.sequence[rows], nesting.parent)
    return found, tuple(places)


def _changes(frames: Frames, rows: Int, places: dict[Place, int]) -> tuple[Int, Int]:
    """When a thread enters which place, -1 for none; new places are added to `places`."""
    rows = rows[np.lexsort((-frames.dur[rows], frames.ts[rows]))]
    read = [_steps_into(name) for name in frames.names]
    moments, inside = [np.iinfo(np.int64).min], [-1]
    open_: list[tuple[int, Place | None]] = []

    def enter(moment: int, place: Place | None) -> None:
        moments.append(moment)
        inside.append(-1 if place is None else places.setdefault(place, len(places)))

    def close(until: int) -> None:
        while open_ and open_[-1][0] <= until:
            end, _ = open_.pop()
            enter(end, open_[-1][1] if open_ else None)

    columns = (frames.name[rows].tolist(), frames.ts[rows].tolist(), frames.dur[rows].tolist())
    for name, start, took in zip(*columns, strict=True):
        close(start + _TOUCHES_NS)
        around = open_[-1][1] if open_ else None
        module, line = read[name]
        place = around
        if module:
            path = module if around is None or not around.module else f"{around.module}/{module}"
            place = Place(path, "" if around is None else around.line)
        elif line:
            place = Place("" if around is None else around.module, line)
        if place != around:
            enter(start, place)
        end = start + took if not open_ else min(start + took, open_[-1][0])
        open_.append((end, place))
    close(np.iinfo(np.int64).max)
    order = np.array(moments).argsort(kind="stable")
    return np.array(moments)[order], np.array(inside)[order]


def _steps_into(name: str) -> tuple[str, str]:
    """A module's class, or the line of a function of the program's own; two empty texts for other frames."""
    if name.startswith(MODULE):
        return name.removeprefix(MODULE).rpartition("_")[0] or name.removeprefix(MODULE), ""
    frame = frame_of(name)
    return "", f"{PurePosixPath(frame.file).name}:{frame.line}" if is_own(frame) and frame.line else ""


def _of_backward(found: Int, sequence: Int, parent: NDArray[np.int32]) -> None:
    """Operators without a place get that of the forward operator with the sequence number of their node."""
    around = sequence.copy()
    for _ in range(_DEEPEST):
        longer = np.where((around < 0) & (parent >= 0), around[parent], around)
        if (longer == around).all():
            break
        around = longer
    forward = ((found >= 0) & (sequence >= 0)).nonzero()[0]
    numbers, first = np.unique(sequence[forward], return_index=True)
    lost = ((found < 0) & (around >= 0)).nonzero()[0]
    if not len(numbers) or not len(lost):
        return
    at = np.minimum(numbers.searchsorted(around[lost]), len(numbers) - 1)
    hit = numbers[at] == around[lost]
    found[lost[hit]] = found[forward[first[at[hit]]]]
