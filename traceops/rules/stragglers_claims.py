"""What is claimed of ranks that make the others wait: typed facts, whose sentences lie in words/late.ini."""

from __future__ import annotations

import msgspec

from traceops.core.claims import Claim


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """Why a late host may not be late without the profiler, or is one of several. Times in ms, of one step."""

    kind: str
    slowdown: float | None = None
    plain: float | None = None
    waiting: float | None = None
    unmatched: float | None = None
    cost: float | None = None
    rank: int | None = None
    steps: tuple[int, int] | None = None
    other: int | None = None
    other_steps: tuple[int, int] | None = None


class Late(Claim, frozen=True, kw_only=True):
    """A rank that is late in most steps, or in `steps` only. does: the cause, or what is behind it.

    way: the state that is replayed, in which it costs nothing. A prediction is `then`, or from `then_least` to
    `then_most`, or `then_or_more`; with others late too it is what is saved `beside` them.
    """

    family = "late"
    kind = "late"
    rank: int
    does: str
    steps: tuple[int, ...] = ()
    others: int
    waiting: float | None = None
    waiting_on_average: float | None = None
    met: int | None = None
    met_waiting: float | None = None
    nobody_waits: bool = False
    hidden: bool = False
    role: str | None = None
    way: str
    step: float
    then: float | None = None
    then_least: float | None = None
    then_most: float | None = None
    then_or_more: float | None = None
    saved: float
    pct: float
    pct_least: float | None = None
    beside: tuple[int, ...] = ()
    in_operators: bool = False
    doubt: Doubt | None = None
    approximate: str = ""


class LateBehindLoading(Claim, frozen=True, kw_only=True):
    """A rank that would be waited for if batches came in time."""

    family = "late"
    kind = "late_behind_loading"
    rank: int
    does: str
    step: float
    in_time: float
    then: float
    least: bool = False


class ComesLast(Claim, frozen=True, kw_only=True):
    """A rank for which all wait, whose peers are hardly faster. loader: another rank, whose loader is as slow."""

    family = "late"
    kind = "comes_last"
    rank: int
    does: str
    waiting: float
    saved: float
    step: float
    recorded: bool = False
    loader: int | None = None
    doubt: Doubt | None = None


class Slower(Claim, frozen=True, kw_only=True):
    """Ranks that are slower than the others alike. place: what only they have in common."""

    family = "late"
    kind = "slower"
    ranks: tuple[int, ...]
    count: int
    of: int
    place: str = ""
    does: str
    longer: float | None = None
    longer_least: float | None = None
    longer_most: float | None = None
    worst: int | None = None
    waiting: float
    way: str
    step: float
    then: float | None = None
    then_or_more: float | None = None
    saved: float
    pct: float
    beside: tuple[int, ...] = ()
    doubt: Doubt | None = None
