"""TO-T001: steps that take far longer than the typical one, with what they do more and how much of the run they are."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Container, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.agreed_steps import MORE_WORK
from traceops.across.cross_rank import CrossRank
from traceops.across.lateness import CAUSE_OF
from traceops.across.rank_times import RankTimes
from traceops.across.run_use import beyond_peers, core_waits
from traceops.core.arrays import median
from traceops.core.claims import Claim, reason
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Severity, severity_of
from traceops.core.rule import Bounds, Verdict, described
from traceops.core.units import stored
from traceops.measure.host import ExtraRegion
from traceops.measure.ledger import OWN_BUCKETS
from traceops.measure.steps import spells, typical_steps
from traceops.measure.summary import numbered_steps
from traceops.rules.inputs import Inputs
from traceops.rules.shared import on_cpu
from traceops.traces.run_manifest import StepKinds, manifest_ranks, step_kinds


class LongSteps(Claim, frozen=True, kw_only=True):
    """Steps unlike the others. took: of the only one, else they take up to `most`; times in ms. does: why, on
    these ranks. place: what the host is in for `longer` more. another: an optimizer that runs in some steps only, which
    leaves `left_pct` unexplained. round_steps: of the loop's rounds, where such steps come. share: percent of the run,
    where such steps come again."""

    family = "steps"
    kind = "long_steps"
    steps: tuple[int, ...]
    took: float | None = None
    most: float | None = None
    typical: float
    waits_for_core: int | None = None
    does: str | None = None
    ranks: tuple[int, ...] = ()
    all_ranks: bool = False
    place: str | None = None
    longer: float | None = None
    longer_at_most: float | None = None
    round_steps: int | None = None
    another: str | None = None
    another_in: int | None = None
    another_of: int | None = None
    left_pct: float | None = None
    once: bool = False
    timed: int
    unlike: int
    share: float | None = None


# TO-T001 where a long step loads kernels, or starts a communicator: that comes once in a process.

FIRST_USE = "first_use"
ALLOCATES = "allocation"
_MOST_OF_REGION = 0.5  # of what the region takes longer
_MOST_OF_STEP = 0.5  # of what the step takes longer


def is_first_use(region: ExtraRegion) -> bool:
    """Whether the host is in this region longer because of what is used there for the first time."""
    return region.first_use_ms >= _MOST_OF_REGION * region.ms


def first_uses(run: CrossRank) -> tuple[int, ...]:
    """The steps unlike the others that are so because something is used for the first time."""
    most: dict[int, float] = {}
    for times in run.ranks:
        for one in times.summary.host.extra:
            if is_first_use(one):
                most[one.step] = max(most.get(one.step, 0.0), one.ms)
    return tuple(step for step, ms in most.items() if step in run.unlike and ms >= _MOST_OF_STEP * longer_ms(run, step))


def longer_ms(run: CrossRank, number: int) -> float:
    """What a step takes longer than the typical one, ms; 0 where most ranks feel it a step later."""
    return max(step_ms(run, number) - run.step_ms, 0.0)


def step_ms(run: CrossRank, number: int) -> float:
    """A step's duration, ms: the median over the ranks that recorded it."""
    return run.durations_ms.get(number, math.nan)


# TO-T001 where a rank waits for a core in the long steps, by what it told of its recorded steps.

CAUSE = "shared_cores"
_MOST_OF_IT = 0.5  # of what the steps take longer


def held_up(inputs: Inputs, longer_ms: float) -> tuple[int, float] | None:
    """The rank that waits for a core in the steps unlike the others, and for how long in each beyond its typical ones.
    longer_ms: what these steps take longer, all together. None where that is less than half of it."""
    run, waits = inputs.run, core_waits(inputs.observed).of_rank
    more: dict[int, float] = {}
    for times in run.ranks:
        own = waits.get(times.summary.rank)
        typical = times.summary.step_numbers[times.typical].tolist()
        if own is not None and typical:
            usual = float(np.mean([own.get(step, 0) for step in typical]))
            more[times.summary.rank] = sum(own.get(step, 0) - usual for step in run.unlike) / 1e6
    rank = max(more, key=lambda one: more[one], default=None)
    if rank is None or more[rank] < _MOST_OF_IT * longer_ms:
        return None
    return rank, more[rank] / len(run.unlike)


