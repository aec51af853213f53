"""Every step of the whole training on all ranks: which are like the others, and what the others do besides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

from traceops.across.step_times import device_ms
from traceops.core.step_log import RECORDED, SKIPPED
from traceops.measure.host_places import (
    CodePlace,
    FunctionTime,
    host_times,
    own_overhead,
    own_place,
    waits,
    what_for,
)
from traceops.measure.loader_work import LoaderWork, loader_work
from traceops.measure.typical import FAR, spells
from traceops.traces.observed import Observed

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_NORMAL, _SPREADS = 1.4826, 5.0  # as in measure/typical.py
_FELT = 0.05  # of a step
_ON_DEVICE = 0.8  # of the steps: known by the device's own timeline
_PART = 0.2  # of what a step takes longer: less is no reason
_LEAST_STEPS = 8
_MANY = 0.25  # of the steps: odd by what the collector and the compiler tell themselves
_ALSO = 0.5  # of what the rank does that does most: so much of it, and another does it too
START = 20  # steps: a run has begun by then
_RARE_PCT = 1.0  # of the typical step: a function in which the host is less is none of it
_RHYTHM = 3  # steps of one cause that show a rhythm
_RHYTHM_LEAST = 3  # steps between them, so that a rhythm does not take in every step


@dataclass(frozen=True)
class Occasion:
    """Steps that are unlike the others for one reason.

    cause: as in TO-W001; "unknown" where nothing shows one. place: the function of the program that is seen most, and
    its line; placed: how much is seen in that function, of what is seen in any. times: how often such steps came,
    neighbours being one time. more_ms: what they take beyond the typical step, all together. ranks: that do it.
    """

    cause: str
    place: CodePlace | None
    steps: tuple[int, ...]
    times: int
    more_ms: float
    share_pct: float
    ranks: tuple[int, ...]
    placed: float = 1.0


@dataclass(frozen=True)
class Share:
    """A part of a rank's time, percent, and in how many steps it took a twentieth or more."""

    pct: float
    steps: int


@dataclass(frozen=True)
class WholeRun:
    """All steps of a run.

    took_ms: rank by step, NaN where a rank has none; numbers: of the steps. timed: steps that no profiler was at, from
    the second on. like: of those, the typical ones. start: steps at the beginning that took longer. garbage,
    compiled: of each rank's time after them. on_device: by the GPU's timeline. loaders: of ranks whose loaders have
    workers that were looked at.
    """

    ranks: tuple[int, ...]
    numbers: NDArray[np.int64]
    took_ms: Floats
    timed: Mask
    like: Mask
    start: tuple[int, ...]
    typical_ms: float
    total_ms: float
    occasions: tuple[Occasion, ...] = ()
    garbage: Mapping[int, Share] = field(default_factory=dict)
    compiled: Mapping[int, Share] = field(default_factory=dict)
    skipped: int = 0
    looks: Mapping[int, int] = field(default_factory=dict)
    on_device: bool = False
    host: Mapping[int, Sequence[FunctionTime]] = field(default_factory=dict)
    loaders: Mapping[int, LoaderWork] = field(default_factory=dict)

    @property
    def typical_steps(self) -> int:
        """How many steps are like the others."""
        return int(self.like.sum())

    @property
    def mean_ms(self) -> float:
        """The mean of all timed steps but those at the start, ms, typical or not."""
        return float(self.step_ms[self.timed & ~np.isin(self.numbers, self.start)].mean())

    @property
    def step_ms(self) -> Floats:
        """Each step's median over ranks."""
        return _median(self.took_ms)


