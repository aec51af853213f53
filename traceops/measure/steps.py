"""Where each step begins and ends: on the host by its annotation, on the device by what it launched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from traceops.core.arrays import Int, is_in, median, uniques
from traceops.core.words import StepsBy
from traceops.measure.activity import Activity
from traceops.measure.found_steps import FoundSteps, found_steps
from traceops.measure.host_rows import HOST_CATS, distinct
from traceops.traces.model import Events
from traceops.traces.observed import Observed

FAR = 1.5  # times the median: a shorter step is never unlike the others
_LONG_AGO = np.iinfo(np.int64).min
_SPREADS = 5.0  # and this many times what the steps spread by
_NORMAL = 1.4826  # median absolute deviation to standard deviation [Rousseeuw and Croux 1993]
_NEAR = 1.2
_LEAST = 3  # steps: of two, neither is the usual one


def typical_steps(durations: ArrayLike) -> NDArray[np.bool_]:
    """Mask of the steps that take about as long as most do; `durations` in any unit, in any order. A step is left out
    where it takes more than 1.5 times the median and lies far beyond what the steps spread by. Fewer than half can be
    left out. A short step is not: work that is missing is no cost."""
    steps = np.asarray(durations, dtype=float)
    return np.ones(len(steps), dtype=bool) if len(steps) < _LEAST else ~far_beyond(steps, steps)


def far_beyond(durations: ArrayLike, most: ArrayLike) -> NDArray[np.bool_]:
    """Mask of the steps that take far longer than `most` of them, by the median and the spread of those."""
    steps = np.asarray(most, dtype=float)
    middle = median(steps)
    spread = _NORMAL * float(median(np.abs(steps - middle)))
    far: NDArray[np.bool_] = np.asarray(durations, dtype=float) > max(FAR * middle, middle + _SPREADS * spread)
    return far


def usual_steps(durations: ArrayLike) -> NDArray[np.bool_]:
    """Of the typical steps, those that take up to 1.2 times the median; all where that leaves out over a third. A few
    steps say what most are like only without an evaluation or a neighbour's noise among them. Where steps come in
    kinds, each kind counts."""
    steps = np.asarray(durations, dtype=float)
    like = typical_steps(steps)
    near: NDArray[np.bool_] = like & (steps <= _NEAR * median(steps)) if len(steps) else like
    return near if 3 * int(near.sum()) >= 2 * int(like.sum()) else like


def spells(odd: Sequence[bool]) -> int:
    """How often something came: neighbouring steps are one time, as what straddles their boundary is long in both."""
    return sum(now and not before for before, now in zip((False, *odd), odd, strict=False))


_GAP_US = 1000  # of the capture between two steps: what takes longer counts as none of them


def step_ends_ns(one: Observed) -> NDArray[np.float64]:
    """Unix time of the end of each step. The first one holds the program's start."""
    own = one.steps["own_us"].astype(np.float64)
    took = one.steps["host_us"].astype(np.float64) + np.where(own > _GAP_US, own, 0.0)
    ends: NDArray[np.float64] = one.began_ns + 1e3 * took.cumsum()
    return ends


IDLE_TAIL = 20  # an only step that goes on for so many times the time of its device work is idle to its end
_TAIL = 0.1  # of marked steps, for which the host goes on alone at their ends: it loads or works on results there
_FILTERED = 0.5  # of the activities in the window lack a launch: more is no loss of records
NO_STEP = -1  # the number of the one window of a trace that marks no steps