# How much of a run goes to steps unlike the others, over all that were timed (TO-T001).


class Timed(Struct, frozen=True):
    """Steps of the run that were timed, recorded or not: how many, how many are unlike, and their share, percent.
    spells: how often such steps came, neighbours being one time. mean_ms: of a timed step."""

    steps: int
    unlike: int
    spells: int
    share_pct: float
    mean_ms: float


# What both rules name alike: of a step that is long for one of these, those that are long for another are not more.
_OF_BOTH = frozenset(("evaluation", "checkpoint", "recompilation", "garbage_collection", "input"))


def timed_steps(inputs: Inputs, run: CrossRank, but: Container[int], cause: str) -> Timed:
    """Recorded and unrecorded steps, each against the typical one of its own kind. but: steps that are left out. cause:
    of the recorded ones. Steps in which the whole run shows another one alone are timed, and none of these."""
    every = numbered_steps(times.summary for times in run.ranks)
    numbers = sorted(number for number in every if number not in but)
    unprofiled, alike, others = _unprofiled(inputs, cause)
    recorded = [step_ms(run, number) for number in numbers]
    like = [number not in run.unlike for number in numbers]
    more, total = _beyond_usual(recorded, like), sum(recorded)
    unlike, times = like.count(False), spells([not typical for typical in like])
    if numbers[:1] == [0] and not like[0] and cause not in _OF_BOTH:
        times -= 1  # the program's first ones are long in every program
    if unprofiled:
        more, total = more + _beyond_usual(unprofiled, alike), total + sum(unprofiled)
        unlike, times = unlike + alike.count(False), times + spells([not typical for typical in alike])
    total += sum(others)
    share, steps = 100 * more / total if total else 0.0, len(recorded) + len(unprofiled) + len(others)
    return Timed(steps, unlike, times, share, total / steps if steps else 0.0)


def _unprofiled(inputs: Inputs, cause: str) -> tuple[list[float], list[bool], list[float]]:
    """Steps timed without the profiler, ms, which of them are like the others, and those that have another cause. The
    median over ranks of each. All of them, where the run was observed: that also knows which are typical."""
    if (whole := inputs.whole) is not None:
        timed = whole.timed & ~np.isin(whole.numbers, whole.start)
        known = {"unknown", cause} if cause in _OF_BOTH else {one.cause for one in whole.occasions}
        own, apart = (
            [number for one in whole.occasions if (one.cause in known) is such for number in one.steps]
            for such in (True, False)
        )
        other = timed & np.isin(whole.numbers, apart) & ~np.isin(whole.numbers, own)
        timed = timed & ~other
        return whole.step_ms[timed].tolist(), whole.like[timed].tolist(), whole.step_ms[other].tolist()
    series = [own.unprofiled_step_ms for own in manifest_ranks(inputs.manifest)]
    count = min((len(own) for own in series), default=0)
    rows = ([own[i] for own in series] for i in range(count))
    took = [median([ms for ms in row if ms is not None]) for row in rows if None not in row]
    return took, typical_steps(took).tolist(), []


def _beyond_usual(steps: list[float], like: list[bool]) -> float:
    """What the steps that are unlike the others take beyond the mean of those, all together."""
    usual = [ms for ms, typical in zip(steps, like, strict=True) if typical]
    mean = float(np.mean(usual)) if usual else 0.0
    return sum(ms - mean for ms, typical in zip(steps, like, strict=True) if not typical)


_NOT_ITS = ("comm_wait", "idle_input")  # what no optimizer's work grows
_MOST = 0.5  # of what these steps take longer


class SecondKind(Struct, frozen=True):
    """kinds: of the run's steps. left: the part of what these take longer that the other optimizer does not explain."""

    kinds: StepKinds
    left: float

    @property
    def explains(self) -> bool:
        """Whether it is the other optimizer for the most part."""
        return self.left <= _MOST


