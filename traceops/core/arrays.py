"""Names for the arrays that columns are made of, and the mean of times."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar, overload

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

Int = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Number = TypeVar("Number", bound=np.number)


def compiled_passes() -> Any:
    """The compiled passes over columns; None where TRACEOPS_NATIVE=0 forbids them, or none of this version were built.
    Each answers None where an argument is no column as it takes them; then NumPy does the work."""
    if os.environ.get("TRACEOPS_NATIVE") == "0":
        return None
    try:
        import traceops.core._arrays as passes  # an installation without a compiler has none
    except ImportError:
        return None
    return passes if getattr(passes, "VERSION", 0) == 2 and hasattr(passes, "group") else None


native: Any = compiled_passes()

_FEW = 64
FEW_ROWS = 32  # of a table, up to which Python's own lists and tuples are faster
_NONE = np.empty(0, dtype=np.int64)


def numbered(column: NDArray[Any]) -> tuple[NDArray[Any], Int]:
    """The different values in rising order, and the place of each row's value among them."""
    if native is not None:
        values, which = np.empty(_FEW, dtype=np.int64), np.empty(len(column), dtype=np.int64)
        if (count := native.few(column, values, which)) is not None:
            return values[:count], which
    values, which = np.unique(column, return_inverse=True)
    return values, which.reshape(-1)


def alike(columns: Sequence[NDArray[np.integer]]) -> tuple[Int, Int]:
    """The first of the rows that are equal in all columns, in the order of what they hold, and each row's group. By
    Python's own tuples: of few rows in a quarter of NumPy's time."""
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    firsts: dict[tuple[int, ...], int] = {}
    for at, row in enumerate(rows):
        firsts.setdefault(row, at)
    found = sorted(firsts)
    group = {row: number for number, row in enumerate(found)}
    return np.array([firsts[row] for row in found], dtype=np.int64), np.array([group[row] for row in rows], np.int64)


def grouped(key: Int) -> tuple[Int, Int]:
    """The first row of each value, the least value first, and each row's group: what np.unique sorts all rows for."""
    if native is not None:
        first, which = np.empty((2, len(key)), dtype=np.int64)
        if (count := native.group(key, first, which)) is not None:
            order = key.take(first[:count]).argsort()
            place = np.empty(count, dtype=np.int64)
            place[order] = np.arange(count)
            return first.take(order), place.take(which)
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def mean_ms(ns: Int) -> float:
    """Mean of times in ns, as ms; 0 without any."""
    return float(total(ns)) / len(ns) / 1e6 if len(ns) else 0.0


def total(ns: Int) -> int:
    """The sum, of few numbers in a third of NumPy's time."""
    return sum(ns.tolist()) if len(ns) <= FEW_ROWS else int(ns.sum())


def uniques(*values: NDArray[Number]) -> NDArray[Number]:
    """The different values in rising order. np.unique, asked for no more, imports numpy.ma: 16 ms in each process."""
    column = values[0] if len(values) == 1 else np.concatenate(values)
    if not len(column):
        return column
    if native is not None:  # threads, streams and kinds are few
        few = np.empty(_FEW, dtype=np.int64)
        if (count := native.few(column, few, _NONE)) is not None:
            return few[:count]  # type: ignore[return-value]
    ordered: NDArray[Number] = np.sort(column)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def is_in(values: NDArray[np.integer], among: NDArray[np.integer] | Sequence[int]) -> NDArray[np.bool_]:
    """Whether each value is one of `among`: np.isin, which imports numpy.ma too."""
    if not len(among):
        return np.zeros(len(values), dtype=bool)
    ordered = np.sort(among)
    found: NDArray[np.bool_] = ordered.take(np.minimum(ordered.searchsorted(values), len(ordered) - 1)) == values
    return found