class StepBounds(Struct, frozen=True):
    """Steps tile the device's timeline: step i runs from `edges[i]` to `edges[i + 1]` (ns). `host_start` and `host_end`
    are the annotations on the host; `of_activity` the step of each activity, -1 before the first and `len(number)`
    behind the last. `empty` are the numbers of marked steps left out because nothing they launched outlasted the step
    before."""

    number: Int
    edges: Int
    host_start: Int
    host_end: Int
    of_activity: Int
    empty: tuple[int, ...] = ()
    by: StepsBy = "profiler"
    mark: str = ""

    def __len__(self) -> int:
        return len(self.number)

    def on_host(self, moments: Int) -> Int:
        """The step in which each of these moments of the host lies, -1 outside all."""
        step = self.host_start.searchsorted(moments, side="right") - 1
        step[(step >= 0) & (moments >= self.host_end.take(np.maximum(step, 0)))] = -1
        return step

    @property
    def catches_up_ns(self) -> int:
        """What the first step holds until the device, behind its host, ends it; < 0: what it lacks, begun late."""
        if not len(self) or not len(self.host_start):
            return 0
        begins, ends = int(self.edges[0] - self.host_start[0]), int(self.edges[1] - self.host_end[0])
        return min(ends - begins, 0) if begins else max(ends, 0)


def find_steps(events: Events, activity: Activity, recorded: tuple[int, ...] | None = None) -> StepBounds:
    """Step boundaries of one trace [docs/metrics.md, the step ledger]. Device step k ends with the last activity
    launched in steps up to k. Without a GPU it begins and ends with its annotation. Where a trace marks no steps they
    are found by what repeats. Else, and where all marked ones are empty, it is one window from first to last activity.
    Of a trace of ours only the `recorded` steps count."""
    if (found := host_steps(events, activity, recorded)) is None:
        return _one_window(activity, by="cut_off" if recorded == () else "window")
    return _bounds(events, activity, found)


def host_steps(events: Events, activity: Activity, recorded: tuple[int, ...] | None = None) -> FoundSteps | None:
    """Where steps begin and end on the host: as the profiler marked them, or else as they are found."""
    rows, numbers = activity.host.steps
    over = 0
    # Marks of another run are none that a capture of the `recorded` steps can have left, cut off or whole.
    left = (*recorded, max(recorded) + 1) if recorded else ()
    of_another_run = bool(left) and len(numbers) > 0 and not np.count_nonzero(is_in(numbers, left))
    if recorded is not None and not of_another_run:
        own = _own_steps(events, rows, numbers, recorded)
        rows, numbers = rows[own], numbers[own]
    elif len(rows) > 1 and not activity.on_gpu and not np.count_nonzero(activity.launched >= events.ts[rows[-1]]):
        over = events.ts[rows[-1]]
        rows, numbers = rows[:-1], numbers[:-1]  # cut off by the profiler's end before anything ran in it
    if len(rows):
        begin = events.ts[rows]
        end = begin + events.dur[rows]
        end[-1] = max(end[-1], over)  # a mark may be shorter than its step
        return FoundSteps("profiler", "ProfilerStep", numbers, begin, end)
    return found_steps(events, activity) if recorded is None else None


def _own_steps(events: Events, rows: Int, numbers: Int, recorded: tuple[int, ...]) -> Int:
    """Which marks (positions in `rows`, in time order) are those of the capture's own `recorded` steps. Where the
    program has a profiler of its own, a number may be there more than once. Ours begin with the recording, and each
    follows on the one before."""
    own: list[int] = []
    for number in sorted(recorded):
        at = (numbers == number).nonzero()[0]
        if len(at):
            over = events.ts[rows[own[-1]]] + events.dur[rows[own[-1]]] if own else events.ts[rows[at[0]]]
            own.append(int(at[np.argmin(np.abs(events.ts[rows[at]] - over))]))
    return np.sort(np.array(own, dtype=np.int64))


