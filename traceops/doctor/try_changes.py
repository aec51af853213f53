"""Tries changes one at a time until one works, or finds the one that is fastest; runs nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.doctor.candidates import WITHOUT_P2P, Situation, changes, pairs, removal, suspicious
from traceops.doctor.model import EnvironmentChange, Remedy, Trial

WORTH_IT = 1.2  # a change for speed is advised from this many times the bandwidth
SURE = 1.6  # below, jobs that are measured once each may differ so much by themselves


class NoTime(Exception):
    """The checkup's time is used up; what was tried until then counts."""


class TriedChange(Struct, frozen=True):
    """A change and what came of it. gbs: bus bandwidth of a large all-reduce, None where not measured."""

    change: EnvironmentChange
    trials: tuple[Trial, ...]
    gbs: float | None = None

    @property
    def works(self) -> bool:
        ran = [trial.outcome for trial in self.trials if trial.outcome != "not_evaluated"]
        return bool(ran) and all(outcome == "ok" for outcome in ran)


class SearchResult(Struct, frozen=True):
    """Everything tried, in order, and the one to use. complete: False where time ran out before the end. passed: what
    was broken worked the next time without any change."""

    tried: tuple[TriedChange, ...] = ()
    chosen: TriedChange | None = None
    complete: bool = True
    passed: bool = False

    def remedies(self, before_gbs: float | None) -> tuple[Remedy, ...]:
        """What worked, the chosen one first, then the fastest."""
        worked = [one for one in self.tried if one.works and one is not self.chosen]
        worked.sort(key=lambda one: -(one.gbs or 0.0))
        first = [] if self.chosen is None else [self.chosen]
        return tuple(Remedy(one.change, one.gbs, before_gbs) for one in first + worked)


class _Search(Struct):
    """Tries changes, and keeps what came of each, also where `attempt` then runs out of time."""

    situation: Situation
    attempt: Callable[[EnvironmentChange], TriedChange]
    before_gbs: float | None
    enough_gbs: float | None
    tried: list[TriedChange] = field(default_factory=list)

    def once(self, change: EnvironmentChange) -> TriedChange:
        one = self.attempt(change)
        self.tried.append(one)
        return one

    def until_good(self, listed: Iterable[EnvironmentChange]) -> bool:
        """Try one after another until one works and is not slow; whether there was one."""
        return any(_is_good(self.once(change), self.enough_gbs) for change in listed)

    def any_works(self) -> bool:
        return any(one.works for one in self.tried)

    def repair(self) -> None:
        """Until a change works and is not slow; one that works but is slow only ends the search among the larger."""
        names = suspicious(self.situation)
        listed = list(changes(self.situation))
        removals, others = listed[: len(names)], listed[len(names) :]
        if self.until_good(removals):
            return
        whole = removal(names, self.situation.environ)
        if len(names) > 1:
            slowly = self.any_works()  # one of them keeps it from working, and another one may hold it down
            everything = self.once(whole)
            enough = _is_enough(everything.gbs, self.enough_gbs)
            if everything.works and (enough or not slowly):
                self.keep_harmless(names, self.enough_gbs if enough else None)
                return
        place = next((at for at, change in enumerate(others) if change.set == WITHOUT_P2P.change.set), None)
        if self.situation.hung and place is not None:
            # P2P off is the likeliest to help, and hangs take long; if it does, only what costs less is left to try.
            helps = self.once(others[place]).works
            others = others[:place] + ([] if helps else others[place + 1 :])
        if self.until_good(others) or self.any_works():
            return
        if self.until_good(pairs(self.situation)) or self.any_works() or not names:
            return
        self.until_good(
            replace(
                change,
                unset=tuple(name for name in names if name not in change.set),
                does=f"{whole.does}; {change.does}",
            )
            for change in others
        )

    def speed_up(self) -> None:
        """Measure without each costly variable, then, where it still is slow, with all that may be faster."""
        costly = tuple(name for name in self.situation.costly if name in suspicious(self.situation))
        listed = list(changes(self.situation))
        for change in listed[: len(costly)]:
            self.once(change)
        if len(costly) > 1:  # also where one alone is enough: the others may cost something once it is gone
            alone = max((one.gbs or 0.0 for one in self.tried if one.works), default=0.0)
            everything = self.once(removal(costly, self.situation.environ))
            if everything.works and (everything.gbs or 0.0) >= WORTH_IT * alone:
                self.keep_harmless(costly, (everything.gbs or 0.0) / WORTH_IT)
        for change in listed[len(costly) :]:
            best = _fastest(self.tried, self.before_gbs)
            if best is not None and _is_enough(best.gbs, self.enough_gbs):
                return
            self.once(change)

    def keep_harmless(self, names: tuple[str, ...], enough_gbs: float | None) -> None:
        """All of them removed works: keep those that may stay. Each alone was tried before."""
        for name in names:
            rest = tuple(other for other in names if other != name)
            if len(rest) > 1 and _is_good(self.once(removal(rest, self.situation.environ)), enough_gbs):
                names = rest


