"""The rounds of a training whose steps recur with a period, and the phases of its loop, named by their lines.

A reinforcement learner collects, then makes a few steps of its optimizer; a GAN's critic makes several for one of the
generator. Such steps are no outliers: the durations of all steps show the period, and samples of the host the phases.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise, takewhile

import numpy as np
from msgspec import Struct

from traceops.across.run_steps import WholeRun
from traceops.core.arrays import Floats, Int, Mask, median
from traceops.core.units import ms_text, percent_text
from traceops.measure.host_places import CodePlace, Unit, own_overhead, place_of, stack_purposes, trains, waits
from traceops.traces.observed import Observed, SampledFrame

_LONGEST = 64  # steps of a round
_LEAST_ROUNDS = 4
# Of how far steps are from their median, times the root of their number: chance explains up to 1.1 for one of all
# periods, of steps whose lengths are normal, lognormal, a random walk or have rare outliers.
_EXPLAINED = 1.5
_CHANCE = 0.5  # of the best period's: where one that is no multiple of it is as good, it is none
_FARTHEST = 3.0  # times the median at its place of the round: what a step counts for at most
_AS_GOOD = 0.9  # of the best period's: the shortest one is it
_UNEVEN = 0.1  # of a round: how far its steps are from their median
_LONGER = 1.25  # times the median step of the round
_STEPS_OF_STAGE = 12
_APART, _CLEAR = 1.3, 2.5  # of stages: how much longer a step takes, and in what steps differ from their median
_OF_FUNCTION, _OF_LINE = 0.85, 0.97  # of the samples: what they have in common is above the loop
_LEAST_SAMPLES = 40
_AS_BUSY = 0.05  # of its time: how much more a rank may wait than the one that waits least
_LEAST_OF_POSITION = 5  # samples, of fewer no share is known
_TINY = 1e-9
_OF_PART = 5  # samples in each part of a step, at least
_LEAST_PCT = 2.0
_SELDOM = 0.8  # of a line's samples in one step of the round: it runs once a round


class Phase(Struct, frozen=True):
    """A part of the loop. ms: a round; pct: of the round. does: as in `Purpose`. most: the innermost function that
    takes most of it, where that is another one. trains: backward runs in it, or a model that the loop calls with
    gradients. waits: lines of the loop that wait for the device or other ranks. off_pct: how far pct may be off, in
    points."""

    place: CodePlace
    ms: float
    pct: float
    trains: bool
    does: str | None = None
    most: CodePlace | None = None
    waits: bool = False
    off_pct: float = 0.0

    def __str__(self) -> str:
        return f"{self.place.said} {percent_text(self.pct)}"


class Stage(Struct, frozen=True):
    """Steps from `first` on that take `ms` each, pct of the run in all."""

    first: int
    ms: float
    pct: float

    def __str__(self) -> str:
        return f"{ms_text(self.ms)} ms from step {self.first} on"


class Rounds(Struct, frozen=True):
    """A loop's rounds, of which `count` were timed, or stages that follow each other. profile_ms: what each step of a
    round takes, the first one by the number `first`."""

    profile_ms: tuple[float, ...]
    first: int
    count: int
    phases: tuple[Phase, ...] = ()
    stages: tuple[Stage, ...] = ()

    @property
    def steps(self) -> int:
        """Steps of the optimizer in a round, 1 where all are alike."""
        return len(self.profile_ms)

    @property
    def ms(self) -> float:
        """What a round takes."""
        return sum(self.profile_ms)

    @property
    def explained(self) -> bool:
        """Whether there are rounds, and several phases show what makes their steps differ."""
        return self.steps > 1 and len(self.phases) > 1

    def is_long(self, step: int) -> bool:
        """Whether the step of this number is one that is longer than the others in each round."""
        own = self.profile_ms[(step - self.first) % self.steps]
        return own >= _LONGER * median(np.array(self.profile_ms))

    def holds(self, place: CodePlace) -> bool:
        """Whether a phase is in this function."""
        return any(place.unit in (one.place.unit, one.most and one.most.unit) for one in self.phases)


def find_rounds(run: WholeRun, observed: Sequence[Observed]) -> Rounds | None:
    """None where all steps are alike and no part of the loop but the training takes time."""
    timed = run.timed & ~np.isin(run.numbers, run.start)
    took = run.step_ms
    profile = None if run.by_turns else period_of(took, timed)
    stages = stages_of(took, run.numbers, timed) if profile is None else ()
    if profile is None:
        timed = timed if stages else run.like  # what comes in some steps only is TO-W001's
        profile = np.array([float(took[timed].mean())])
    enough = [one for one in observed if len(one.samples) >= _LEAST_SAMPLES]
    waiting = [_waiting(one) for one in enough]
    busy = [one for one, part in zip(enough, waiting, strict=True) if part <= min(waiting) + _AS_BUSY]
    looked = max(busy, key=lambda one: len(one.samples), default=None)
    phases = phases_of(looked, run.numbers, timed, profile) if looked is not None else ()
    if len(profile) == 1 and not stages and not any(not one.trains for one in phases):
        return None
    count = int(timed.sum()) // len(profile)
    return Rounds(tuple(profile.tolist()), int(run.numbers[0]), count, tuple(phases), stages)


def _waiting(one: Observed) -> float:
    """The part of a rank's time in which it waits: least on the one that the others wait for."""
    waiting = np.array([waits(one, stack) for stack in range(len(one.stacks))], dtype=bool)
    us = one.samples[:, 2]
    return float(us[waiting[one.samples[:, 1]]].sum()) / max(float(us.sum()), 1.0)


