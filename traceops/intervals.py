"""Sets of disjoint time intervals as two sorted int64 arrays; all lengths are exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceops.model import Int


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
        at = np.searchsorted(self.start, t, side="right") - 1
        held: NDArray[np.bool_] = (at >= 0) & (self.end[np.maximum(at, 0)] > t)
        return held

    def covered_before(self, t: Int) -> Int:
        """Length of the set that lies before each `t`; differences give the length inside any bin."""
        if not len(self):
            return np.zeros(np.shape(t), dtype=np.int64)
        before = np.concatenate(([0], np.cumsum(self.end - self.start)))
        at = np.searchsorted(self.start, t, side="right")
        last = np.maximum(at - 1, 0)
        overshoot = np.where(at > 0, np.maximum(self.end[last] - t, 0), 0)
        covered: Int = before[at] - overshoot
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
    start, end = start[keep], end[keep]
    if not len(start):
        return empty()
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(start[opens], reach[closes])


def merge(*sets: Intervals) -> Intervals:
    """Union of sets."""
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Time in both sets."""
    if not len(a) or not len(b):
        return empty()
    edges = _edges(a, b)
    return _where(edges, a.holds(edges[:-1]) & b.holds(edges[:-1]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Time in `a` but not in `b`."""
    if not len(a) or not len(b):
        return a
    edges = _edges(a, b)
    return _where(edges, a.holds(edges[:-1]) & ~b.holds(edges[:-1]))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of `a` inside [start, end)."""
    return union(np.maximum(a.start, start), np.minimum(a.end, end))


def split_at(a: Intervals, cuts: Int) -> Intervals:
    """The same time, with intervals cut at the given moments (the result may touch itself)."""
    inside = cuts[a.holds(cuts) & ~np.isin(cuts, a.start)]
    start = np.unique(np.concatenate((a.start, inside)))
    end = np.unique(np.concatenate((a.end, inside)))
    return Intervals(start, end)


def _edges(a: Intervals, b: Intervals) -> Int:
    """All starts and ends in order; the empty intervals between equal ones count for nothing."""
    edges: Int = np.sort(np.concatenate((a.start, a.end, b.start, b.end)), kind="stable")
    return edges


def _where(edges: Int, holds: NDArray[np.bool_]) -> Intervals:
    return union(edges[:-1][holds], edges[1:][holds])