def whole_run(observed: Sequence[Observed]) -> WholeRun | None:
    """Of the ranks that were observed; None where too few steps were timed to tell which is typical."""
    ranks = sorted((one for one in observed if len(one.steps)), key=lambda one: one.rank)
    if not ranks:
        return None
    first = min(one.first for one in ranks)
    last = max(one.first + len(one.steps) for one in ranks)
    if last - first > 1 << 28:
        return None
    numbers = np.arange(first, last)
    shape = (len(ranks), len(numbers))
    took, garbage, compiled = np.full(shape, np.nan), np.zeros(shape), np.zeros(shape)
    recorded = np.zeros(len(numbers), dtype=bool)
    devices = [device_ms(one.steps) for one in ranks]
    on_device = all(map(_known, ranks, devices))
    skipped = 0
    for row, one in enumerate(ranks):
        at = slice(one.first - first, one.first - first + len(one.steps))
        took[row, at] = _took_ms(one, devices[row] if on_device else None)
        garbage[row, at] = one.steps["gc_us"] / 1e3
        compiled[row, at] = one.steps["compile_us"] / 1e3
        recorded[at] |= (one.steps["flags"] & RECORDED) > 0
        skipped = max(skipped, int(((one.steps["flags"] & SKIPPED) > 0).sum()))
    step = _median(took)
    timed = ~recorded & ~np.isnan(step)
    timed[0] = False  # it holds the program's start
    if timed.sum() < _LEAST_STEPS:
        return None
    like = np.zeros(len(numbers), dtype=bool)
    like[timed] = _like_others(step[timed], (garbage.max(axis=0) + compiled.max(axis=0))[timed])
    start = _start(timed, like)
    later = timed & ~start
    typical = float(step[like].mean())
    run = WholeRun(
        ranks=tuple(one.rank for one in ranks),
        numbers=numbers,
        took_ms=took,
        timed=timed,
        like=like,
        start=tuple(int(n) for n in numbers[start]),
        typical_ms=typical,
        total_ms=float(step[timed].sum()),
        garbage={one.rank: _share(garbage[row], took[row], later) for row, one in enumerate(ranks)},
        compiled={one.rank: _share(compiled[row], took[row], later) for row, one in enumerate(ranks)},
        skipped=skipped,
        looks={one.rank: len(one.samples) for one in ranks},
        on_device=on_device,
        host={one.rank: host_times(one, _own(one, like, first), typical) for one in ranks},
        loaders={one.rank: work for one in ranks if (work := loader_work(one)) is not None},
    )
    parts = _OwnTimes(ranks, run, garbage, compiled)
    return _with_occasions(run, parts, timed & ~like & ~start)


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