def period_of(took: Floats, timed: Mask) -> Floats | None:
    """What each step of a round takes, ms, the first one by the number of the step; None where there are no rounds.
    Each step is compared with the median of the others at its place of the round: this has to explain more of what
    steps are from their median than chance does."""
    at = timed.nonzero()[0]
    steps = took[at]
    if not len(steps):
        return None
    off = float(np.abs(steps - median(steps)).sum())
    explained: dict[int, float] = {}
    for period in range(2, min(_LONGEST, len(steps) // _LEAST_ROUNDS) + 1):
        left = 0.0
        for place in range(period):
            own = steps[at % period == place]
            if len(own) < _LEAST_ROUNDS - 1:
                break
            left += float(np.abs(own - median(own)).sum()) * len(own) / (len(own) - 1)
        else:
            explained[period] = 1 - left / off if off else 0.0
    if (best := max(explained.values(), default=0.0)) < _EXPLAINED / len(steps) ** 0.5:
        return None
    period = min(period for period, part in explained.items() if part >= _AS_GOOD * best)
    if any(part > _CHANCE * best for other, part in explained.items() if other % period and period % other):
        return None
    places = [steps[at % period == place] for place in range(period)]
    profile = np.array([float(np.minimum(own, _FARTHEST * median(own)).mean()) for own in places])
    uneven = float(np.abs(profile - median(profile)).sum())
    return profile if uneven >= _UNEVEN * float(profile.sum()) else None


def stages_of(took: Floats, numbers: Int, timed: Mask) -> tuple[Stage, ...]:
    """Stages of a run whose steps are even for a while, then longer or shorter for good; empty where it has one."""
    steps, named = took[timed], numbers[timed]
    cuts = [0, *sorted(_cuts(steps, 0, len(steps))), len(steps)]
    if len(cuts) == 2:
        return ()
    total = float(steps.sum())
    return tuple(
        Stage(int(named[first]), median(steps[first:last]), 100 * float(steps[first:last].sum()) / total)
        for first, last in pairwise(cuts)
    )


def _cuts(steps: Floats, first: int, last: int) -> Iterator[int]:
    """Where between `first` and `last` steps change for good."""
    least = _STEPS_OF_STAGE
    if last - first < 2 * least:
        return
    off = [_off(steps[first:cut]) + _off(steps[cut:last]) for cut in range(first + least, last - least + 1)]
    cut = first + least + int(np.argmin(off))
    before, after = steps[first:cut], steps[cut:last]
    shorter, longer = sorted((median(before), median(after)))
    if longer >= _APART * shorter and longer - shorter >= _CLEAR * min(off) / (last - first):
        yield from _cuts(steps, first, cut)
        yield cut
        yield from _cuts(steps, cut, last)


def _off(steps: Floats) -> float:
    return float(np.abs(steps - median(steps)).sum())


class _Part(Struct, frozen=True):
    """A line of the loop, or a function of the program that it calls: the stacks whose samples are there."""

    line: int
    called: Unit | None
    stacks: list[int]
    trains: bool
    no_grad: bool


class _Loop(Struct, frozen=True):
    """Samples of a rank by stack and place in the round, ms. paths: the program's own frames; depth: of the loop."""

    one: Observed
    us: Floats
    paths: dict[int, list[tuple[int, CodePlace]]]
    depth: int


def phases_of(one: Observed, numbers: Int, timed: Mask, profile: Floats) -> list[Phase]:
    """Parts of the loop by their time, those that follow each other and do the same being one. Empty without a loop."""
    chosen = np.isin(one.samples[:, 0], numbers[timed])
    overhead = np.array([own_overhead(one, stack) for stack in range(len(one.stacks))], dtype=bool)
    chosen[chosen] = ~overhead[one.samples[chosen, 1]]
    if chosen.sum() < _LEAST_SAMPLES or not trains(one):
        return []
    step, stack, _ = one.samples[chosen].T
    places = (step - numbers[0]) % len(profile)
    cell, weight = _weights(one, chosen, places, profile)
    ms = np.zeros((len(one.stacks), len(profile)))
    np.add.at(ms, (stack, places), weight)
    loop, parts = _parts(one, ms)
    purposes = [one.what for one in stack_purposes(one)]
    found, pct = [], 100 / float(profile.sum())
    for own in _merged(parts, ms):
        inside = np.isin(stack, [number for part in own for number in part.stacks])
        spent, off = float(weight[inside].sum()), _off_ms(step, cell, weight, inside)
        found.append(_phase(loop, own, spent, pct * spent, pct * off, purposes))
    return sorted((phase for phase in found if phase.pct >= _LEAST_PCT), key=lambda phase: -phase.ms)


def _off_ms(step: Int, part: Int, weight: Floats, inside: Mask) -> float:
    """Twice the standard error of what these samples stand for, of all; samples of one step are alike."""
    spent = weight * inside
    expected = np.bincount(part, spent) / np.maximum(np.bincount(part, weight), _TINY)
    beyond = np.bincount(step - step.min(), spent - expected[part] * weight)
    return 2 * float(np.sqrt((beyond**2).sum() * len(part) / max(len(part) - len(expected), 1)))


def _weights(one: Observed, chosen: Mask, places: Int, profile: Floats) -> tuple[Int, Floats]:
    """For how much of a round each sample stands, ms, and which samples stand for the same part of it. Long steps are
    sampled more often from some point on, and samples are rare after a run's first seconds. How long each part of a
    round takes is known from the steps' own clock. So a sample stands for its part, whatever the time since the sample
    before: a part is a step's place in the round, and how far that step has got. In logs that do not have the latter,
    it is the whole step."""
    step, _, us = one.samples[chosen].T
    each, position = us.astype(np.float64), np.zeros(len(step))
    if len(one.since_begin):
        took = np.maximum(one.steps["host_us"][step - one.first], 1)
        each, position = np.ones(len(step)), np.minimum(one.since_begin[chosen] / took, 1)
    # Places of the round with few samples are taken together.
    samples = np.bincount(places, minlength=len(profile))
    few = samples < _LEAST_OF_POSITION
    few[0] |= few.any() and samples[few].sum() < _LEAST_OF_POSITION
    cell, weight, cells = np.zeros(len(step), np.int64), np.zeros(len(step)), 0
    for group in (few, *np.eye(len(profile), dtype=bool)[~few]):
        own = np.flatnonzero(group[places])
        own = own[np.argsort(position[own], kind="stable")]
        parts = np.array_split(own, max(len(own) // _OF_PART, 1) if len(one.since_begin) else 1)
        between = [(position[before[-1]] + position[after[0]]) / 2 for before, after in pairwise(parts)]
        for part, (begin, end) in zip(parts, pairwise([0.0, *between, 1.0]), strict=True):
            cell[part], cells = cells, cells + 1
            weight[part] = profile[group].sum() * (end - begin) * each[part] / max(each[part].sum(), _TINY)
    return cell, weight


def _phase(
    loop: _Loop, own: Sequence[_Part], ms: float, pct: float, off: float, purposes: Sequence[str | None]
) -> Phase:
    """Lines that are one phase, as one."""
    lines, inner, units, does = Counter[CodePlace](), Counter[CodePlace](), Counter[Unit](), Counter[str | None]()
    waiting = 0.0
    for part in own:
        for stack in part.stacks:
            us, path = loop.us[stack].sum(), loop.paths[stack]
            lines[path[loop.depth + (part.called is not None)][1]] += us
            inner[path[-1][1]] += us
            units[path[-1][1].unit] += us
            does[purposes[stack]] += us
            waiting += us * waits(loop.one, stack)
    total = sum(units.values())
    place = max(lines, key=lambda one: (one.line > 0, lines[one]))
    unit, most = units.most_common(1)[0]
    deepest = max((one for one in inner if one.unit == unit), key=lambda one: (one.line > 0, inner[one]))
    what, named = does.most_common(1)[0]
    return Phase(
        place,
        ms,
        pct,
        any(part.trains for part in own),
        what if named > total / 2 else None,
        deepest if unit != place.unit and most > total / 2 else None,
        own[0].called is None and waiting > total / 2,
        off,
    )


def _merged(parts: Sequence[_Part], us: Floats) -> list[list[_Part]]:
    """Parts that are one phase: a function, neighbouring lines of the loop itself, and all its lines that train.
    Nothing is said of a loop in which nothing trains."""

    def kind(part: _Part) -> tuple[object, ...]:
        own = us[part.stacks].sum(axis=0)
        once = len(own) > 1 and float(own.max()) > _SELDOM * float(own.sum())
        return (part.called, part.called is not None or part.no_grad, once)

    groups: list[list[_Part]] = []
    training: dict[tuple[object, ...], list[_Part]] = {}
    for what, neighbours in groupby(sorted(parts, key=lambda part: part.line), key=kind):
        own = list(neighbours)
        trained = any(part.trains for part in own)
        if not trained or what not in training:
            groups.append(own)
            training.update({what: own} if trained else {})
        else:
            training[what].extend(own)
    return groups if training else []


def _parts(one: Observed, us: Floats) -> tuple[_Loop, list[_Part]]:
    """What is in each line of the loop, and in each function of the program that it calls."""
    weight = us.sum(axis=1)
    paths = {
        stack: [(number, place) for number in one.stacks[stack] if (place := place_of(one, number)) is not None]
        for stack in weight.nonzero()[0].tolist()
    }
    depth, inside = _loop(paths, weight)
    groups: dict[tuple[int, Unit | None], list[int]] = defaultdict(list)
    for stack in inside:
        path = paths[stack]
        calls = len(path) > depth + 1 and not _by_module(one, stack, path[depth])
        groups[path[depth][1].line, path[depth + 1][1].unit if calls else None].append(stack)
    found = []
    for (line, unit), stacks in groups.items():
        waiting = sum(weight[stack] for stack in stacks if waits(one, stack))
        called = None if waiting > weight[stacks].sum() / 2 else unit
        free = any(one.frames[paths[stack][depth][0]].no_grad for stack in stacks)
        frames = [one.frames[number] for stack in stacks for number in one.stacks[stack]]
        trained = any(_trains(frame, free or called is not None) for frame in frames)
        found.append(_Part(line, called, stacks, trained, free))
    return _Loop(one, us, paths, depth), found


def _trains(frame: SampledFrame, other: bool) -> bool:
    """Whether a frame is of backward or an optimizer, or of a model that the loop itself calls with gradients."""
    if frame.function.endswith("_engine_run_backward") or "/torch/optim/" in frame.file:
        return True
    return not other and frame.function.endswith("_call_impl")


def _by_module(one: Observed, stack: int, caller: tuple[int, CodePlace]) -> bool:
    """Whether the line of the loop calls a model: what its class does is no phase of its own."""
    after = one.stacks[stack][one.stacks[stack].index(caller[0]) + 1 :]
    between = takewhile(lambda number: place_of(one, number) is None, after)
    return any(one.frames[number].function.endswith("_call_impl") for number in between)


def _loop(paths: dict[int, list[tuple[int, CodePlace]]], weight: Floats) -> tuple[int, list[int]]:
    """How deep on the stacks the loop's function is, and the stacks in it; none where there is none."""
    inside, depth = [stack for stack, path in paths.items() if path], 0
    while True:
        functions: Counter[tuple[str, str]] = Counter()
        for stack in inside:
            place = paths[stack][depth][1]
            functions[place.function, place.file] += weight[stack]
        if not functions:
            return 0, []
        (function, file), spent = functions.most_common(1)[0]
        if spent < _OF_FUNCTION * sum(functions.values()):
            return 0, []
        inside = [s for s in inside if (paths[s][depth][1].function, paths[s][depth][1].file) == (function, file)]
        lines: Counter[int] = Counter()
        for stack in inside:
            lines[paths[stack][depth][1].line] += weight[stack]
        line, of_line = lines.most_common(1)[0]
        deeper = [s for s in inside if paths[s][depth][1].line == line and len(paths[s]) > depth + 1]
        if of_line < _OF_LINE * spent or sum(weight[s] for s in deeper) < _OF_LINE * of_line:
            return depth, inside
        inside, depth = deeper, depth + 1