@overload
def median(values: ArrayLike) -> float: ...
@overload
def median(values: ArrayLike, axis: int) -> NDArray[np.float64]: ...
def median(values: ArrayLike, axis: int | None = None) -> float | NDArray[np.float64]:
    """As np.median has it, which takes ten times as long for few values and imports numpy.ma: a float, or an array."""
    ordered = np.sort(values, axis=axis)
    if axis:
        ordered = np.moveaxis(ordered, axis, 0)
    count = len(ordered)
    if axis is None:  # what is no number comes last
        known = count and ordered[-1] == ordered[-1]
        return (float(ordered[(count - 1) // 2]) + float(ordered[count // 2])) / 2.0 if known else math.nan
    middle = np.add(ordered[(count - 1) // 2], ordered[count // 2], dtype=np.float64) / 2.0
    return np.where(ordered[-1] == ordered[-1], middle, np.nan)


def nanmedian(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """The same of what are numbers, NaN where none is: as np.nanmedian has it, without its warning."""
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, 0)
    count = (ordered == ordered).sum(axis=0)
    low, high = (np.take_along_axis(ordered, np.maximum(at, 0)[None], 0)[0] for at in ((count - 1) // 2, count // 2))
    return np.where(count > 0, (low + high) / 2.0, np.nan)


def percentiles(values: NDArray[Any], percents: Sequence[float]) -> list[float]:
    """As np.percentile has them to the last digit, which takes ten times as long for few, and imports numpy.ma."""
    places = _places(len(values), tuple(percents))
    partly: Any
    if len(values) <= _FEW:
        partly = np.sort(values).tolist()
    else:
        partly = np.partition(values, sorted({place for low, high, _ in places for place in (low, high)}))
    found = []
    for low, high, part in places:
        below, above = float(partly[low]), float(partly[high])
        found.append(below + (above - below) * part if part < 0.5 else above - (above - below) * (1 - part))
    return found


@lru_cache(maxsize=1 << 8)
def _places(count: int, percents: tuple[float, ...]) -> list[tuple[int, int, float]]:
    """Of each percentile of so many sorted values: the two places that it lies between, and how far on."""
    at = [percent / 100 * (count - 1) for percent in percents]
    return [(int(each), min(int(each) + 1, count - 1), each - int(each)) for each in at]


# Sets of disjoint time intervals as two sorted int64 arrays; all lengths are exact.


class Intervals(Struct, frozen=True):
    """Sorted, disjoint, non-empty half-open intervals [start, end), in ns."""

    start: Int
    end: Int

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """Summed length, ns."""
        return int((self.end - self.start).sum()) if len(self.start) else 0

    def holds(self, t: Int) -> NDArray[np.bool_]:
        """Whether each moment lies in the set."""
        if not len(self.start):
            return np.zeros(len(t), dtype=bool)
        held: NDArray[np.bool_]
        if native is not None:
            held = np.empty(len(t), dtype=bool)
            if native.holds(self.start, self.end, t, held) is not None:
                return held
        at = self.start.searchsorted(t, side="right") - 1
        held = (at >= 0) & (self.end[np.maximum(at, 0)] > t)
        return held

    def covered_before(self, t: Int) -> Int:
        """Length of the set that lies before each `t`; differences give the length inside any bin."""
        if not len(self.start):
            return np.zeros(np.shape(t), dtype=np.int64)
        covered: Int
        if native is not None and isinstance(t, np.ndarray):
            covered = np.empty(t.shape, dtype=np.int64)
            if native.covered(self.start, self.end, t, covered) is not None:
                return covered
        before = np.zeros(len(self) + 1, dtype=np.int64)
        (self.end - self.start).cumsum(out=before[1:])
        at = self.start.searchsorted(t, side="right")
        # Before all of them the last end is taken, from which no moment is counted: `at` is 0 there.
        overshoot = np.maximum(self.end.take(at - 1) - t, 0) * (at > 0)
        covered = before.take(at) - overshoot
        return covered

    def within(self, start: Int, end: Int) -> Int:
        """Length of the set inside each bin [start, end)."""
        if not len(self.start):
            return np.zeros(np.shape(start), dtype=np.int64)
        if native is not None:
            inside = np.empty(np.shape(start), dtype=np.int64)
            if native.within(self.start, self.end, start, end, inside) is not None:
                return inside
        return self.covered_before(end) - self.covered_before(start)


def empty() -> Intervals:
    """The empty set."""
    return _EMPTY


_EMPTY = Intervals(_NONE, _NONE)


def _made(start: Int, end: Int, count: int) -> Intervals:
    """The first ones of two columns that were made longer than needed; much longer ones are not kept alive."""
    if count == len(start):
        return Intervals(start, end)
    kept = 2 * count > len(start)
    start, end = start[:count], end[:count]
    return Intervals(start, end) if kept else Intervals(start.copy(), end.copy())


def union(start: Int, end: Int) -> Intervals:
    """Merge intervals in any order; empty and inverted ones count for nothing."""
    if not len(start):
        return _EMPTY
    if native is not None:
        first, last = np.empty(len(start), dtype=np.int64), np.empty(len(start), dtype=np.int64)
        if (count := native.unite(start, end, first, last)) is not None:
            return _made(first, last, count)
    keep = end > start
    if np.count_nonzero(keep) < len(keep):
        start, end = start[keep], end[keep]
    if not len(start):
        return empty()
    if np.count_nonzero(start[1:] < start[:-1]):
        order = start.argsort(kind="stable")  # fast on what is nearly in order, as traces are
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
    few, many = (a, b) if len(a.start) <= len(b.start) else (b, a)
    if not len(few.start):
        return _EMPTY
    if native is not None:
        start, end = np.empty((2, len(a.start) + len(b.start)), dtype=np.int64)
        if (count := native.intersect(few.start, few.end, many.start, many.end, start, end)) is not None:
            return _made(start, end, count)
    first = many.end.searchsorted(few.start, side="right")
    count = many.start.searchsorted(few.end, side="left") - first
    of_few = np.arange(len(few)).repeat(count)
    of_many = np.arange(len(of_few)) + (first - count.cumsum() + count).repeat(count)
    return union(np.maximum(few.start[of_few], many.start[of_many]), np.minimum(few.end[of_few], many.end[of_many]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Time in `a` but not in `b`."""
    if not len(a.start) or not len(b.start):
        return a
    if native is not None:
        start, end = np.empty((2, len(a.start) + len(b.start)), dtype=np.int64)
        if (count := native.subtract(a.start, a.end, b.start, b.end, start, end)) is not None:
            return _made(start, end, count)
    ever = np.iinfo(np.int64)
    around = Intervals(np.concatenate(([ever.min], b.end)), np.concatenate((b.start, [ever.max])))
    return intersect(a, around)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of `a` inside [start, end)."""
    return union(np.maximum(a.start, start), np.minimum(a.end, end))


def split_at(a: Intervals, cuts: Int) -> Intervals:
    """The same time, with intervals cut at the given moments (the result may touch itself)."""
    cuts = uniques(cuts[a.holds(cuts)])
    cuts = cuts[a.start[a.start.searchsorted(cuts, side="right") - 1] != cuts]
    if not len(cuts):
        return a
    start, end = np.concatenate((a.start, cuts)), np.concatenate((a.end, cuts))
    start.sort(kind="stable")
    end.sort(kind="stable")
    return Intervals(start, end)


def spread_before(start: Int, end: Int, amount: NDArray[Any], t: Int) -> NDArray[np.float64]:
    """What lies before each `t` of amounts that are spread evenly over intervals, which may overlap, in any order."""
    keep = end > start
    if not np.count_nonzero(keep):
        return np.zeros(np.shape(t))
    moments = np.concatenate((start[keep], end[keep]))
    dense = amount[keep] / (end[keep] - start[keep])
    order = moments.argsort(kind="stable")
    density = np.concatenate((dense, -dense)).take(order).cumsum()
    before = np.concatenate(([0.0], (density[:-1] * np.diff(moments.take(order))).cumsum()))
    return np.interp(t, moments.take(order), before)


# Bars of one row, as few as are asked for: what is too short to be seen is drawn together with its neighbours.

_NAME_BITS = 22  # a trace has fewer different names
_LONGEST = (1 << 62 - _NAME_BITS) - 1  # ns, 18 minutes: what lasts longer is as long for choosing a name
_CELL_BITS = 3  # what is drawn together spans at most 8 times what counts as short


class Bars(Struct, frozen=True, eq=False):
    """Bars of one row that do not overlap, in order of begin: equally long columns. `start` and `end` in ns; `name` is
    a number of a name. A bar stands for `count` events: one with its own name, or several, of which `name` is the
    longest and which took `busy` ns without the gaps between them."""

    start: Int
    end: Int
    name: NDArray[np.integer]
    count: NDArray[np.integer]
    busy: Int

    def __len__(self) -> int:
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        """Bar for bar: reports that hold them are compared."""
        if not isinstance(other, Bars):
            return NotImplemented
        own, others = ((b.start, b.end, b.name, b.count, b.busy) for b in (self, other))
        return all(np.array_equal(a, b) for a, b in zip(own, others, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: Int | slice) -> Bars:
        """Some of the bars."""
        return Bars(self.start[rows], self.end[rows], self.name[rows], self.count[rows], self.busy[rows])


def bars_of(start: Int, end: Int, name: NDArray[np.integer]) -> Bars:
    """A bar an event, in order of begin; the part of one that overlaps the one before it is cut off. One that lies
    whole within another is left out: rows hold no nested events."""
    if len(start) and np.count_nonzero(start[1:] < start[:-1]):
        order = start.argsort(kind="stable")
        start, end, name = start[order], end[order], name[order]
    if np.count_nonzero(start[1:] < end[:-1]):
        reached = np.empty_like(end)
        reached[0], reached[1:] = start[0], np.maximum.accumulate(end[:-1])
        start = np.maximum(start, reached)
        kept = end > start
        start, end, name = start[kept], end[kept], name[kept]
    return Bars(start, end, name, np.ones(len(start), dtype=np.int32), end - start)


def fewer(bars: Bars, most: int) -> Bars:
    """At most `most` bars: shorter ones than some length are drawn together where they lie close to each other. Bars of
    that length and more stay as they are, so nothing that can be seen loses its name. `most` is at least 1."""
    if len(bars) <= most:
        return bars
    if native is not None:
        given = (bars.start, bars.end, bars.name, bars.count, bars.busy)
        columns = np.empty((5, most), dtype=np.int64)
        whole = (np.asarray(column, dtype=np.int64) for column in given)
        if (made := native.fewer(*whole, np.array([most]), *columns)) is not None:
            return Bars(*columns[:, :made])
    lasts = bars.end - bars.start
    shift = int(np.partition(lasts, -(most // 2 + 1))[-(most // 2 + 1)]).bit_length()
    while (groups := _groups(bars, lasts, shift))[-1] >= most:
        shift += 1
    return _together(bars, groups)


def shares(counts: Sequence[int], most: int) -> list[int]:
    """How many of `most` bars each row gets: those with few keep them all, the others share what is left."""
    given = [0] * len(counts)
    left = most
    for place, row in enumerate(sorted(range(len(counts)), key=lambda row: counts[row])):
        given[row] = max(min(counts[row], left // (len(counts) - place)), 1)
        left = max(left - given[row], 0)
    return given


def _groups(bars: Bars, lasts: Int, shift: int) -> Int:
    """The number of the bar to draw that each goes into, counted from 0; short is what lasts less than 2**shift ns."""
    short = lasts < 1 << shift
    cell = (bars.start - bars.start[0]) >> shift + _CELL_BITS
    apart = np.zeros(len(bars), dtype=bool)
    np.not_equal(cell[1:], cell[:-1], out=apart[1:])
    apart[1:] |= bars.start[1:] - bars.end[:-1] >= 1 << shift
    apart[1:] |= ~(short[1:] & short[:-1])
    groups: Int = apart.cumsum()
    return groups


def _together(bars: Bars, groups: Int) -> Bars:
    first = np.concatenate(([True], groups[1:] != groups[:-1])).nonzero()[0]
    longest = (np.minimum(bars.end - bars.start, _LONGEST) << _NAME_BITS) + bars.name
    return Bars(
        bars.start[first], bars.end[np.append(first[1:], len(groups)) - 1],
        np.maximum.reduceat(longest, first) & (1 << _NAME_BITS) - 1, np.add.reduceat(bars.count, first),
        np.add.reduceat(bars.busy, first),
    )  # fmt: skip


def far_from_median(series: NDArray[np.float64]) -> NDArray[np.intp]:
    """Positions of steps further than 5 robust standard deviations, and than a tenth, above the median."""
    if len(series) < 4:
        return np.empty(0, dtype=np.intp)
    middle = median(series)
    spread = 1.4826 * median(np.abs(series - middle))
    return np.flatnonzero(series > middle + max(5.0 * spread, 0.1 * middle))


def begins_far(series: NDArray[np.float64]) -> NDArray[np.intp]:
    """Positions where far steps begin, of several in a row the first; those only that cost about as much as the steps
    in which half of the time of all far ones goes."""
    if not len(far := far_from_median(series)):
        return far
    costs = series[far] - median(series)
    most_first = np.sort(costs)[::-1]
    usual = most_first[np.searchsorted(most_first.cumsum(), most_first.sum() / 2)]
    far = far[costs >= usual / 2]
    begins: NDArray[np.intp] = far[np.diff(far, prepend=-2) > 1]
    return begins