def second_kind(inputs: Inputs, recorded: int) -> SecondKind | None:
    """None where the unlike steps, of so many recorded ones, do not come as another optimizer does."""
    kinds, run = step_kinds(inputs.manifest), inputs.run
    if kinds is None or not kinds.may_be(run.unlike, recorded):
        return None
    grows = [_grows(times, run.unlike, times.duration) for times in run.ranks]
    longer, held, ranks = float(np.mean(grows)), 0.0, [times.summary.rank for times in run.ranks]
    others = (sum(_grows(times, run.unlike, times.buckets[name]) for name in _NOT_ITS) for times in run.ranks)
    own = min(more - not_its for more, not_its in zip(grows, others, strict=True))
    if on_cpu(run):  # what a rank without a GPU waits for a core beyond its peers is the machine's doing
        waits = core_waits(inputs.observed)
        held = max(float(beyond_peers(waits, r, [o for o in ranks if o != r], run.unlike).sum()) for r in ranks)
    return SecondKind(kinds, min(max((longer - own - held) / longer, 0.0), 1.0) if longer > 0 else 0.0)


def _grows(times: RankTimes, steps: tuple[int, ...], took: np.typing.NDArray[np.int64]) -> float:
    odd = np.isin(times.summary.step_numbers, steps)
    return float((took[odd] - float(took[times.typical].mean())).sum()) if times.typical.any() else 0.0


UNLIKE_STEPS = described("steps", "TO-T001")
RULES = (UNLIKE_STEPS,)


class StepBounds(Bounds, frozen=True):
    """Percent of all timed steps, as words/steps.ini says."""

    words = "steps"

    unlike_pct: tuple[float, float, float] = (0.0, 10.0, 30.0)


BOUNDS = StepBounds()
_UNLIKE = 1.5  # times the typical step, as docs/metrics.md has it
_MOST_NAMED, _NAMED_PART = 3, 0.1  # regions, of what the step takes longer
_MOST_OF_TIME = 50.0  # percent of what was timed: rarely or often, such steps are most of it
_SEVERAL = 5  # steps: of fewer any may be the usual one
_ALSO = 0.5  # of what the worst rank does more: another does it too
_OWN = 0.8  # of a region's time that it is longer in the long steps: it is hardly in others
_LEAST_PART = 0.25  # of what a step takes more: a region that says why
_REGIONS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("recompilation", re.compile(r"dynamo|compile_inner|inductor_compile|entire_frame_compile|fx_codegen")),
    ("evaluation", re.compile(r"(?i)(?<![a-z])eval(uate|uation)?(?![a-z])(?!_function)|validat")),
    ("checkpoint", re.compile(r"(?i)save_?(state|checkpoint|model)|checkpoint_?(save|write)|torch\.save|dcp[._:]")),
    ("garbage_collection", re.compile(r"(?i)\bgc\b|garbage")),
)
_UNEXPLAINED = (CAUSE, "unknown", "round")
_EXPLAINED = ("other_optimizer", "round")  # by what the training does on purpose


def judge(inputs: Inputs) -> list[Verdict]:
    """Steps unlike the others."""
    every = numbered_steps(times.summary for times in inputs.run.ranks)
    if len(every) < 3:
        return [UNLIKE_STEPS.not_evaluated(reason("steps", "too_few", count=len(every)))]
    inputs = replace(inputs, run=_without_catching_up(inputs.run, min(every)))
    run = inputs.run
    if not run.unlike:
        return [UNLIKE_STEPS.clear(reason("steps", "alike", count=len(every)))]
    odd = _odd_steps(inputs, len(every))
    seen_often = odd.timed.spells > 1 and not odd.once
    share = odd.timed.share_pct * (1.0 if odd.other is None else odd.other.left)
    severity: Severity = "info"
    impact: float | None = None
    if seen_often and odd.cause not in _EXPLAINED:
        severity = severity_of(share, *BOUNDS.unlike_pct) or "info"
        impact = stored(share / 100 * odd.timed.mean_ms)
    elif share >= _MOST_OF_TIME and len(every) >= _SEVERAL and run.unlike[0] > min(every):
        # a clean bill beside it would be of the lesser part
        severity = "info" if odd.once or odd.cause in _EXPLAINED else "warning"
    confidence: Confidence = "high" if odd.region else "medium"
    claim, evidence = _claim(odd, seen_often=seen_often), _evidence(odd, impact)
    ranks, steps = [times.summary.rank for times in run.ranks], odd.run.unlike
    found = UNLIKE_STEPS.finding(
        severity, confidence, claim, evidence, ranks=ranks, steps=steps, impact_ms=impact, cause=odd.cause
    )
    return [UNLIKE_STEPS.verdict(found)]


