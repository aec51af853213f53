"""Every step of the whole training on all ranks, and which of them are like the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise
from math import gcd

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across import run_steps
from traceops.core.arrays import Floats, Int, Mask, median
from traceops.core.rank_files import RECORDED, SKIPPED
from traceops.measure import host_places
from traceops.measure.steps import FAR, spells
from traceops.traces.observed import Observed

# Steps of a whole run in which a rank calls a function that it calls in each so many steps, and in no other.
#
# What takes less than a typical step (a short save, an evaluation of few batches) leaves its steps within the spread
# of all on a busy machine: their length alone does not tell them. Looks at the host do: a function that is seen in
# every fourth step, and never in between, is no part of a typical one.

_LEAST_SEEN = 5  # steps in which it is seen: of fewer, chance makes a rhythm
_LEAST_APART = 4  # steps from one to the next, for the same
_MOST_MISSED = 0.25  # of the steps of the rhythm: a look may fall beside what is short
_LEAST_PART = 0.1  # of a step: what the function takes where it is seen
_FELT = 0.5  # of that: what these steps take longer than the others
_LONGER = 0.75  # of these steps: so many take longer than the median of the others

Seen = Mapping[int, float]  # by index of the step what looks at a function took in it, ms


def in_rhythm(step_ms: Floats, timed: Mask, functions: Iterable[Seen]) -> Mask:
    """The timed steps that hold such a function. `step_ms` and `timed` are of each step of the run."""
    found = np.zeros(len(step_ms), dtype=bool)
    for seen in functions:
        at = sorted(step for step in seen if timed[step])
        apart = gcd(*(b - a for a, b in pairwise(at)))
        if len(at) < _LEAST_SEEN or apart < _LEAST_APART:
            continue
        rhythm = timed & (np.arange(len(timed)) % apart == at[0] % apart)
        own, others = step_ms[rhythm], step_ms[timed & ~rhythm]
        if len(at) < (1 - _MOST_MISSED) * rhythm.sum() or not len(others):
            continue
        # The function counts where its steps are longer by a good part of what it was seen to take.
        usual = median(others)
        took = float(median([ms for step, ms in seen.items() if rhythm[step]]))
        least = max(_FELT * took, _LEAST_PART * usual)
        often = float((own > usual).mean()) >= _LONGER
        if often and took >= _LEAST_PART * usual and median(own) - usual >= least:
            found |= rhythm
    return found


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

_Key = tuple[str, host_places.Unit]  # a cause, and where
_Place = tuple[str, host_places.CodePlace]


class _CauseTime(Struct, frozen=True):
    """What ranks do for one cause in the step at an index, beyond what they do in a typical one, ms."""

    ms: float
    place: host_places.CodePlace | None = None
    ranks: tuple[int, ...] = ()
    at: int = -1


class OwnTimes:
    """What the ranks did in a step that they do not do in a typical one, ms."""

    def __init__(
        self, ranks: Sequence[Observed], run: run_steps.WholeRun, garbage: Floats, compiled: Floats, by_calls: bool
    ) -> None:
        self._ranks = ranks
        self._run = run
        self._garbage = garbage - np.array([median(row[run.like]) for row in garbage])[:, None]
        self._compiled = compiled
        infers = by_calls and not any(host_places.trains(one) for one in ranks)  # each of its steps is such a call
        self._keys = [_keys(one, infers) for one in ranks]
        self._by_step: list[dict[int, list[tuple[int, int]]]] = [defaultdict(list) for _ in ranks]
        for one, by_step in zip(ranks, self._by_step, strict=True):
            for step, stack, us in one.samples.tolist():
                by_step[step].append((stack, us))
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

    def of(self, at: int, more_ms: float) -> dict[str, _CauseTime]:
        """By cause, what the rank that did most besides in the step at this index did, and who else did it too."""
        of_ranks = [self._of_rank(row, at, more_ms) for row in range(len(self._ranks))]
        best = max(of_ranks, key=lambda parts: sum(part.ms for part in parts.values()))
        for cause, part in best.items():
            did = [cause in own and own[cause].ms >= _ALSO * part.ms for own in of_ranks]
            also = tuple(one.rank for one, too in zip(self._ranks, did, strict=True) if too)
            best[cause] = replace(part, ranks=also)
        return best

    def before(self, at: int, more_ms: float) -> dict[str, _CauseTime]:
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

    def _of_rank(self, row: int, at: int, more_ms: float) -> dict[str, _CauseTime]:
        found: dict[str, _CauseTime] = {}
        if self._compiled[row, at] > 0:
            found["recompilation"] = _CauseTime(float(self._compiled[row, at]))
        if self._garbage[row, at] >= _LEAST * more_ms:
            found["garbage_collection"] = _CauseTime(float(self._garbage[row, at]))
        seen: dict[_Key, float] = defaultdict(float)
        places: dict[_Key, dict[host_places.CodePlace, float]] = defaultdict(lambda: defaultdict(float))
        for stack, us in self._by_step[row].get(int(self._run.numbers[at]), ()):
            if (key := self._keys[row][stack]) is None:
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
                before = found.get(what, _CauseTime(0.0))
                most = max(own, key=lambda place: own[place])
                place = most if beyond > before.ms or before.place is None else before.place
                found[what] = _CauseTime(before.ms + beyond, place)
        return found

    def _is_rare(self, row: int, function: host_places.Unit) -> bool:
        own = self._run.host.get(self._ranks[row].rank, ())
        usual_ms = sum(one.ms for one in own if one.key == function)
        return self._looks[row] >= _LOOKS and usual_ms <= _RARE_PCT / 100 * self._run.typical_ms


def _keys(one: Observed, infers: bool) -> list[_Place | None]:
    """What each stack is about, and where; None where the host waits, or is in the capture itself. infers: the program
    trains nothing, so that a model without gradients is its usual work."""
    keys: list[_Place | None] = []
    waiting = [host_places.waits(one, stack) for stack in range(len(one.stacks))]
    for stack, purpose in enumerate(host_places.with_waits(one, host_places.stack_purposes(one), waiting)):
        if infers and purpose.what == "inference":
            purpose = host_places.Purpose()
        place = host_places.place_of(one, purpose.frame) if purpose.frame is not None else None
        place = place or host_places.own_place(one, stack)
        idle = purpose.what in (None, "input") and waiting[stack]
        kept = place is not None and not idle and not host_places.own_overhead(one, stack)
        keys.append((purpose.what or "host", place) if kept and place is not None else None)
    return keys


def _usual(
    by_step: Mapping[int, Sequence[tuple[int, int]]], keys: Sequence[_Place | None], like: Set[int], typical_ms: float
) -> dict[_Key, float]:
    """What a rank does in a typical step, ms, by cause and function."""
    chosen = [sample for step, own in by_step.items() if step in like for sample in own]
    total = sum(us for _, us in chosen)
    found: dict[_Key, float] = defaultdict(float)
    for stack, us in chosen:
        if (key := keys[stack]) is not None:
            what, place = key
            found[what, place.unit] += us / total * typical_ms
    return found


def with_occasions(run: run_steps.WholeRun, parts: OwnTimes, unlike: Mask) -> run_steps.WholeRun:
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
                part = replace(did[cause], ms=ms, at=at)
                if ms >= _PART * more:
                    by_cause[cause].append(part)
                    told[where, cause] += ms
                    left -= ms
                elif ms > 0 and where == at and cause != "host":
                    little[cause].append(part)
        if left > (1 - _PART) * more:
            by_cause["unknown"].append(_CauseTime(left, at=at))
    _by_rhythm(by_cause)
    for cause, found in little.items():
        by_cause[cause] += _worth_telling(found, by_cause.get(cause, ()), run.total_ms)
    made = [_occasion(run, cause, found) for cause, found in by_cause.items() if found]
    ordered = tuple(sorted(made, key=lambda one: (-one.more_ms, one.cause)))
    return replace(run, occasions=ordered)


def _worth_telling(little: Sequence[_CauseTime], others: Sequence[_CauseTime], total_ms: float) -> Sequence[_CauseTime]:
    """What is little of its step: as much as where it is most of one, or in several steps a part of the run."""
    if others:
        usual = median([one.ms for one in others])
        if alike := [one for one in little if one.ms >= _ALSO * usual]:
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
        if (apart := gcd(*(b - a for a, b in pairwise(numbers)))) < _RHYTHM_LEAST:
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
    functions: dict[host_places.Unit, list[_CauseTime]] = defaultdict(list)
    for one in found:
        if one.place is not None:
            functions[one.place.unit].append(one)
    return max(functions.values(), key=lambda own: sum(one.ms for one in own), default=[])


def _occasion(run: run_steps.WholeRun, cause: str, found: Sequence[_CauseTime]) -> run_steps.Occasion:
    steps = sorted({one.at for one in found})
    places: dict[host_places.Unit, dict[host_places.CodePlace, float]] = defaultdict(lambda: defaultdict(float))
    for one in found:
        if one.place is not None:
            places[one.place.unit][one.place] += one.ms
    functions = {key: sum(lines.values()) for key, lines in places.items()}
    lines = places[max(functions, key=lambda key: functions[key])] if functions else {}
    seen = np.zeros(len(run.numbers), dtype=bool)
    seen[steps] = True
    more = sum(one.ms for one in found)
    return run_steps.Occasion(
        cause=cause,
        place=max(lines, key=lambda place: lines[place]) if lines else None,
        steps=tuple(int(run.numbers[at]) for at in steps),
        times=spells(seen.tolist()),
        more_ms=more,
        share_pct=100 * more / run.total_ms if run.total_ms else 0.0,
        ranks=tuple(sorted({rank for one in found for rank in one.ranks})),
        placed=max(functions.values()) / sum(functions.values()) if lines else 1.0,
    )


_NORMAL, _SPREADS = 1.4826, 5.0  # as in measure/steps.py
_FELT_OVERALL = 0.05  # of a step
_LEAST_STEPS = 8
_MANY = 0.25  # of the steps: odd by what the collector and the compiler tell themselves
# Steps for which input comes late, of all steps, and what they take beyond the others, of the time: a loader whose
# workers deliver at the same time gives so many batches at once, then none, in all of the training.
_BY_TURNS, _BY_TURNS_PCT, _BY_TURNS_TIMES = 0.05, 20.0, 4
_ODD = 2  # steps that may be odd: the next shortest is none
START = 20  # steps: a run has begun by then


class _Table(Struct, frozen=True):
    """Steps of all ranks side by side: a row a rank, a column a step. Times are ms, NaN where none is known. took: by
    the devices' clocks where these tell the pace (on_device), else by the hosts'. singles: steps timed alone."""

    ranks: Sequence[Observed]
    numbers: Int
    hosts: Floats
    took: Floats
    garbage: Floats
    compiled: Floats
    singles: Mask
    recorded: Mask
    skipped: int
    on_device: bool


def whole_run(observed: Sequence[Observed], by_calls: bool = False) -> run_steps.WholeRun | None:
    """Of the ranks that were observed; None where too few steps were timed to tell which is typical. by_calls: a step
    is a call of the model, as of an inference."""
    ranks = sorted((one for one in observed if len(one.steps)), key=lambda one: one.rank)
    if not ranks:
        return None
    first, last = min(one.first for one in ranks), max(one.first + len(one.steps) for one in ranks)
    if last - first > 1 << 28:
        return None
    table = _side_by_side(ranks, np.arange(first, last))
    step = run_steps.step_of_ranks(table.took)
    timed = ~table.recorded & ~np.isnan(step)
    timed[0] = False  # it holds the program's start
    if timed.sum() < _LEAST_STEPS:
        return None
    like = np.zeros(len(step), dtype=bool)
    like[timed] = _like_others(step[timed], (table.garbage.max(axis=0) + table.compiled.max(axis=0))[timed])
    found, parts = _divided(table, step, timed, like, by_calls)
    rhythm = in_rhythm(found.step_ms, timed & ~_start(timed, like), parts.functions())
    if (like & rhythm).any() and (like & ~rhythm).sum() >= _LEAST_STEPS:
        like &= ~rhythm
        found, _ = _divided(table, step, timed, like, by_calls)
    late = None if any(host_places.loads_itself(one) for one in ranks) else _by_turns(found)
    if late is None:
        return found
    return replace(_divided(table, step, timed, like | late, by_calls)[0], in_time_ms=found.typical_ms)


def _side_by_side(ranks: Sequence[Observed], numbers: Int) -> _Table:
    shape, first = (len(ranks), len(numbers)), int(numbers[0])
    places = [slice(one.first - first, one.first - first + len(one.steps)) for one in ranks]
    hosts, devices = np.full(shape, np.nan), np.full(shape, np.nan)
    garbage, compiled = np.zeros(shape), np.zeros(shape)
    recorded, singles = np.zeros(len(numbers), dtype=bool), np.zeros(shape, dtype=bool)
    partly, queued, on_device, skipped = np.full(shape, np.nan), np.zeros(shape, dtype=bool), True, 0
    for row, (one, at) in enumerate(zip(ranks, places, strict=True)):
        hosts[row, at] = run_steps.took_ms(one.steps, None)
        singles[row, at] = run_steps.single(one.steps)
        garbage[row, at] = one.steps["gc_us"] / 1e3
        compiled[row, at] = one.steps["compile_us"] / 1e3
        recorded[at] |= (one.steps["flags"] & RECORDED) > 0
        skipped = max(skipped, int(((one.steps["flags"] & SKIPPED) > 0).sum()))
    for row, (one, at) in enumerate(zip(ranks, places, strict=True)):
        device = run_steps.device_ms(one.steps, hosts[:, at])
        on_device &= run_steps.is_known(one.steps, device)
        devices[row, at] = run_steps.took_ms(one.steps, device)
        partly[row, at] = np.where(np.isnan(device), hosts[row, at], device)
        queued[row, at] = run_steps.only_queued(one.steps) & np.isnan(device)
    alone = ~recorded & (numbers > numbers[0])
    on_device = on_device and run_steps.tells_pace(devices[:, alone], hosts[:, alone])
    took = devices if on_device else np.where(queued, np.nan, partly) if queued.any() else hosts
    return _Table(ranks, numbers, hosts, took, garbage, compiled, singles, recorded, skipped, on_device)


def _divided(
    table: _Table, step: Floats, timed: Mask, like: Mask, by_calls: bool
) -> tuple[run_steps.WholeRun, OwnTimes]:
    """The run with `like` as its typical steps, and what its ranks do in all of them."""
    ranks, start, first = table.ranks, _start(timed, like), int(table.numbers[0])
    typical = float(step[like].mean())
    own = {one.rank: like[one.first - first : one.first - first + len(one.steps)] for one in ranks}
    work = {one.rank: host_places.loader_work(one, own[one.rank]) for one in ranks}
    shortest = np.sort(table.hosts[:, timed], axis=1)

    def shares(part: Floats) -> dict[int, run_steps.Share]:
        held = timed & ~start
        return {
            one.rank: _share(part[row], table.took[row], held, table.singles[row] if table.on_device else None)
            for row, one in enumerate(ranks)
        }

    found = run_steps.WholeRun(
        ranks=tuple(one.rank for one in ranks),
        numbers=table.numbers,
        took_ms=table.took,
        timed=timed,
        like=like,
        start=tuple(int(number) for number in table.numbers[start]),
        typical_ms=typical,
        total_ms=float(step[timed].sum()),
        garbage=shares(table.garbage),
        compiled=shares(table.compiled),
        skipped=table.skipped,
        looks={one.rank: len(one.samples) for one in ranks},
        on_device=table.on_device,
        host={one.rank: host_places.host_times(one, own[one.rank], typical) for one in ranks},
        loaders={rank: one for rank, one in work.items() if one is not None},
        host_ms=float(np.nanmax(shortest[:, min(_ODD, shortest.shape[1] - 1)])),
    )
    parts = OwnTimes(ranks, found, table.garbage, table.compiled, by_calls)
    return with_occasions(found, parts, timed & ~like & ~start), parts


def _by_turns(run: run_steps.WholeRun) -> Mask | None:
    """The steps for which input comes late, where they are a part of what the training always does. Most are looked at
    seldom or never: steps that nothing was seen in, and that take no longer, are such too."""
    by_cause = {one.cause: one for one in run.occasions}
    late, unseen = by_cause.get("input"), by_cause.get("unknown")
    often = late is not None and len(late.steps) >= _BY_TURNS * run.timed.sum()
    if late is None or not often or late.times < _BY_TURNS_TIMES or late.share_pct < _BY_TURNS_PCT:
        return None
    found = np.isin(run.numbers, late.steps)
    if unseen is not None and unseen.share_pct <= late.share_pct:
        longest = float(run.step_ms[found].max())
        found |= np.isin(run.numbers, unseen.steps) & (run.step_ms <= longest)
    return found


def _start(timed: Mask, like: Mask) -> Mask:
    """Steps from the beginning on until the first that is like the others."""
    start = np.zeros(len(timed), dtype=bool)
    for at in np.flatnonzero(timed)[:START].tolist():
        if like[at]:
            break
        start[at] = True
    return start


def _like_most(steps: Floats) -> Mask:
    """As `typical_steps`, but by what the shorter half spreads by: a third of odd steps would stretch the whole's."""
    middle = median(steps)
    spread = _NORMAL * median(middle - steps[steps <= middle])
    return np.asarray(steps <= max(FAR * middle, middle + _SPREADS * spread))