class _OwnTimes:
    """What the ranks did in a step that they do not do in a typical one, ms."""

    def __init__(self, ranks: Sequence[Observed], run: WholeRun, garbage: Floats, compiled: Floats) -> None:
        self._ranks = ranks
        self._run = run
        self._garbage = garbage - np.array([float(np.median(row[run.like])) for row in garbage])[:, None]
        self._compiled = compiled
        self._keys = [_keys(one) for one in ranks]
        self._usual = [
            {(h.does or "host", h.key): h.ms for h in run.host.get(one.rank, ()) if not h.waits}
            for one in ranks
        ]
        self._by_step = [_samples_by_step(one) for one in ranks]

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
        if self._garbage[row, at] >= _PART * more_ms:
            found["garbage_collection"] = _OwnTime(float(self._garbage[row, at]))
        seen: dict[tuple[str, tuple[str, str]], float] = defaultdict(float)
        places: dict[tuple[str, tuple[str, str]], dict[CodePlace, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        for stack, us in self._by_step[row].get(int(self._run.numbers[at]), ()):
            key = self._keys[row][stack]
            if key is None:
                continue
            what, place = key
            seen[what, (place.function, place.file)] += us / 1e3
            places[what, (place.function, place.file)][place] += us
        for (what, function), ms in seen.items():
            if what == "host" and self._usual_ms(row, function) > _RARE_PCT / 100 * self._run.typical_ms:
                continue  # in a step that takes long for another reason, the host is where it always is
            beyond = ms - self._usual[row].get((what, function), 0.0)
            if beyond > 0:
                own = places[what, function]
                before = found.get(what, _OwnTime(0.0))
                most = max(own, key=lambda place: own[place])
                place = most if beyond > before.ms or before.place is None else before.place
                found[what] = _OwnTime(before.ms + beyond, place)
        return found

    def _usual_ms(self, row: int, function: tuple[str, str]) -> float:
        own = self._run.host.get(self._ranks[row].rank, ())
        return sum(one.ms for one in own if one.key == function)


def _keys(one: Observed) -> list[tuple[str, CodePlace] | None]:
    """What each stack is about, and where; None where the host waits, or is in the capture itself."""
    keys: list[tuple[str, CodePlace] | None] = []
    for stack in range(len(one.stacks)):
        place, what = own_place(one, stack), what_for(one, stack)
        idle = what in (None, "input") and waits(one, stack)
        keys.append(None if place is None or idle or own_overhead(one, stack) else (what or "host", place))
    return keys


def _samples_by_step(one: Observed) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step, stack, us in one.samples.tolist():
        found[step].append((stack, us))
    return found


def _with_occasions(run: WholeRun, parts: _OwnTimes, unlike: Mask) -> WholeRun:
    step = run.step_ms
    by_cause: dict[str, list[_CauseTime]] = defaultdict(list)
    told: dict[tuple[int, str], float] = defaultdict(float)  # by step and cause
    for at in np.flatnonzero(unlike).tolist():
        more = float(step[at] - run.typical_ms)
        left = more
        for where, did in ((at, parts.of(at, more)), (at - 1, parts.before(at, more))):
            for cause in sorted(did, key=lambda name: (name == "host", -did[name].ms)):
                ms = min(did[cause].ms - told[where, cause], left)
                if ms >= _PART * more:
                    by_cause[cause].append(_CauseTime(at, ms, did[cause].place, did[cause].ranks))
                    told[where, cause] += ms
                    left -= ms
        if left > (1 - _PART) * more:
            by_cause["unknown"].append(_CauseTime(at, left))
    _by_rhythm(by_cause)
    made = [_occasion(run, cause, found) for cause, found in by_cause.items() if found]
    ordered = tuple(sorted(made, key=lambda one: (-one.more_ms, one.cause)))
    return replace(run, occasions=ordered)


def _by_rhythm(by_cause: dict[str, list[_CauseTime]]) -> None:
    """Steps that nothing was seen in are of the cause in whose rhythm they come."""
    for cause, found in by_cause.items():
        numbers = sorted({one.at for one in found})
        if cause in ("unknown", "host") or len(numbers) < _RHYTHM:
            continue
        apart = reduce(gcd, (b - a for a, b in pairwise(numbers)))
        if apart < _RHYTHM_LEAST:
            continue
        place, ranks = found[0].place, found[0].ranks
        kept = []
        for one in by_cause.get("unknown", ()):
            if (one.at - numbers[0]) % apart == 0:
                found.append(replace(one, place=place, ranks=ranks))
            else:
                kept.append(one)
        if "unknown" in by_cause:
            by_cause["unknown"] = kept


def _occasion(run: WholeRun, cause: str, found: Sequence[_CauseTime]) -> Occasion:
    steps = sorted({one.at for one in found})
    places: dict[tuple[str, ...], dict[CodePlace, float]] = defaultdict(lambda: defaultdict(float))
    for one in found:
        if one.place is not None:
            places[_function(one.place)][one.place] += one.ms
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


def _function(place: CodePlace) -> tuple[str, ...]:
    """Outside of functions a line stands for itself, as `CodePlace.said` shows it."""
    by_line = place.function == "<module>"
    return (place.function, place.file, str(place.line) if by_line else "")


def _took_ms(one: Observed, device: Floats | None) -> Floats:
    host: Floats = one.steps["host_us"] / 1e3
    return host if device is None else np.where(np.isnan(device), host, device)


def _known(one: Observed, device: Floats) -> bool:
    """Whether the device's clock tells most of a rank's steps, the first and those under a profiler aside."""
    free = (one.steps["flags"] & RECORDED == 0)[1:]
    return bool(free.any()) and float((~np.isnan(device[1:][free])).mean()) >= _ON_DEVICE


def _start(timed: Mask, like: Mask) -> Mask:
    """Steps from the beginning on until the first that is like the others."""
    start = np.zeros(len(timed), dtype=bool)
    for at in np.flatnonzero(timed)[:START].tolist():
        if like[at]:
            break
        start[at] = True
    return start


def _own(one: Observed, steps: Mask, first: int) -> Mask:
    return steps[one.first - first : one.first - first + len(one.steps)]


def _like_most(steps: Floats) -> Mask:
    """As `typical_steps`, but by what the shorter half spreads by: a third of odd steps would stretch the whole's."""
    middle = float(np.median(steps))
    spread = _NORMAL * float(np.median(middle - steps[steps <= middle]))
    return np.asarray(steps <= max(FAR * middle, middle + _SPREADS * spread))


def _like_others(steps: Floats, told: Floats) -> Mask:
    """Which steps are typical. told: what the collector and the compiler took in each, on the rank where it was most.

    Where these make many steps odd, more than half may be, and no step tells which are like most. Without that time
    most are alike again, and typical are those that had next to none of it.
    """
    free = np.maximum(steps - told, 0.0)
    made_odd = told > _PART * float(np.median(free))
    if float(made_odd.mean()) < _MANY:
        return _like_most(steps)
    like = _like_most(free) & ~made_odd
    return like if like.sum() >= _LEAST_STEPS else _like_most(steps)


def _share(part: Floats, took: Floats, timed: Mask) -> Share:
    known = timed & ~np.isnan(took)
    whole = float(took[known].sum())
    felt = int((part[known] >= _FELT * took[known]).sum())
    return Share(100 * float(part[known].sum()) / whole if whole else 0.0, felt)


def _median(took: Floats) -> Floats:
    known = ~np.isnan(took).all(axis=0)
    found = np.full(took.shape[1], np.nan)
    found[known] = np.nanmedian(took[:, known], axis=0)
    return found
