"""Ranks that are alike, and what a few of them did in each step for the page's timeline: not part of report.json."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from operator import attrgetter

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Bars, median
from traceops.core.words import Role
from traceops.measure.ledger import BUCKETS
from traceops.report.rows import RankRow


class DetailLane(Struct, frozen=True):
    """One row of a rank: `of` is 'stream' or 'thread', `lane` its number in the trace, `level` how deep in a thread.
    Moments are ns since the step's zero."""

    of: str
    lane: int
    level: int
    bars: Bars


class DetailTransfer(Struct, frozen=True):
    """One collective, or send and receive, on one rank; ns since the step's zero.

    From `start` to `turn` the rank waited, then came the transfer; `turn` is None where it could not be matched, so
    that nobody knows. busbw_gbs is of the transfer without the waiting. last_rank came last, None where none did.
    stage: the lane among those that overlapping ones need, counted from 0.
    """

    start: int
    turn: int | None
    end: int
    op: str
    group: str
    role: Role
    bytes: int | None
    busbw_gbs: float | None
    last_rank: int | None
    stage: int = 0


class DetailRank(Struct, frozen=True):
    """One rank in one step; begin and end of its step on the device. `unseen` transfers were too many to draw."""

    rank: int
    begin: int
    end: int
    lanes: tuple[DetailLane, ...]
    transfers: tuple[DetailTransfer, ...]
    unseen: int = 0


class DetailStep(Struct, frozen=True):
    """One step, None for a window without steps; `length_ns` from its zero to the end of the last rank shown."""

    step: int | None
    length_ns: int
    ranks: tuple[DetailRank, ...]

    def __hash__(self) -> int:
        """Without the bars, which have none: a step whose packed form is kept is looked up by it."""
        return hash((self.step, self.length_ns))


class Detail(Struct, frozen=True):
    """The longest step of the ranks shown, and as many others as fit a page. aligned: their clocks are comparable."""

    names: tuple[str, ...]
    steps: tuple[DetailStep, ...]
    aligned: bool = True


APART_PCT = 5.0  # of the step: ranks that spend less of it otherwise are alike
MOST_KINDS = 12
_WIDER = 1.5  # times as far apart, where there would be more kinds
_PASSES = 2


class Alike(Struct, frozen=True):
    """One rank, or ranks whose ledgers are `apart_pct` of the step or less from the middle one, which is `example`."""

    ranks: tuple[int, ...]
    example: int
    apart_pct: float = 0.0

    @property
    def label(self) -> str:
        """'rank 1', 'rank 1 and 63 alike'."""
        return f"rank {self.example}" + (f" and {len(self.ranks) - 1} alike" if len(self.ranks) > 1 else "")


_spent_ms = attrgetter(*(f"{bucket}_ms" for bucket in BUCKETS))


def alike_ranks(rows: Sequence[RankRow], most: int = MOST_KINDS) -> tuple[Alike, ...]:
    """The ranks by kind, the largest kind first, at most so many: from `APART_PCT` apart, or as far as that takes. Two
    ranks are as far apart as the time that one spends in other buckets of the ledger than the other, in percent of the
    median step. Every rank is in one kind; what is not known counts as no time."""
    return alike_spent({row.rank: [ms or 0.0 for ms in _spent_ms(row)] for row in rows}, most)


def alike_spent(spent_ms: Mapping[int, Sequence[float]], most: int = MOST_KINDS) -> tuple[Alike, ...]:
    """The same of what each rank spends in each bucket."""
    return _alike(tuple(spent_ms), tuple(map(tuple, spent_ms.values())), most) if spent_ms else ()


@functools.lru_cache(maxsize=16)  # several parts of a page ask it of the same ranks
def _alike(ranks: tuple[int, ...], spent_ms: tuple[tuple[float, ...], ...], most: int) -> tuple[Alike, ...]:
    spent = np.array(spent_ms, dtype=float)
    step = float(median(spent.sum(axis=1))) or 1.0
    apart = APART_PCT
    while True:
        kinds = _kinds(spent, apart / 100 * step)
        if len(kinds) <= most:
            break
        apart *= _WIDER
    made = []
    for kind in kinds:
        own = spent[kind]
        middle = kind[int(_distances(own, median(own, axis=0)).argmin())]  # nearest to the median of its kind
        made.append(Alike(tuple(sorted(ranks[place] for place in kind)), ranks[middle], round(apart, 1)))
    return tuple(sorted(made, key=lambda kind: (-len(kind.ranks), kind.ranks)))


def _kinds(spent: NDArray[np.float64], apart: float) -> list[list[int]]:
    """Places of rows by kind: each joins the nearest leader, leaders move to the middle of theirs."""
    leaders: list[NDArray[np.float64]] = []
    left = spent
    while len(left):
        leaders.append(left[0])
        left = left[1:][_distances(left[1:], left[0]) > apart]
    for _ in range(_PASSES):
        groups = _groups(spent, leaders)
        leaders = [median(spent[group], axis=0) for group in groups]
    return _groups(spent, leaders)


def _groups(spent: NDArray[np.float64], leaders: Sequence[NDArray[np.float64]]) -> list[list[int]]:
    nearest = np.array([_distances(spent, leader) for leader in leaders]).argmin(axis=0)
    return [np.flatnonzero(nearest == place).tolist() for place in range(len(leaders)) if (nearest == place).any()]


def _distances(spent: NDArray[np.float64], one: NDArray[np.float64]) -> NDArray[np.float64]:
    more = spent - one
    longer, shorter = np.maximum(more, 0).sum(axis=1), np.maximum(-more, 0).sum(axis=1)
    result: NDArray[np.float64] = np.maximum(longer, shorter)
    return result
