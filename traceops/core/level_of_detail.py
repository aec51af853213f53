"""Bars of one row, as few as are asked for: what is too short to be seen is drawn together with its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int

_NAME_BITS = 22  # a trace has fewer different names
_LONGEST = (1 << 62 - _NAME_BITS) - 1  # ns, 18 minutes: what lasts longer is as long for choosing a name
_CELL_BITS = 3  # what is drawn together spans at most 8 times what counts as short


@dataclass(frozen=True, eq=False)
class Bars:
    """Bars of one row that do not overlap, in order of begin: equally long columns.

    `start` and `end` in ns; `name` is a number of a name. A bar stands for `count` events: one with its own name, or
    several, of which `name` is the longest and which took `busy` ns without the gaps between them.
    """

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
    """A bar an event, in order of begin; the part of one that overlaps the one before it is cut off.

    One that lies whole within another is left out: rows hold no nested events.
    """
    if len(start) and (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end, name = start[order], end[order], name[order]
    if (start[1:] < end[:-1]).any():
        reached = np.empty_like(end)
        reached[0], reached[1:] = start[0], np.maximum.accumulate(end[:-1])
        start = np.maximum(start, reached)
        kept = end > start
        start, end, name = start[kept], end[kept], name[kept]
    return Bars(start, end, name, np.ones(len(start), dtype=np.int32), end - start)


def fewer(bars: Bars, most: int) -> Bars:
    """At most `most` bars: shorter ones than some length are drawn together where they lie close to each other.

    Bars of that length and more stay as they are, so nothing that can be seen loses its name. `most` is at least 1.
    """
    if len(bars) <= most:
        return bars
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
    groups: Int = np.cumsum(apart)
    return groups


def _together(bars: Bars, groups: Int) -> Bars:
    first = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
    longest = (np.minimum(bars.end - bars.start, _LONGEST) << _NAME_BITS) + bars.name
    return Bars(
        bars.start[first],
        bars.end[np.append(first[1:], len(groups)) - 1],
        np.maximum.reduceat(longest, first) & (1 << _NAME_BITS) - 1,
        np.add.reduceat(bars.count, first),
        np.add.reduceat(bars.busy, first),
    )
