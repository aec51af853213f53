"""What the ranks did in the steps that are unlike the others, and in no typical one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

import numpy as np

from traceops.across.run_steps import Floats, Mask, Occasion, WholeRun
from traceops.measure.host_places import CodePlace, Unit, own_overhead, own_place, place_of, waits
from traceops.measure.host_purposes import Purpose, stack_purposes, trains, with_waits
from traceops.measure.typical import spells
from traceops.traces.observed import Observed

_PART = 0.2  # of what a step takes longer: less is no reason
_LEAST = 0.02  # of the same, where it is measured
_OFTEN, _OF_RUN_PCT = 2, 1.0  # less is one where it comes in several steps, and takes as much of the run
_MEASURED = ("garbage_collection", "recompilation")  # by their own events; what looks saw is an estimate
_ALSO = 0.5  # of what the rank does that does most: so much of it, and another does it too
_RARE_PCT = 1.0  # of the typical step: a function in which the host is less is none of it
_LOOKS = 20  # in typical steps: of fewer nobody can say that they do not call a function
_RHYTHM = 3  # steps of one cause that show a rhythm
_RHYTHM_HOST = 8  # of one function: the host is somewhere in every step
_RHYTHM_LEAST = 3  # steps between them, so that a rhythm does not take in every step


_Key = tuple[str, Unit]  # a cause, and where


@dataclass(frozen=True)
class _OwnTime:
    """What a rank does for one cause in a step, beyond what it does in a typical one, ms."""

    ms: float
    place: CodePlace | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class _CauseTime:
    """ms of the step at an index, by one cause."""

    at: int
    ms: float
    place: CodePlace | None = None
    ranks: tuple[int, ...] = ()


class OwnTimes:
    """What the ranks did in a step that they do not do in a typical one, ms."""

    def __init__(
        self, ranks: Sequence[Observed], run: WholeRun, garbage: Floats, compiled: Floats, by_calls: bool
    ) -> None:
        self._ranks = ranks
        self._run = run
        self._garbage = garbage - np.array([float(np.median(row[run.like])) for row in garbage])[:, None]
        self._compiled = compiled
        infers = by_calls and not any(trains(one) for one in ranks)  # each of its steps is such a call
        self._keys = [_keys(one, infers) for one in ranks]
        self._by_step = [_samples_by_step(one) for one in ranks]
        like = {int(number) for number in run.numbers[run.like]}
        self._looks = [sum(len(own) for step, own in by.items() if step in like) for by in self._by_step]
        self._usual = [
            _usual(own, keys, like, run.typical_ms) for own, keys in zip(self._by_step, self._keys, strict=True)
        ]

    def functions(self) -> list[dict[int, float]]:
        """Of each function on each rank, by index of the step what looks at it took, ms; data loading left out."""
        found: dict[tuple[int, str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        first = int(self._run.numbers[0])
        for row, (by_step, keys) in enumerate(zip(self._by_step, self._keys, strict=True)):
            for number, own in by_step.items():
                for stack, us in own:
                    key = keys[stack]
                    if key is not None and key[0] != "input" and 0 <= number - first < len(self._run.numbers):
                        found[row, key[1].function, key[1].file][number - first] += us / 1e3
        return list(found.values())

    def of(self, at: int, more_ms: float) -> dict[str, _OwnTime]:
        """By cause, what the rank that did most besides in the step at this index did, and who else did it too."""
        of_ranks = [self._of_rank(row, at, more_ms) for row in range(len(self._ranks))]
        best = max(of_ranks, key=lambda parts: sum(part.ms for part in parts.values()))
        return {
            cause: replace(
                part,
                ranks=tuple(
                    one.rank
                    for one, own in zip(self._ranks, of_ranks, strict=True)
                    if cause in own and own[cause].ms >= _ALSO * part.ms
                ),
            )
            for cause, part in best.items()
        }

    def before(self, at: int, more_ms: float) -> dict[str, _OwnTime]:
        """What a rank did at the end of the step before, behind its last collective: its peers wait for it in this one.

        Only of a rank that took longer by it there, while this step took its peers longer.
        """
        took, typical = self._run.took_ms, self._run.typical_ms
        if at == 0 or len(self._ranks) < 2:
            return {}
        longer = took[:, at - 1] - typical
        late = np.flatnonzero((longer >= _PART * more_ms) & ~(took[:, at] - typical >= more_ms))
        if not len(late):
            return {}
        row = int(late[longer[late].argmax()])
        return {
            cause: replace(part, ranks=(self._ranks[row].rank,))
            for cause, part in self._of_rank(row, at - 1, more_ms).items()
            if cause not in ("host", "input")
        }

    def _of_rank(self, row: int, at: int, more_ms: float) -> dict[str, _OwnTime]:
        found: dict[str, _OwnTime] = {}
        if self._compiled[row, at] > 0:
            found["recompilation"] = _OwnTime(float(self._compiled[row, at]))
        if self._garbage[row, at] >= _LEAST * more_ms:
            found["garbage_collection"] = _OwnTime(float(self._garbage[row, at]))
        seen: dict[_Key, float] = defaultdict(float)
        places: dict[_Key, dict[CodePlace, float]] = defaultdict(lambda: defaultdict(float))
        for stack, us in self._by_step[row].get(int(self._run.numbers[at]), ()):
            key = self._keys[row][stack]
            if key is None:
                continue
            what, place = key
            seen[what, place.unit] += us / 1e3
            places[what, place.unit][place] += us
        for (what, function), ms in seen.items():
            if what == "host" and not self._is_rare(row, function):
                continue  # in a step that takes long for another reason, the host is where it always is
            beyond = ms - self._usual[row].get((what, function), 0.0)
            if beyond > 0:
                own = places[what, function]
                before = found.get(what, _OwnTime(0.0))
                most = max(own, key=lambda place: own[place])
                place = most if beyond > before.ms or before.place is None else before.place
                found[what] = _OwnTime(before.ms + beyond, place)
        return found

    def _is_rare(self, row: int, function: Unit) -> bool:
        own = self._run.host.get(self._ranks[row].rank, ())
        usual_ms = sum(one.ms for one in own if one.key == function)
        return self._looks[row] >= _LOOKS and usual_ms <= _RARE_PCT / 100 * self._run.typical_ms


def _keys(one: Observed, infers: bool) -> list[tuple[str, CodePlace] | None]:
    """What each stack is about, and where; None where the host waits, or is in the capture itself.

    infers: the program trains nothing, so that a model without gradients is its usual work.
    """
    keys: list[tuple[str, CodePlace] | None] = []
    waiting = [waits(one, stack) for stack in range(len(one.stacks))]
    for stack, purpose in enumerate(with_waits(one, stack_purposes(one), waiting)):
        if infers and purpose.what == "inference":
            purpose = Purpose()
        place = (None if purpose.frame is None else place_of(one, purpose.frame)) or own_place(one, stack)
        idle = purpose.what in (None, "input") and waiting[stack]
        kept = place is not None and not idle and not own_overhead(one, stack)
        keys.append((purpose.what or "host", place) if kept and place is not None else None)
    return keys


def _usual(
    by_step: Mapping[int, Sequence[tuple[int, int]]],
    keys: Sequence[tuple[str, CodePlace] | None],
    like: Set[int],
    typical_ms: float,
) -> dict[_Key, float]:
    """What a rank does in a typical step, ms, by cause and function."""
    chosen = [sample for step, own in by_step.items() if step in like for sample in own]
    total = sum(us for _, us in chosen)
    found: dict[_Key, float] = defaultdict(float)
    for stack, us in chosen:
        key = keys[stack]
        if key is not None:
            what, place = key
            found[what, place.unit] += us / total * typical_ms
    return found


def _samples_by_step(one: Observed) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step, stack, us in one.samples.tolist():
        found[step].append((stack, us))
    return found


def with_occasions(run: WholeRun, parts: OwnTimes, unlike: Mask) -> WholeRun:
    step = run.step_ms
    by_cause: dict[str, list[_CauseTime]] = defaultdict(list)
    little: dict[str, list[_CauseTime]] = defaultdict(list)
    told: dict[tuple[int, str], float] = defaultdict(float)  # by step and cause
    for at in np.flatnonzero(unlike).tolist():
        more = float(step[at] - run.typical_ms)
        left = more
        for where, did in ((at, parts.of(at, more)), (at - 1, parts.before(at, more))):
            shares = _shares({cause: own.ms - told[where, cause] for cause, own in did.items()}, left)
            for cause in sorted(did, key=lambda name: (name == "host", -shares[name])):
                ms = min(shares[cause], left)
                if ms < _PART * more and ms > 0 and where == at and cause != "host":
                    little[cause].append(_CauseTime(at, ms, did[cause].place, did[cause].ranks))
                if ms >= _PART * more:
                    by_cause[cause].append(_CauseTime(at, ms, did[cause].place, did[cause].ranks))
                    told[where, cause] += ms
                    left -= ms
        if left > (1 - _PART) * more:
            by_cause["unknown"].append(_CauseTime(at, left))
    _by_rhythm(by_cause)
    for cause, found in little.items():
        by_cause[cause] += _worth_telling(found, by_cause.get(cause, ()), run.total_ms)
    made = [_occasion(run, cause, found) for cause, found in by_cause.items() if found]
    ordered = tuple(sorted(made, key=lambda one: (-one.more_ms, one.cause)))
    return replace(run, occasions=ordered)


def _worth_telling(little: Sequence[_CauseTime], others: Sequence[_CauseTime], total_ms: float) -> Sequence[_CauseTime]:
    """What is little of its step: as much as where it is most of one, or in several steps a part of the run."""
    if others:
        usual = float(np.median([one.ms for one in others]))
        alike = [one for one in little if one.ms >= _ALSO * usual]
        if alike:
            return alike
    several = len(little) >= _OFTEN and sum(one.ms for one in little) >= _OF_RUN_PCT / 100 * total_ms
    return little if several else ()


def _shares(parts: Mapping[str, float], left: float) -> dict[str, float]:
    """What causes take of what is left of a step: those that looks saw have it by their looks, where they saw more."""
    seen = sum(max(ms, 0.0) for cause, ms in parts.items() if cause not in (*_MEASURED, "host"))
    part = min(left / seen, 1.0) if seen > 0 else 1.0
    return {cause: ms if cause in (*_MEASURED, "host") else ms * part for cause, ms in parts.items()}


def _by_rhythm(by_cause: dict[str, list[_CauseTime]]) -> None:
    """Steps that nothing was seen in are of the cause in whose rhythm they come."""
    for cause, found in by_cause.items():
        if cause == "unknown":
            continue
        shown = found if cause != "host" else _of_one_function(found)
        # What comes behind the last collective is in two steps: the first is when it came.
        steps = {one.at for one in shown}
        numbers = sorted(at for at in steps if at - 1 not in steps)
        longest = 2 if len(steps) > len(numbers) else 1
        if len(numbers) < (_RHYTHM if cause != "host" else _RHYTHM_HOST):
            continue
        apart = gcd(*(b - a for a, b in pairwise(numbers)))
        if apart < _RHYTHM_LEAST:
            continue
        place, ranks = shown[0].place, shown[0].ranks
        kept = []
        for one in by_cause.get("unknown", ()):
            if (one.at - numbers[0]) % apart < longest:
                found.append(replace(one, place=place, ranks=ranks))
            else:
                kept.append(one)
        if "unknown" in by_cause:
            by_cause["unknown"] = kept


def _of_one_function(found: Sequence[_CauseTime]) -> list[_CauseTime]:
    """Those of the function that takes most."""
    functions: dict[Unit, list[_CauseTime]] = defaultdict(list)
    for one in found:
        if one.place is not None:
            functions[one.place.unit].append(one)
    return max(functions.values(), key=lambda own: sum(one.ms for one in own), default=[])


def _occasion(run: WholeRun, cause: str, found: Sequence[_CauseTime]) -> Occasion:
    steps = sorted({one.at for one in found})
    places: dict[Unit, dict[CodePlace, float]] = defaultdict(lambda: defaultdict(float))
    for one in found:
        if one.place is not None:
            places[one.place.unit][one.place] += one.ms
    functions = {key: sum(lines.values()) for key, lines in places.items()}
    lines = places[max(functions, key=lambda key: functions[key])] if functions else {}
    seen = np.zeros(len(run.numbers), dtype=bool)
    seen[steps] = True
    more = sum(one.ms for one in found)
    return Occasion(
        cause=cause,
        place=max(lines, key=lambda place: lines[place]) if lines else None,
        steps=tuple(int(run.numbers[at]) for at in steps),
        times=spells(seen.tolist()),
        more_ms=more,
        share_pct=100 * more / run.total_ms if run.total_ms else 0.0,
        ranks=tuple(sorted({rank for one in found for rank in one.ranks})),
        placed=max(functions.values()) / sum(functions.values()) if lines else 1.0,
    )
