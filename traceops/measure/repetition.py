"""A sequence of kernels (operators, without a GPU) that repeats itself: the iterations of a trace that marks none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.activity import Activity
from traceops.measure.step_marks import Marks
from traceops.traces.model import Events

_LEAST_TIMES = 3
_LEAST_KERNELS = 8  # in one repetition, of several names: a few kernels in a loop are no iteration
_LEAST_NAMES = 3
_COVERS = 0.8  # of the lane's kernels
_MOST_NAMES = 4
_MOST_DISTANCES = 128
_PIECE = 4096  # kernels in the middle that must repeat first of all


def repetitions(events: Events, activity: Activity) -> Iterator[Marks]:
    """The launch of the kernel that each repetition begins with, and of the one after the last; nothing without any.

    Looks at the busiest stream (a thread, where there is no GPU). What lies before and after the repetitions must
    hold no name that they do not hold: of a single pass the layers repeat, but what reads and what ends it does not.
    Takes time linear in the kernels.
    """
    lane = _busiest(events, activity)
    names = events.name[activity.row[lane]].astype(np.int64)
    found = _period(names)
    if found is None:
        return
    first, covered, period = found
    inside = names[first : first + covered]
    if not np.isin(names, np.unique(inside)).all() or len(np.unique(inside[:period])) < _LEAST_NAMES:
        return
    at = first + _beginning([events.names[name] for name in inside[:period].tolist()])
    starts = np.arange(at, first + covered + 1, period)
    moments = activity.launched[lane[starts[starts < len(lane)]]]
    if len(moments) >= _LEAST_TIMES and (np.diff(moments) > 0).all():
        yield Marks("repetition", "", moments, whole=True)


def inside_window(activity: Activity) -> NDArray[np.bool_]:
    """Which activities were launched inside the window: those with a launch, where launches are recorded."""
    known: NDArray[np.bool_] = activity.launch >= 0
    return known if known.any() else ~known


def _busiest(events: Events, activity: Activity) -> Int:
    """Positions of the activities on the lane that has most, by start."""
    own = activity.by_start[inside_window(activity)[activity.by_start]]
    lanes, which = np.unique(activity.lane_of(events, own), return_inverse=True)
    busiest: Int = own[which == np.argmax(np.bincount(which))] if len(lanes) else own
    return busiest


def _period(names: Int) -> tuple[int, int, int] | None:
    """(first, length, period) of the longest exact repetition that covers most of the sequence; None without one."""
    count = len(names)
    for period in _distances(names):
        same = names[period:] == names[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        if not len(edges):
            continue
        lengths = edges[1::2] - edges[::2]
        longest = int(np.argmax(lengths))
        covered = int(lengths[longest]) + period
        if covered >= max(_LEAST_TIMES * period, _COVERS * count):
            first = int(edges[::2][longest])
            period = _shortest(names[first : first + period])
            return (first, covered, period) if period >= _LEAST_KERNELS else None
    return None


def _shortest(repeated: Int) -> int:
    """The period of a sequence that is repeated: what repeats within it as often is the repetition."""
    count = len(repeated)
    divisors = (period for period in range(1, count // 2 + 1) if count % period == 0)
    return next((period for period in divisors if (repeated == np.roll(repeated, period)).all()), count)


def _distances(names: Int) -> list[int]:
    """What the period may be, shortest first: how far the rarest kernels are from the next ones of their names."""
    count = len(names)
    values, seen = np.unique(names, return_counts=True)
    rarest = values[seen >= _LEAST_TIMES][np.argsort(seen[seen >= _LEAST_TIMES], kind="stable")][:_MOST_NAMES]
    found: set[int] = set()
    for name in rarest:
        at = np.flatnonzero(names == name)
        anchor = len(at) // _LEAST_TIMES  # what begins a window may come once
        found.update((at[anchor + 1 : anchor + 1 + _MOST_DISTANCES] - at[anchor]).tolist())
    middle, piece = count // 2, min(_PIECE, count // 4)
    return [
        period
        for period in sorted(found)
        if _LEAST_KERNELS <= period <= count // _LEAST_TIMES
        and (names[middle - piece : middle] == names[middle - piece + period : middle + period]).all()
    ]


def _beginning(texts: list[str]) -> int:
    """The kernel of a repetition that counts as its first, the same on all ranks that run this repetition.

    The first by name of those that come once; where none does, the first of the least rotation [Booth 1980].
    """
    counts = Counter(texts)
    once = [text for text in texts if counts[text] == 1]
    if once:
        return texts.index(min(once))
    doubled, failure, least = texts + texts, [-1] * (2 * len(texts)), 0
    for j in range(1, len(doubled)):
        i = failure[j - least - 1]
        while i != -1 and doubled[j] != doubled[least + i + 1]:
            if doubled[j] < doubled[least + i + 1]:
                least = j - i - 1
            i = failure[i]
        if doubled[j] != doubled[least + i + 1]:
            if doubled[j] < doubled[least]:
                least = j
            failure[j - least] = -1
        else:
            failure[j - least] = i + 1
    return least
