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


class _Log(Struct):
    """Calls `attempt` and keeps what it gave, also where it then runs out of time."""

    attempt: Callable[[EnvironmentChange], TriedChange]
    tried: list[TriedChange] = field(default_factory=list)

    def __call__(self, change: EnvironmentChange) -> TriedChange:
        one = self.attempt(change)
        self.tried.append(one)
        return one


def try_changes(
    situation: Situation,
    attempt: Callable[[EnvironmentChange], TriedChange],
    before_gbs: float | None,
    enough_gbs: float | None,
) -> SearchResult:
    """Try the changes that may help. attempt: runs a short job under a change, or raises NoTime. before_gbs: a large
    all-reduce's bus bandwidth as the environment is. enough_gbs: from here it is no longer slow; None where nobody
    knows what to expect."""
    once = _Log(attempt)
    complete = True
    try:
        if situation.broken:
            _repair(situation, once, enough_gbs)
        else:
            _speed_up(situation, once, before_gbs, enough_gbs)
    except NoTime:
        complete = False
    chosen = choose(situation, once.tried, before_gbs, enough_gbs)
    if chosen is not None and situation.broken and chosen.change.set:  # it may be none of this change's doing
        with suppress(NoTime):
            if attempt(EnvironmentChange()).works:
                return SearchResult(tuple(once.tried), None, complete, passed=True)
    if chosen is not None and not situation.broken and (chosen.gbs or 0.0) < SURE * (before_gbs or 0.0):
        with suppress(NoTime):
            again = attempt(EnvironmentChange()).gbs or 0.0
            chosen = choose(situation, once.tried, max(before_gbs or 0.0, again), enough_gbs)
    return SearchResult(tuple(once.tried), chosen, complete)


def choose(
    situation: Situation, tried: Sequence[TriedChange], before_gbs: float | None, enough_gbs: float | None
) -> TriedChange | None:
    """The change to use, None where none works or, where all works already, none is worth it."""
    worked = [one for one in tried if one.works]
    if situation.broken:
        return min(worked, key=lambda one: _cost(one, enough_gbs), default=None)
    return _fastest(worked, before_gbs)


def is_better(fewer: TriedChange, every: TriedChange | None, enough_gbs: float | None) -> bool:
    """Whether most of the devices do more than all with a change: where that is slow, half of the speed is lost."""
    if every is None:
        return True
    most = 2 * len(fewer.trials[0].gpus) > len(every.trials[0].gpus)
    return most and not _is_enough(every.gbs, enough_gbs) and _is_enough(fewer.gbs, enough_gbs)


def _repair(situation: Situation, once: _Log, enough_gbs: float | None) -> None:
    """Until a change works and is not slow; one that works but is slow only ends the search among the larger."""
    names = suspicious(situation)
    listed = list(changes(situation))
    removals, others = listed[: len(names)], listed[len(names) :]
    if _until_good(removals, once, enough_gbs):
        return
    if len(names) > 1:
        slowly = _any(once)  # one of them keeps it from working, and another one may hold it down
        everything = once(removal(names, situation.environ))
        enough = _is_enough(everything.gbs, enough_gbs)
        if everything.works and (enough or not slowly):
            _keep_harmless(names, situation, once, enough_gbs if enough else None)
            return
    if situation.hung:
        others = _without_p2p_first(others, once)
    if _until_good(others, once, enough_gbs) or _any(once):
        return
    if _until_good(pairs(situation), once, enough_gbs) or _any(once) or not names:
        return
    whole = removal(names, situation.environ)
    _until_good((_both(whole, change) for change in others), once, enough_gbs)


def _without_p2p_first(others: list[EnvironmentChange], once: _Log) -> list[EnvironmentChange]:
    """What is left to try after P2P off, the likeliest to help where hangs take long; if it does, what costs less."""
    for place, change in enumerate(others):
        if change.set == WITHOUT_P2P.change.set:
            return others[:place] if once(change).works else others[:place] + others[place + 1 :]
    return others


def _until_good(listed: Iterable[EnvironmentChange], once: _Log, enough_gbs: float | None) -> bool:
    for change in listed:
        one = once(change)
        if one.works and _is_enough(one.gbs, enough_gbs):
            return True
    return False


def _keep_harmless(names: tuple[str, ...], situation: Situation, once: _Log, enough_gbs: float | None) -> None:
    """All of them removed works: keep those that may stay. Each alone was tried before."""
    for name in names:
        rest = tuple(other for other in names if other != name)
        if len(rest) > 1:
            one = once(removal(rest, situation.environ))
            if one.works and _is_enough(one.gbs, enough_gbs):
                names = rest


def _speed_up(situation: Situation, once: _Log, before_gbs: float | None, enough_gbs: float | None) -> None:
    """Measure without each costly variable, then, where it still is slow, with all that may be faster."""
    costly = [name for name in situation.costly if name in suspicious(situation)]
    listed = list(changes(situation))
    for change in listed[: len(costly)]:
        once(change)
    if len(costly) > 1:  # also where one alone is enough: the others may cost something once it is gone
        alone = max((one.gbs or 0.0 for one in once.tried if one.works), default=0.0)
        everything = once(removal(tuple(costly), situation.environ))
        if everything.works and (everything.gbs or 0.0) >= WORTH_IT * alone:
            _keep_harmless(tuple(costly), situation, once, (everything.gbs or 0.0) / WORTH_IT)
    for change in listed[len(costly) :]:
        if _done(once, before_gbs, enough_gbs):
            return
        once(change)


def _done(once: _Log, before_gbs: float | None, enough_gbs: float | None) -> bool:
    best = _fastest([one for one in once.tried if one.works], before_gbs)
    return best is not None and _is_enough(best.gbs, enough_gbs)


def _fastest(worked: list[TriedChange], before_gbs: float | None) -> TriedChange | None:
    """The smallest change among those that are as good as the fastest, None where none is worth it."""
    if before_gbs is None:  # nothing to compare with
        return None
    worth = [one for one in worked if one.gbs is not None and one.gbs >= WORTH_IT * before_gbs]
    if not worth:
        return None
    best = max(one.gbs or 0.0 for one in worth)
    return min(
        (one for one in worth if (one.gbs or 0.0) * WORTH_IT >= best),
        key=lambda one: (one.change.size, -(one.gbs or 0.0)),
    )


def _cost(one: TriedChange, enough_gbs: float | None) -> tuple[bool, int, float]:
    return (not _is_enough(one.gbs, enough_gbs), one.change.size, -(one.gbs or 0.0))


def _is_enough(gbs: float | None, enough_gbs: float | None) -> bool:
    return gbs is None or enough_gbs is None or gbs >= enough_gbs


def _any(once: _Log) -> bool:
    return any(one.works for one in once.tried)


def _both(one: EnvironmentChange, other: EnvironmentChange) -> EnvironmentChange:
    return replace(
        other,
        unset=tuple(name for name in one.unset if name not in other.set),
        does=f"{one.does}; {other.does}",
        costs=other.costs,
    )