def _without_catching_up(run: CrossRank, first: int) -> CrossRank:
    """The run in which the first step is none of the unlike ones, if it is so long only until the device catches up."""
    catches_up_ms = max(min(times.summary.catches_up_ns for times in run.ranks) / 1e6, 0.0)
    own_ms = step_ms(run, first) - catches_up_ms
    if first not in run.unlike or own_ms > _UNLIKE * run.step_ms or (not catches_up_ms and own_ms > run.step_ms):
        return run
    return replace(run, unlike=tuple(number for number in run.unlike if number != first))


class _Odd(Struct, frozen=True):
    """The steps unlike the others, and why they are. run: with these steps alone. every: also those that are long on
    most ranks only a step later. worst: the rank that takes longest for itself. took: ms, of each. region: what its
    host is in longer. held: the rank that waits for a core, and how long. other: another optimizer. rounds: of the
    loop, where these are its long steps. alike: ranks with the same cause. once: all of them are so for what comes
    once."""

    run: CrossRank
    every: tuple[int, ...]
    worst: RankTimes
    took: list[float]
    cause: str
    region: tuple[str, float] | None
    held: tuple[int, float] | None
    other: SecondKind | None
    round_steps: int | None
    timed: Timed
    alike: list[int]
    once: bool


def _odd_steps(inputs: Inputs, recorded: int) -> _Odd:
    starts = first_uses(inputs.run)
    every = tuple(number for number in inputs.run.unlike if number not in starts)  # those come once
    whole = replace(inputs.run, unlike=every or inputs.run.unlike)
    every = whole.unlike  # who is late in one may be waited for in the next, which is then long on most ranks
    run = replace(whole, unlike=tuple(number for number in every if longer_ms(whole, number) > 0) or every)
    worst = max(run.ranks, key=lambda times: _own_excess_ms(times, every))
    took = [step_ms(run, number) for number in run.unlike]
    cause, region = _cause_of_worst(worst, whole)
    timed = timed_steps(inputs, run, starts, cause)
    held = None if region or cause == "other_work" else held_up(inputs, sum(took) - run.step_ms * len(took))
    cause = CAUSE if held else cause
    alike = _ranks_alike(whole, worst, cause)
    other = second_kind(inputs, recorded) if cause == "other_work" else None
    rounds = None if region or cause in (*_OF_BOTH, FIRST_USE, ALLOCATES) else inputs.rounds
    round_steps = None
    if other is not None and other.explains:
        cause = "other_optimizer"
    elif rounds is not None and rounds.explained and all(rounds.is_long(number) for number in run.unlike):
        cause, held, round_steps = "round", None, rounds.steps
    once = set(run.unlike) <= set(starts)
    return _Odd(run, every, worst, took, cause, region, held, other, round_steps, timed, alike, once)