def _bounds(events: Events, activity: Activity, found: FoundSteps) -> StepBounds:
    """The steps on the device's timeline."""
    numbers, start, end, by, mark = found.number, found.begin, found.end, found.by, found.name
    launched, before = _launched(events, activity)
    step = start.searchsorted(launched, side="right") - 1
    step[launched >= end[-1]] = len(start)
    if not activity.on_gpu:
        if (len(step) or len(start) == 1) and not np.count_nonzero((step >= 0) & (step < len(start))):
            return _one_window(activity, tuple(numbers.tolist()))
        return StepBounds(numbers, np.concatenate((start, [end[-1]])), start, end, step, by=by, mark=mark)
    step[before] = -1
    edges = np.full(len(start) + 1, _LONG_AGO)
    inside = (step >= -1) & (step < len(start))
    np.maximum.at(edges, step[inside] + 1, activity.end[inside])
    edges[0] = _first_edge(events, int(start[0]), activity.end[step == -1])
    edges = np.maximum.accumulate(edges)
    kept, tail = (edges[1:] - edges[:-1]) > 0, end - edges[1:]
    if len(start) == 1 and tail[0] > IDLE_TAIL * (edges[1] - start[0]) > 0 and edges[0] == start[0]:
        edges[1] = end[0]
    elif len(start) > 1 and by == "profiler" and kept.all() and median(tail) > _TAIL * median(end - start):
        edges = np.maximum(edges, np.append(start[0], end))
    if not np.count_nonzero(kept):
        return _one_window(activity, tuple(numbers.tolist()))
    position = np.concatenate(([-1], kept.cumsum() - 1, [kept.sum()]))  # of old steps -1, 0 … n among the kept
    return StepBounds(
        numbers[kept],
        np.concatenate((edges[:1], edges[1:][kept])),
        start[kept],
        end[kept],
        position.take(step + 1),
        tuple(numbers[~kept].tolist()),
        by,
        mark,
    )


def _first_edge(events: Events, start: int, earlier: Int) -> int:
    """earlier: ends of earlier work. What a device idles for until its host is recorded is not the step's."""
    recorded = events.ts[events.in_cats(*HOST_CATS)]
    if not len(earlier):
        return start
    return int(max(earlier.max(), min(start, recorded.min(initial=start)) if len(recorded) else _LONG_AGO))


def _one_window(activity: Activity, empty: tuple[int, ...] = (), by: StepsBy = "window") -> StepBounds:
    first = int(activity.start.min()) if len(activity.start) else 0
    last = int(activity.end.max()) if len(activity.end) else first
    edges = np.array([first, last], dtype=np.int64)
    of_activity = np.zeros(len(activity.start), dtype=np.int64)
    return StepBounds(np.array([NO_STEP]), edges, edges[:1], edges[1:], of_activity, empty, by)


def _launched(events: Events, activity: Activity) -> tuple[Int, NDArray[np.bool_]]:
    """When each was launched at the latest, its own begin where no launch is recorded; and which before the window. A
    filtered trace lacks most launches behind the first one of a stream too. There each was launched at the latest when
    the next known one of its stream was, as these run in order, and none before the window."""
    missing, launched, before = activity.launch < 0, activity.launched, _launched_before_window(events, activity)
    lost, inside = np.count_nonzero(missing & ~before), len(missing) - np.count_nonzero(before)
    if lost in (0, len(missing)) or lost <= _FILTERED * inside:
        return launched, before
    launched = launched.copy()
    streams = events.stream[activity.row[activity.by_start]]
    for stream in uniques(streams):
        own = activity.by_start[streams == stream][::-1]
        known = np.where(missing[own], np.iinfo(np.int64).max, launched[own])
        launched[own] = np.minimum(launched[own], np.minimum.accumulate(known))
    return launched, np.zeros(len(before), dtype=bool)


def _launched_before_window(events: Events, activity: Activity) -> NDArray[np.bool_]:
    """Activities without a launch record that no recorded launch precedes on their stream. Streams run in order, so
    these were launched before the window; a record lost later in the window does not count."""
    missing = activity.launch < 0
    # Where no launch is recorded at all the trace holds no host side: then its own time says the step.
    if missing.all() or not np.count_nonzero(missing):
        return np.zeros(len(missing), dtype=bool)
    streams, which = distinct(events.stream.take(activity.row.take(activity.by_start)))
    recorded = (~missing.take(activity.by_start)).nonzero()[0]
    first = np.full(len(streams), len(missing))
    np.minimum.at(first, which.take(recorded), recorded)
    before = np.empty(len(missing), dtype=bool)
    before[activity.by_start] = np.arange(len(missing)) < first.take(which)
    return before
