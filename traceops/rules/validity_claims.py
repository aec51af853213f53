"""What is claimed of traces and of the time in them: typed facts, whose sentences are in words/validity.ini."""

from __future__ import annotations

from msgspec import Struct

from traceops.core.claims import Claim
from traceops.core.rule import Bounds
from traceops.measure.recording import SLOWED


class ValidityBounds(Bounds, frozen=True):
    """Of the profiler's cost, and of what is reduced after a step."""

    words = "validity"

    slowdown: tuple[float, float] = (SLOWED, 1.30)
    model_bytes: int = 1_000_000


BOUNDS = ValidityBounds()


class TraceClaim(Claim, frozen=True):
    family = "validity"


class MissingRanks(TraceClaim, frozen=True, kw_only=True):
    """Ranks without a trace. usable: there are files of them. failed: why, as their processes reported it. ended: after
    how many steps programs ended, of ranks `ended_of` where not all; needed: by the schedule."""

    count: int
    world: int
    missing: str
    usable: bool = False
    failed: str | None = None
    ended: str | None = None
    ended_of: tuple[int, ...] = ()
    needed: int | None = None


class FileClaim(TraceClaim, frozen=True, kw_only=True):
    """Of one file. what: is wrong with it."""

    family = "validity"
    file: str
    path: str
    what: str


class DamagedTrace(FileClaim, frozen=True, kw_only=True):
    """A trace that is used in part. untimed: all that it lacks are times. incomplete: 'gpu' or 'host', where what it
    lacks may be of any moment."""

    events: int
    untimed: bool = False
    incomplete: str | None = None


class NotUsed(FileClaim, frozen=True, kw_only=True):
    """A file that cannot be used."""


class Contradiction(FileClaim, frozen=True, kw_only=True):
    """A trace that is used, and does not fit its name, the other traces or run.json."""


class OtherCapture(TraceClaim, frozen=True, kw_only=True):
    """A trace of the same steps as the `others`, and of another time. when: before or after theirs."""

    file: str
    path: str
    apart: str
    when: str
    others: tuple[int, ...]


class UnevenSteps(TraceClaim, frozen=True, kw_only=True):
    """Ranks that lack some of the steps `every`; `common` are on all ranks, None for no step."""

    ranks: tuple[int, ...]
    every: str
    common: int | None = None


class OtherSteps(TraceClaim, frozen=True, kw_only=True):
    """Ranks that recorded none of the steps of those that are `used`."""

    ranks: tuple[int, ...]
    steps: str
    used: tuple[int, ...]
    used_steps: str


class NoStepsMarked(TraceClaim, frozen=True, kw_only=True):
    """Nothing shows where steps begin. empty: nothing runs in the steps that are marked. covered: the window, ms, where
    it is only a part of what was `recorded`."""

    empty: bool = False
    covered: float | None = None
    recorded: float | None = None


class CutOff(TraceClaim, frozen=True, kw_only=True):
    """Ranks (none: all) without a whole step. flags: would record `active` steps of a program as long as this."""

    ranks: tuple[int, ...] = ()
    given_way: bool = False
    ended: str | None = None
    needed: int | None = None
    active: int | None = None
    flags: str | None = None


class NoSync(TraceClaim, frozen=True, kw_only=True):
    """Gradients that are not synchronised where `promised` does it."""

    promised: str
    steps: int


class KernelsMissing(TraceClaim, frozen=True, kw_only=True):
    """Ranks whose traces lack the kernels that they launched."""

    ranks: tuple[int, ...]


class NoCommunication(TraceClaim, frozen=True, kw_only=True):
    """A run of several ranks in which no kernel is known as communication."""

    world: int


class After(Struct, frozen=True, kw_only=True):
    """Steps after the profiler's windows, ms, that take `pct` percent longer than those before."""

    pct: float
    after: float
    before: float


class ProfilerSlowed(TraceClaim, frozen=True, kw_only=True):
    """Steps with and without the profiler, ms. typical: a step of the run, where it takes another time than `plain`.
    light: idle time is of the light window; its steps of `light_ms` are `stretched` where that is an estimate."""

    ratio: float
    profiled: float
    plain: float
    typical: float | None = None
    core_pct: float | None = None
    light: bool = False
    light_ms: float | None = None
    stretched: float | None = None
    later: After | None = None


class LongerAfter(TraceClaim, frozen=True, kw_only=True):
    """Steps are longer after the profiler's windows, and not in them."""

    later: After


class TooFewShared(TraceClaim, frozen=True, kw_only=True):
    """Ranks whose clocks could not be aligned."""

    ranks: tuple[int, ...]


class EndsApart(TraceClaim, frozen=True, kw_only=True):
    """Ends of collectives that differ after alignment. cores: ranks share some. jumped: a clock may have."""

    anchors: int
    median: str
    pct: float
    cores: bool = False
    jumped: bool = False


class OneHostApart(TraceClaim, frozen=True, kw_only=True):
    """Ranks of one host, whose clock is one, whose collectives end `apart` ms after each other."""

    rank: int
    other: int
    apart: float