def _claim(odd: _Odd, *, seen_often: bool) -> LongSteps:
    run, took, alike, other = odd.run, odd.took, odd.alike, odd.other
    itself = odd.cause == "host" and not odd.worst.summary.on_gpu
    says_why = not odd.held and odd.cause not in _UNEXPLAINED and not (itself and len(run.ranks) == 1)
    several = len(alike) > 1
    place, longer = odd.region if odd.region and says_why else (None, None)
    claim = LongSteps(
        steps=run.unlike,
        took=took[0] if len(took) == 1 else None,
        most=max(took) if len(took) > 1 else None,
        typical=run.step_ms,
        waits_for_core=odd.held[0] if odd.held else None,
        does=("host_itself" if itself else odd.cause) if says_why else None,
        ranks=tuple(alike),
        all_ranks=several and len(alike) == len(run.ranks),
        place=place,
        longer=None if several else longer,
        longer_at_most=longer if several else None,
        round_steps=odd.round_steps,
        once=odd.once,
        timed=odd.timed.steps,
        unlike=odd.timed.unlike,
        share=odd.timed.share_pct if seen_often else None,
    )
    if other is None:
        return claim
    left = None if other.explains else 100 * other.left
    kinds = other.kinds
    return replace(claim, another=kinds.another, another_in=kinds.count, another_of=kinds.steps, left_pct=left)


def _evidence(odd: _Odd, impact: float | None) -> list[Evidence]:
    rank, timed = odd.worst.summary.rank, odd.timed
    evidence = [
        Evidence(Fact.LONGEST_STEP, stored(max(odd.took)), "ms", stored(odd.run.step_ms * _UNLIKE)),
        Evidence(Fact.TYPICAL_STEP, stored(odd.run.step_ms), "ms"),
    ]
    if not odd.once:
        evidence += [
            Evidence(Fact.SUCH_STEPS, timed.unlike, f"of {timed.steps} timed steps"),
            Evidence(Fact.BEYOND_TYPICAL_STEPS, round(timed.share_pct, 2), "% of the time"),
        ]
    if impact is not None:
        evidence.append(Evidence(Fact.BEYOND_TYPICAL_STEPS, impact, "ms/step"))
    kernels, usual = _kernels(odd.worst, odd.run.unlike)
    if odd.worst.summary.on_gpu and (kernels >= MORE_WORK * usual or usual >= MORE_WORK * kernels):
        evidence.append(Evidence(Fact.KERNELS, round(kernels), "a step", rank=rank, peers=round(usual)))
    if odd.held:
        evidence.append(Evidence(Fact.WAITS_FOR_CORE_BEYOND_TYPICAL, stored(odd.held[1]), "ms", rank=odd.held[0]))
    longest = max(odd.every, key=lambda number: step_ms(odd.run, number))
    least = _NAMED_PART * longer_ms(odd.run, longest)
    extra = [one for one in odd.worst.summary.host.extra if one.step == longest and one.ms >= least]
    return evidence + [
        Evidence(Fact.HOST_LONGER_IN, stored(one.ms), "ms", rank=rank, step=one.step, subject=one.name)
        for one in extra[:_MOST_NAMED]
    ]


def causes_of_unlike(inputs: Inputs) -> dict[str, int]:
    """Why recorded steps are unlike the others, by the rank that takes longest for itself: how often each came."""
    run = inputs.run
    starts = first_uses(run)
    found: dict[str, int] = {}
    before = None
    for number in run.unlike:
        if number in starts or longer_ms(run, number) <= 0:
            continue
        worst = max(run.ranks, key=lambda times: _own_excess_ms(times, (number,)))
        cause, _ = _cause(worst, replace(run, unlike=(number,)))
        found[cause] = found.get(cause, 0) + (before != (number - 1, cause))
        before = number, cause
    return found


def _own_excess_ms(times: RankTimes, unlike: tuple[int, ...]) -> float:
    """What a rank's own time in these steps exceeds its typical steps by, without waiting for others, ms."""
    return sum(_growth(times, unlike).values())


def _growth(times: RankTimes, unlike: tuple[int, ...]) -> dict[str, float]:
    """Growth of the rank's own buckets in these steps, ms over all of them."""
    odd = np.isin(times.summary.step_numbers, unlike)
    return {bucket: float((times.buckets[bucket][odd] / 1e6 - times.mean_ms(bucket)).sum()) for bucket in OWN_BUCKETS}


