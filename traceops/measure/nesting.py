"""Which operator is around what, in passes over whole columns instead of a loop over events."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int, native, numbered, union, uniques
from traceops.traces.model import Events

# Groups rows by what some of their columns hold, without sorting where the values are few.


_CELLS_A_ROW = 4  # a table of so many cells a row costs less than sorting the rows


def distinct(values: NDArray[Any]) -> tuple[Int, Int]:
    """The different values in rising order and each row's place among them; fast where equal values stand together."""
    if native is not None:
        return numbered(values)
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    first = np.concatenate(([0], changes))[: len(values)]
    found = uniques(values[first])
    which = found.searchsorted(values[first])
    return found, which.repeat(np.diff(np.append(first, len(values))))


def groups(*columns: NDArray[Any]) -> tuple[Int, Int]:
    """The different rows of some columns of numbers from -1 on, shape (groups, columns), and each row's group."""
    sizes = [int(column.max(initial=-1)) + 2 for column in columns]
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column, size in zip(columns, sizes, strict=True):
        key *= size
        key += column
        key += 1
    cells = math.prod(sizes)
    if cells <= _CELLS_A_ROW * len(key):
        used = np.bincount(key, minlength=cells) > 0
        values, group = np.flatnonzero(used), (np.cumsum(used) - 1)[key]
    else:
        values, group = np.unique(key, return_inverse=True)
    parts = []
    for size in reversed(sizes):
        values, part = np.divmod(values, size)
        parts.append(part - 1)
    return np.stack(parts[::-1], axis=1), group


_WIDEST = 1 << 62  # sums of two numbers below it fit an int64


class _ThreadAxis(Struct, frozen=True):
    """The threads' times end to end on one axis, so that one search or running maximum serves all threads.

    `threads[k]` fills [k * span, (k + 1) * span), counting ns from `origin`, or else the different `moments`.
    """

    threads: Int
    span: int
    origin: int = 0
    moments: Int | None = None

    def passed(self, time: Int) -> Int:
        """How far into its thread's part of the axis each time lies, before the first event below 0."""
        if self.moments is None:
            return time - self.origin
        return np.searchsorted(self.moments, time, side="right") - 1


