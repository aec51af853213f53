"""Sets of disjoint time intervals as two sorted int64 arrays; all lengths are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int


@dataclass(frozen=True)
class Intervals:
    """Sorted, disjoint, non-empty half-open intervals [start, end), in ns."""

    start: Int
    end: Int

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """Summed length, ns."""
        return int((self.end - self.start).sum())

    def holds(self, t: Int) -> NDArray[np.bool_]:
        """Whether each moment lies in the set."""
        if not len(self):
            return np.zeros(len(t), dtype=bool)
        at = self.start.searchsorted(t, side="right") - 1
        held: NDArray[np.bool_] = (at >= 0) & (self.end[np.maximum(at, 0)] > t)
        return held

    def covered_before(self, t: Int) -> Int:
        """Length of the set that lies before each `t`; differences give the length inside any bin."""
        if not len(self):
            return np.zeros(np.shape(t), dtype=np.int64)
        before = np.zeros(len(self) + 1, dtype=np.int64)
        (self.end - self.start).cumsum(out=before[1:])
        at = self.start.searchsorted(t, side="right")
        # Before all of them the last end is taken, from which no moment is counted: `at` is 0 there.
        overshoot = np.maximum(self.end.take(at - 1) - t, 0) * (at > 0)
        covered: Int = before.take(at) - overshoot
        return covered

    def within(self, start: Int, end: Int) -> Int:
        """Length of the set inside each bin [start, end)."""
        return self.covered_before(end) - self.covered_before(start)


def empty() -> Intervals:
    """The empty set."""
    return Intervals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def union(start: Int, end: Int) -> Intervals:
    """Merge intervals in any order; empty and inverted ones count for nothing."""
    keep = end > start
    if np.count_nonzero(keep) < len(keep):
        start, end = start[keep], end[keep]
    if not len(start):
        return empty()
    if np.count_nonzero(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")  # fast on what is nearly in order, as traces are
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.ones(len(start), dtype=bool)
    np.greater(start[1:], reach[:-1], out=opens[1:])
    first = opens.nonzero()[0]
    closes = np.empty_like(opens)
    closes[:-1], closes[-1] = opens[1:], True
    return Intervals(start[first], reach[closes])


def merge(*sets: Intervals) -> Intervals:
    """Union of sets."""
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Time in both sets."""
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    if not len(few):
        return empty()
    first = many.end.searchsorted(few.start, side="right")
    count = many.start.searchsorted(few.end, side="left") - first
    of_few = np.arange(len(few)).repeat(count)
    of_many = np.arange(len(of_few)) + (first - count.cumsum() + count).repeat(count)
    return union(np.maximum(few.start[of_few], many.start[of_many]), np.minimum(few.end[of_few], many.end[of_many]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Time in `a` but not in `b`."""
    if not len(a) or not len(b):
        return a
    ever = np.iinfo(np.int64)
    around = Intervals(np.concatenate(([ever.min], b.end)), np.concatenate((b.start, [ever.max])))
    return intersect(a, around)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of `a` inside [start, end)."""
    return union(np.maximum(a.start, start), np.minimum(a.end, end))


def split_at(a: Intervals, cuts: Int) -> Intervals:
    """The same time, with intervals cut at the given moments (the result may touch itself)."""
    cuts = np.unique(cuts[a.holds(cuts)])
    cuts = cuts[a.start[np.searchsorted(a.start, cuts, side="right") - 1] != cuts]
    at = np.searchsorted(a.start, cuts)
    return Intervals(np.insert(a.start, at, cuts), np.insert(a.end, at - 1, cuts))


def spread_before(start: Int, end: Int, amount: NDArray[Any], t: Int) -> NDArray[np.float64]:
    """What lies before each `t` of amounts that are spread evenly over intervals, which may overlap, in any order."""
    keep = end > start
    if not keep.any():
        return np.zeros(np.shape(t))
    moments = np.concatenate((start[keep], end[keep]))
    dense = amount[keep] / (end[keep] - start[keep])
    order = np.argsort(moments, kind="stable")
    density = np.cumsum(np.concatenate((dense, -dense))[order])
    before = np.concatenate(([0.0], np.cumsum(density[:-1] * np.diff(moments[order]))))
    return np.interp(t, moments[order], before)