def _ranks_alike(run: CrossRank, worst: RankTimes, cause: str) -> list[int]:
    """The ranks that are in these steps for that reason, half as much as the worst or more."""
    if cause == "other_work":  # it is known by its kernels: some ranks may be through with it sooner
        more = {times.summary.rank: _more_kernels(times, run.unlike) for times in run.ranks}
        return [rank for rank, count in more.items() if count >= _ALSO * more[worst.summary.rank]]
    least = _ALSO * _own_excess_ms(worst, run.unlike)
    return [
        times.summary.rank
        for times in run.ranks
        if times is worst or (_own_excess_ms(times, run.unlike) >= least and _cause(times, run)[0] == cause)
    ]


def _more_kernels(times: RankTimes, unlike: tuple[int, ...]) -> float:
    kernels, usual = _kernels(times, unlike)
    return kernels - usual


def _cause(times: RankTimes, run: CrossRank) -> tuple[str, tuple[str, float] | None]:
    """Why, and the region that says so: by what the host was in, else by the bucket that grew most. What explains less
    than a quarter of what these steps take longer in all is no cause."""
    unlike = run.unlike
    growth = _growth(times, unlike)
    least = _LEAST_PART * sum(longer_ms(run, number) for number in unlike)
    extra = [one for one in times.summary.host.extra if one.step in unlike]
    long = [one for one in extra if one.ms >= least / len(unlike)]
    if found := _named(times, long):
        return found
    if sum(growth.values()) < least:
        return "unknown", None  # the rank waits for others
    if most := _longest([one for one in long if is_first_use(one)]):
        return FIRST_USE, most
    asking = [one for one in extra if one.allocating_ms >= _MOST_OF_REGION * one.ms]
    if sum(one.allocating_ms for one in asking) >= least and (most := _longest(asking)):
        return ALLOCATES, most
    if _does_other_work(times, run):
        return "other_work", None
    return _grown_most(growth, 2 * least, on_gpu=times.summary.on_gpu), None


def _named(times: RankTimes, long: Sequence[ExtraRegion]) -> tuple[str, tuple[str, float]] | None:
    """The cause that a region is named after. One that is in each step, and only slower in these, names none."""
    total, more = dict(times.summary.host.regions), defaultdict[str, float](float)
    for one in times.summary.host.extra:
        more[one.name] += one.ms
    for cause, pattern in _REGIONS:
        new = (one for one in long if pattern.search(one.name) and more[one.name] >= _OWN * total.get(one.name, 0.0))
        if most := _longest(list(new)):
            return cause, most
    return None


def _grown_most(growth: dict[str, float], least: float, *, on_gpu: bool) -> str:
    """The cause behind the bucket that grew most, where that is enough."""
    if not on_gpu:  # what it computes is the host's time too
        growth["idle_host"] += growth.pop("compute")
    bucket = max(growth, key=lambda name: growth[name])
    return CAUSE_OF.get(bucket, "unknown") if growth[bucket] >= least else "unknown"


def _cause_of_worst(times: RankTimes, run: CrossRank) -> tuple[str, tuple[str, float] | None]:
    """The same of the rank that takes longest for itself: what a trace that is cut off lacks is no cause."""
    cause, region = _cause(times, run)
    return ("unknown" if region is None and times.summary.incomplete else cause), region


def _does_other_work(times: RankTimes, run: CrossRank) -> bool:
    """Whether these steps run so many more kernels that this is why they take longer."""
    kernels, usual = _kernels(times, run.unlike)
    longer = float(np.mean([step_ms(run, number) for number in run.unlike])) / run.step_ms - 1
    return kernels >= MORE_WORK * usual and kernels - usual >= _LEAST_PART * longer * usual


def _longest(regions: Sequence[ExtraRegion]) -> tuple[str, float] | None:
    """The name of the one that takes longest, and its ms."""
    most = max(regions, key=lambda one: one.ms, default=None)
    return None if most is None else (most.name, most.ms)


def _kernels(times: RankTimes, unlike: tuple[int, ...]) -> tuple[float, float]:
    """Kernels a step: in these steps, and in typical ones."""
    counts = times.summary.inventory.step_kernels
    odd = np.isin(times.summary.step_numbers, unlike)
    typical = counts[times.typical]
    return float(counts[odd].mean()) if odd.any() else 0.0, float(typical.mean()) if len(typical) else 0.0