class Nesting(Struct, frozen=True, dict=True):
    """Events of the host by thread, then begin, the longest first; `rows` are theirs, positions count in that order.

    Events of a thread nest: they lie inside each other or beside each other. `start` and `end` are on `axis`. Nothing
    lies inside an event of no length; what it lies in began before it, or as it did and stands before it in the file.
    """

    events: Events
    rows: Int
    start: Int
    end: Int
    axis: _ThreadAxis

    @cached_property
    def outermost(self) -> Int:
        """Positions of the events that begin inside no other."""
        return np.flatnonzero(self.start >= np.concatenate(([-1], self._reach[:-1])))

    @cached_property
    def parent(self) -> NDArray[np.int32]:
        """Position of the innermost event around each, -1 where there is none."""
        if self._nested is not None:
            return self._nested[1]
        depth = self.depth
        order = np.argsort(depth, kind="stable").astype(np.int32)
        deeper = np.concatenate(([False], depth[1:] > depth[:-1]))
        # On a level, each is the first inside the event just before it, or a sibling of the last on the level;
        # those on the first level follow event 0, which would be inside event -1.
        eldest = np.where(deeper.take(order), np.arange(len(order), dtype=np.int32), 0)
        parent = np.empty_like(order)
        parent[order] = order.take(np.maximum.accumulate(eldest)) - 1
        return parent

    @cached_property
    def _nested(self) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """`depth` and `parent` in one pass; None without compiled code."""
        if native is None:
            return None
        depth, parent = np.empty((2, len(self.start)), dtype=np.int32)
        return None if native.nest(self.start, self.end, self._ends, depth, parent) is None else (depth, parent)

    @cached_property
    def own_time(self) -> Int:
        """Duration of each event less that of the events directly inside it, ns, never below 0."""
        duration = self.events.dur[self.rows]
        inside = np.zeros(len(duration) + 1, dtype=np.int64)  # the last takes what is inside none
        np.add.at(inside, self.parent, duration)
        left: Int = np.maximum(duration - inside[:-1], 0)
        return left

    def innermost_around(self, rows: Int) -> Int:
        """Position of the innermost event in which each of `rows` begins on its thread, -1 outside all.

        None of `rows` may be one of the events themselves, whose `parent` is known.
        """
        if self._axis is not None and self._nested is not None:
            found = np.empty(len(rows), dtype=np.int64)
            events, nested = self.events, (self.start, self._ends, *self._nested)
            if native.innermost(rows, events.tid, events.ts, self.axis.threads, self._axis, *nested, found) is not None:
                return found
        at = self._place(rows)
        begun = np.searchsorted(self.start, at, side="right")
        level = begun - np.searchsorted(self._ends, at, side="right") - 1
        found = np.where(level >= 0, begun - 1, -1)
        inside = np.flatnonzero(level >= 0)
        above = self.depth[found[inside]] - level[inside]
        while len(inside := inside[above > 0]):
            above = above[above > 0] - 1
            found[inside] = self.parent[found[inside]]
        return found

    def outermost_around(self, rows: Int) -> Int:
        """Position of the outermost event in which each of `rows` begins on its thread, -1 outside all."""
        found: Int
        if self._axis is not None and len(self.start):
            found = np.empty(len(rows), dtype=np.int64)
            events, nested = self.events, (self.start, self._reach, self.outermost)
            if native.outermost(rows, events.tid, events.ts, self.axis.threads, self._axis, *nested, found) is not None:
                return found
        at = self._place(rows)
        begun = np.searchsorted(self.start[self.outermost], at, side="right")
        # What is inside the last one begun may outlast it where events only overlap.
        over = np.concatenate(([-1], self._reach[self.outermost[1:] - 1], self._reach[-1:]))
        found = np.append(self.outermost, -1)[np.where(over[begun] > at, begun - 1, -1)]
        return found

    @cached_property
    def _axis(self) -> Int | None:
        """Where the axis begins and a thread's part of it, for compiled code; None without it, or of odd times."""
        axis = self.axis
        return None if native is None or axis.moments is not None else np.array((axis.origin, axis.span))

    @cached_property
    def _reach(self) -> Int:
        """The latest end of each event and all before it."""
        return np.maximum.accumulate(self.end)

    @cached_property
    def _ends(self) -> Int:
        return np.sort(self.end)

    @cached_property
    def depth(self) -> NDArray[Any]:
        """How many events are around each: those begun before, less those of them that ended by then."""
        if self._nested is not None:
            return self._nested[0]
        depth = np.arange(len(self.start))
        depth -= np.searchsorted(self._ends, self.start, side="right")
        ending = self.end == self.start
        if ending.any():  # of no length: it and those behind it at the same moment ended by then, but began no earlier
            ended = np.concatenate(([0], np.cumsum(ending)))
            depth += ended[np.searchsorted(self.start, self.start, side="right")] - ended[:-1]
        np.maximum(depth, 0, out=depth)
        return depth.astype(np.min_scalar_type(int(depth.max(initial=0))))  # few bytes sort fast

    def _place(self, rows: Int) -> Int:
        """Where each row begins on the axis; before all of it on a thread that has none of the events."""
        tid, threads = self.events.tid[rows], self.axis.threads
        if not len(threads):
            return np.full(len(rows), -1, dtype=np.int64)
        which = np.minimum(np.searchsorted(threads, tid), len(threads) - 1)
        passed = np.minimum(np.maximum(self.axis.passed(self.events.ts[rows]), -1), self.axis.span - 1)
        return np.where(threads[which] == tid, which * self.axis.span + passed, -1)


def find_nesting(events: Events, rows: Int) -> Nesting:
    """How these rows, given in file order, lie in each other."""
    threads, which = distinct(events.tid[rows])
    start, end = events.ts[rows], events.dur[rows]
    end += start
    axis = _axis(threads, start, end)
    which *= axis.span
    start, end = axis.passed(start) + which, axis.passed(end) + which
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        rows, start, end = rows[order], start[order], end[order]
    same = start[1:] == start[:-1]
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        lasts = np.cumsum(end[tied] > start[tied])
        first = np.searchsorted(start[tied], start[tied])  # of those that begin as it does
        none_before: NDArray[np.bool_] = lasts == lasts[first] - (end[tied] > start[tied])[first]
        longest_first = tied[np.lexsort((-end[tied], ~none_before, start[tied]))]
        rows = rows.copy()
        rows[tied], end[tied] = rows[longest_first], end[longest_first]
    return Nesting(events, rows, start, end, axis)


def _axis(threads: Int, start: Int, end: Int) -> _ThreadAxis:
    if not len(start):
        return _ThreadAxis(threads, 1)
    origin = int(start.min())
    span = int(end.max()) - origin + 1
    if span * len(threads) < _WIDEST:
        return _ThreadAxis(threads, span, origin)
    moments = uniques(np.concatenate((start, end)))  # times of a damaged file may lie years apart
    return _ThreadAxis(threads, len(moments), moments=moments)


def begin_inside(events: Events, rows: Int, parents: Int) -> NDArray[np.bool_]:
    """Which rows start inside one of the parents on the same thread."""
    inside = np.zeros(len(rows), dtype=bool)
    for tid in uniques(events.tid[parents]):
        own = parents[events.tid[parents] == tid]
        mine = np.flatnonzero(events.tid[rows] == tid)
        inside[mine] = union(events.ts[own], events.ts[own] + events.dur[own]).holds(events.ts[rows[mine]])
    return inside