def _like_others(steps: Floats, told: Floats) -> Mask:
    """Which steps are typical. told: what the collector and the compiler took in each, on the rank where it was most.
    Where these make many steps odd, more than half may be, and no step tells which are like most. Without that time
    most are alike again, and typical are those that had next to none of it."""
    free = np.maximum(steps - told, 0.0)
    made_odd = told > _PART * median(free)
    if float(made_odd.mean()) < _MANY:
        return _like_most(steps)
    like = _like_most(free) & ~made_odd
    return like if like.sum() >= _LEAST_STEPS else _like_most(steps)


def _share(part: Floats, took: Floats, timed: Mask, singles: Mask | None) -> run_steps.Share:
    """singles: steps of which the device's own time is known; None where steps are timed by the host."""
    known = timed & ~np.isnan(took)
    whole = float(took[known].sum())
    felt = known & (part >= _FELT_OVERALL * took)
    shown = 1.0 if singles is None else _shown(part, took, felt, known & singles)
    return run_steps.Share(100 * shown * float(part[known].sum()) / whole if whole else 0.0, int(felt.sum()))


def _shown(part: Floats, took: Floats, felt: Mask, singles: Mask) -> float:
    """How much of what a host spends is in the device's steps: nothing where so much is queued meanwhile. 1 where too
    few steps tell. What comes at a step's end is in the next one."""
    behind = felt | np.concatenate([[False], felt[:-1]])
    at = np.flatnonzero(felt[:-1] & singles[:-1] & singles[1:])
    without = took[singles & ~behind]
    if min(len(at), len(without)) < _LEAST_STEPS:
        return 1.0
    more = float((took[at] + took[at + 1]).sum()) - 2 * len(at) * float(without.mean())
    return min(max(more / float(part[at].sum()), 0.0), 1.0)