def try_changes(
    situation: Situation, attempt: Callable[[EnvironmentChange], TriedChange], before_gbs: float | None,
    enough_gbs: float | None,
) -> SearchResult:  # fmt: skip
    """Try the changes that may help. attempt: runs a short job under a change, or raises NoTime. before_gbs: a large
    all-reduce's bus bandwidth as the environment is. enough_gbs: from here it is no longer slow; None where nobody
    knows what to expect."""
    search = _Search(situation, attempt, before_gbs, enough_gbs)
    complete = True
    try:
        if situation.broken:
            search.repair()
        else:
            search.speed_up()
    except NoTime:
        complete = False
    chosen = choose(situation, search.tried, before_gbs, enough_gbs)
    if chosen is not None and situation.broken and chosen.change.set:  # it may be none of this change's doing
        with suppress(NoTime):
            if attempt(EnvironmentChange()).works:
                return SearchResult(tuple(search.tried), None, complete, passed=True)
    if chosen is not None and not situation.broken and (chosen.gbs or 0.0) < SURE * (before_gbs or 0.0):
        with suppress(NoTime):
            again = attempt(EnvironmentChange()).gbs or 0.0
            chosen = choose(situation, search.tried, max(before_gbs or 0.0, again), enough_gbs)
    return SearchResult(tuple(search.tried), chosen, complete)


def choose(
    situation: Situation, tried: Sequence[TriedChange], before_gbs: float | None, enough_gbs: float | None
) -> TriedChange | None:
    """The change to use, None where none works or, where all works already, none is worth it."""
    if not situation.broken:
        return _fastest(tried, before_gbs)

    def cost(one: TriedChange) -> tuple[bool, int, float]:
        return not _is_enough(one.gbs, enough_gbs), one.change.size, -(one.gbs or 0.0)

    return min((one for one in tried if one.works), key=cost, default=None)


def is_better(fewer: TriedChange, every: TriedChange | None, enough_gbs: float | None) -> bool:
    """Whether most of the devices do more than all with a change: where that is slow, half of the speed is lost."""
    if every is None:
        return True
    most = 2 * len(fewer.trials[0].gpus) > len(every.trials[0].gpus)
    return most and not _is_enough(every.gbs, enough_gbs) and _is_enough(fewer.gbs, enough_gbs)


def _fastest(tried: Sequence[TriedChange], before_gbs: float | None) -> TriedChange | None:
    """The smallest change among those that work as fast as the fastest, None where none is worth it."""
    if before_gbs is None:  # nothing to compare with
        return None
    worth = [one for one in tried if one.works and one.gbs is not None and one.gbs >= WORTH_IT * before_gbs]
    best = max((one.gbs or 0.0 for one in worth), default=0.0)
    fast = [one for one in worth if (one.gbs or 0.0) * WORTH_IT >= best]
    return min(fast, key=lambda one: (one.change.size, -(one.gbs or 0.0)), default=None)


def _is_good(one: TriedChange, enough_gbs: float | None) -> bool:
    return one.works and _is_enough(one.gbs, enough_gbs)


def _is_enough(gbs: float | None, enough_gbs: float | None) -> bool:
    return gbs is None or enough_gbs is None or gbs >= enough_gbs
