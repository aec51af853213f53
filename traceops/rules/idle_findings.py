"""What is said of an idle device: the finding, and what to add where only the profiler makes it look worse."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traceops.across.rank_times import RankTimes
from traceops.core.arrays import mean_ms, median
from traceops.core.claims import reason, restated
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding, Severity
from traceops.core.rule import Rule
from traceops.core.units import stored
from traceops.core.words import WINDOW, StepWords
from traceops.measure.host import COMPUTES, HeldLaunches
from traceops.measure.host_rows import ALLOCATES, COMPILES
from traceops.rules.idle_time import (
    Held,
    HostBound,
    Idle,
    Idles,
    Turns,
    in_time_ms,
    measured,
    next_batch,
    not_by_workers,
    recording_ms,
    slow_loader,
    within_lateness_ms,
    workers_needed,
)
from traceops.rules.inputs import Inputs
from traceops.rules.memory import ASKS_DRIVER

_REGION = "Optimizer.step#"  # as torch names it
_MULTI = re.compile(r"^aten::_(fused|foreach_(add|addcmul|addcdiv|lerp))_")  # all parameters in a few launches
_LEAST_OF_STEP = 0.25


def optimizer_time(times: RankTimes, idle_ms: float) -> tuple[str, float] | None:
    """The optimizer's step of a rank and its host time, ms per step; None where that is not most of why it idles. Nor
    where it calls a closure: then the forward and the backward pass are a part of it. idle_ms: a step, while the host
    was late. The region must take a quarter of the step, and half as long as that."""
    if times.summary.host.closure:
        return None
    steps = max(len(times.duration), 1)
    named = [(ms / steps, name) for name, ms in times.summary.host.regions if _REGION in name]
    took, name = max(named, default=(0.0, ""))
    if took < _LEAST_OF_STEP * times.step_ms or took < idle_ms / 2:
        return None
    return name, took


# TO-I001 where the host does few long things, not many short ones: what, and that more work a launch is no cure.

CALLS = "long_calls"
MEMORY = "takes_memory"
PLANS = "plans_again"
UNSEEN = "nothing_recorded"
RECORDS = "records"
FIRST_USE = "first_use"
COMPILING = "compiles"
ON_CPU = "computes_on_cpu"
_LEAST_PCT = 10.0  # of the step
_LEAST_SHARE = 0.2  # of the idle time
_MOSTLY = 0.5  # of the idle time: from there it is what to fix
_LEAST_PART = 0.1  # of the idle time: from there one is named
_MOST_NAMED = 3
_OFTEN = 1.5  # times a step: from there the number is given
_FULL = 0.5  # of the mean step's: a step that has it
_FIRST = 10.0  # calls of operators that launch
_NO_WORK = re.compile(r"aten::|CompiledFunction|Torch-Compiled Region")  # by itself: some of aten, and what runs Python
# What may load a kernel or start a library, as cudaFree does: others take or pin memory, wait, or make a graph.
_CALL = re.compile(r"(?:cuda|hip|cu)(?=[A-Z])\w*?(Alloc|Register|Synchronize|Memcpy|Memset|Graph|$)")
_TAKES = ("Alloc", "Register")


class _Part(Struct, frozen=True):
    """One operator or call, or what the trace does not show: idle time and stretches of a typical step."""

    held: HeldLaunches
    ms: float
    count: float
    steps: int  # of the typical ones that have it

    @property
    def what(self) -> str:
        """'cudaMalloc (aten::empty)'."""
        if self.held.unseen:
            return self.held.operator or reason("idle", "unseen")
        return self.held.name + f" ({self.held.operator})" * bool(self.held.operator)

    @property
    def advice(self) -> str:
        """The key of what to do about it. What launches, or calls the driver, once, may load what is used first. An
        operator that computes nothing takes long for what holds the thread there; a compiled one runs Python."""
        if self.held.unseen or (_NO_WORK.match(self.held.name) and not COMPUTES.match(self.held.name)):
            return UNSEEN
        call = _CALL.match(self.held.name)
        if call and (call[1] in _TAKES if call[1] else self.count >= _OFTEN and ALLOCATES.search(self.held.name)):
            return MEMORY
        once = not call[1] if call else self.count <= _FIRST * self.held.launches
        if self.steps == 1 and once:  # a cold program's first launches are many
            return FIRST_USE
        return PLANS if self.held.launches and not call else ON_CPU if COMPUTES.match(self.held.name) else CALLS


def of_held(found: Finding, rule: Rule, inputs: Inputs) -> Finding:
    """The finding with what holds the host for long, where that is much of the idle time."""
    rank = next((e.rank for e in found.evidence if e.rank is not None), None)
    if (times := inputs.run.times_of(rank)) is None or not times.typical.any():
        return found
    idle_ms, parts = times.mean_ms("idle_host"), _parts(times)
    whole = min(sum(part.ms for part in parts), idle_ms)  # two threads may each do one
    named = [part for part in parts if part.ms >= _LEAST_PART * idle_ms][:_MOST_NAMED]
    by_optimizer = found.advice == rule.advice_for("optimizer")
    if whole < _MOSTLY * idle_ms and not by_optimizer:
        found = _on_cpu(found, rule, times, inputs)
    if not named or whole < max(_LEAST_PCT / 100 * times.step_ms, _LEAST_SHARE * idle_ms):
        return found
    words = inputs.run.step_words
    evidence = [Evidence(Fact.HELD_BY_ONE_THING, stored(whole), words.unit("ms"), rank=rank)]
    for part in named:
        times_in = round(part.count, 1)
        evidence.append(Evidence(Fact.HELD_IN, stored(part.ms), words.unit("ms"), rank=rank, subject=part.what))
        evidence.append(Evidence(Fact.TIMES_IN, times_in, words.unit("times"), rank=rank, subject=part.what))
    found = replace(found, evidence=(*found.evidence, *evidence))
    if by_optimizer:  # in which that is
        return found
    if not (found.facts or {}).get("optimizer"):  # which is named, and may hold it
        first, second = (*(_held(part, int(times.typical.sum())) for part in named[:2]), None)[:2]
        found = restated(found, HostBound, held=stored(whole), first=first, second=second)
    return _advised(found, parts, rule, times, mostly=whole >= _MOSTLY * idle_ms)


def _advised(found: Finding, parts: Sequence[_Part], rule: Rule, times: RankTimes, *, mostly: bool) -> Finding:
    """The finding with what to do about it, or to record: without an operator in the trace it may be one of torch's."""
    part, again = parts[0], [one.ms for one in parts if one.steps > 1 and ALLOCATES.search(one.held.name)]
    if sum(again) >= _MOSTLY * times.mean_ms("idle_host"):
        return replace(restated(found, HostBound, for_memory=True), advice=ASKS_DRIVER.advice)
    if COMPILES.search(part.held.name):
        return replace(found, advice=rule.advice_for(COMPILING))
    if part.advice == FIRST_USE and found.proof(Fact.RECORDING_AT_MOST):  # the profiler may start there as well
        known = tuple(one for one in found.evidence if one.fact is not Fact.RECORDING_AT_MOST)
        found = replace(restated(found, HostBound, profiler="unknown"), evidence=known)
    advice, summary = rule.advice_for(part.advice), times.summary
    if part.advice == UNSEEN and not summary.meta.with_stack:
        advice = f"{advice} {rule.advice_for(RECORDS)}" if summary.host.regions else rule.advice_for(RECORDS)
    return replace(found, advice=advice) if mostly else found


def _on_cpu(found: Finding, rule: Rule, times: RankTimes, inputs: Inputs) -> Finding:
    """The finding with what the host computes itself, where that is most of the idle time."""
    work, words, rank = times.summary.host_work, inputs.run.step_words, times.summary.rank
    ms = 0.0 if work is None else mean_ms(work.idle_ns[times.typical])
    if work is None or ms < max(_LEAST_PCT / 100 * times.step_ms, _MOSTLY * times.mean_ms("idle_host")):
        return found
    evidence = Evidence(Fact.HOST_COMPUTES, stored(ms), words.unit("ms"), rank=rank, subject=", ".join(work.names))
    found = restated(found, HostBound, computes=stored(ms), computes_in=", ".join(work.names))
    return replace(found, evidence=(*found.evidence, evidence), advice=rule.advice_for(ON_CPU))


def _parts(times: RankTimes) -> list[_Part]:
    """Most idle time first. What a damaged trace has lost looks like nothing recorded."""
    parts = []
    for held in times.summary.held:
        took, count = held.idle_ns[times.typical], held.count[times.typical]
        if took.any() and not (held.unseen and times.summary.damage):
            steps = int((took >= _FULL * took.mean()).sum())
            parts.append(_Part(held, mean_ms(took), float(count.mean()), steps))
    return sorted(parts, key=lambda part: -part.ms)


def _held(part: _Part, steps: int) -> Held:
    few = part.steps < steps
    return Held(
        ms=stored(part.ms),
        what=None if part.held.unseen else part.what,
        inside=part.held.operator or None if part.held.unseen else None,
        count=stored(part.count) if part.count >= _OFTEN and not few else None,
        steps=part.steps if few else None,
        of=steps if few else None,
    )


_ALSO = 0.5  # of the worst rank's share: from there on a rank is named beside it
_MOST_CALLS = 3
_SLOWED = 1.2  # profiled ÷ unprofiled step from which host times are mostly the profiler's


class IdleJudgement(Struct, frozen=True):
    """Which bucket a rule judges, and from which percent of the step it is how severe."""

    rule: Rule
    bucket: str
    bounds: tuple[float, float, float]  # info, warning, error
    cause: str
    change: str  # of traceops.across.replay.what_if
    claim: type[Idles]
    whole_change: bool = True  # whether `change` takes away this bucket only, so that its saving is the rule's
    detail: Callable[[RankTimes, StepWords], tuple[Evidence, ...]] = lambda times, words: ()


def finding_of(
    kind: IdleJudgement, severity: Severity, inputs: Inputs, idle: Sequence[Idle], saved: float | None, *, damaged: bool
) -> Finding:
    """A finding about the worst of these ranks, which names those that are hardly better. saved: what a step gains
    without this idle time, ms; None where nothing tells. damaged: whether all these traces have lost events, which
    looks like idle time."""
    words, slowdown = inputs.run.step_words, inputs.slowdown
    worst = max(idle, key=lambda one: one.pct)
    by_light, by_trace = _hit(kind, idle, worst)
    named = _numbers(by_light) | _numbers(by_trace)
    ranks = [rank for one in idle if (rank := one.times.summary.rank) in named]
    rank = worst.times.summary.rank
    impact = impact_ms(kind, inputs, idle, worst, saved)
    gain = impact if worst.light or saved is not None else None
    evidence = _evidence(kind, worst, idle, inputs.run.step_ms, gain, words)
    facts = _of_profiler(kind, worst, idle, inputs)
    optimizer = optimizer_time(worst.times, worst.recorded_ms) if kind.bucket == "idle_host" else None
    if kind.bucket == "idle_host":
        facts["turns"] = _turns(kind, worst, by_light, by_trace, inputs)
        if _bounded_by_trace(worst, inputs):
            evidence += (Evidence(Fact.RECORDING_AT_MOST, stored(recording_ms(worst.times)), "ms", rank=rank),)
    if optimizer is not None:
        name, took = optimizer
        facts |= {"optimizer": name, "optimizer_ms": stored(took), "optimizer_recorded": worst.light}
        evidence += (Evidence(Fact.OPTIMIZER_STEP, stored(took), words.unit("ms"), rank=rank),)
    if kind.bucket == "idle_input":
        of_loading, shown = _of_loading(inputs, worst, ranks, saved)
        facts, evidence = facts | of_loading, evidence + shown
        facts["unseen"] = not worst.times.summary.on_gpu
    claim = kind.claim(
        window=words is WINDOW,
        ranks=tuple(ranks) or (rank,),
        all_ranks=1 < len(ranks) == len(inputs.run.ranks),
        several=len(ranks) > 1,
        rank=rank,
        ms=stored(worst.ms),
        step=stored(worst.step_ms),
        pct=stored(worst.pct),
        **facts,
    )
    confidence: Confidence = "low" if damaged else _confidence(kind, slowdown, worst.light)
    costs = None if impact is None else stored(impact)
    found = kind.rule.finding(severity, confidence, claim, evidence, ranks=ranks, impact_ms=costs, cause=kind.cause)
    if optimizer is not None and not any(_MULTI.match(name) for name in dict(worst.times.summary.host.regions)):
        return replace(found, advice=kind.rule.advice_for("optimizer"))
    return replace(found, advice=kind.rule.advice_for("no_gpu")) if facts.get("unseen") else found


def _of_loading(
    inputs: Inputs, worst: Idle, ranks: Sequence[int], saved: float | None
) -> tuple[dict[str, Any], tuple[Evidence, ...]]:
    """What the loader's workers do, how many would be enough, and whether others' loaders are as slow."""
    words = inputs.run.step_words
    facts, evidence = not_by_workers(next_batch(inputs, worst))
    if not facts and (not worst.bounded or worst.light or worst.in_time_ms is not None):
        gain = worst.ms if worst.bounded or saved is None else saved
        cost = 0.0 if measured(inputs) else within_lateness_ms(worst.times)
        need, shown = workers_needed(
            worst.times, gain, inputs.manifest, words, step_ms=worst.step_ms, recording_ms=cost
        )
        facts, evidence = {"need": need}, evidence + shown
    if (slow := slow_loader(inputs.run, ranks, worst.step_ms)) is not None:
        facts |= {"slow_rank": slow[0], "slow_ms": stored(slow[1])}
        evidence += (Evidence(Fact.OTHER_LOADER, stored(slow[1]), words.unit("ms"), rank=slow[0]),)
    return facts, evidence


def _hit(kind: IdleJudgement, idle: Sequence[Idle], worst: Idle) -> tuple[list[Idle], list[Idle]]:
    """Ranks that are hardly better than the worst: by what is claimed, and by the traces, where these say other ranks.
    Of two hosts the one is the later now and the other then: the device that waits for its host in the light window may
    wait for another rank in the traces. A rank that neither is idle nor waits without the profiler is not named."""
    hit = [one for one in idle if one.pct >= max(kind.bounds[0], _ALSO * worst.pct)]
    if not worst.light or kind.bucket != "idle_host":
        return hit, []
    least = max(kind.bounds[0], _ALSO * max(one.recorded_pct for one in idle))
    room = kind.bounds[0] / 100 * worst.step_ms
    return hit, [one for one in idle if one.recorded_pct >= least and one.ms + one.wait_ms >= room]


def _numbers(idle: Sequence[Idle]) -> set[int]:
    return {one.times.summary.rank for one in idle}


def _turns(
    kind: IdleJudgement, worst: Idle, by_light: Sequence[Idle], by_trace: Sequence[Idle], inputs: Inputs
) -> Turns | None:
    """That another host is late in another light window, or in the traces; None where the same one is."""
    later = None if inputs.undisturbed is None else inputs.undisturbed.turns(kind.bounds[0])
    if later is not None:
        return Turns(rank=later.rank, other=later.other, steps=later.steps, other_steps=later.other_steps)
    if _numbers(by_trace) <= _numbers(by_light):
        return None
    shown = max(by_trace, key=lambda one: one.recorded_pct)
    return None if shown is worst else Turns(rank=worst.times.summary.rank, other=shown.times.summary.rank)


def _evidence(
    kind: IdleJudgement,
    worst: Idle,
    idle: Sequence[Idle],
    recorded_step_ms: float,
    saved: float | None,
    words: StepWords,
) -> tuple[Evidence, ...]:
    rank, shares = worst.times.summary.rank, [one.pct for one in idle]
    spread = f"{min(shares):.1f} / {median(shares):.1f} / {worst.pct:.1f}"
    return (
        Evidence(Fact.BUCKET, stored(worst.ms), words.unit("ms"), rank=rank, subject=kind.bucket),
        Evidence(Fact.BUCKET_PCT, round(worst.pct, 1), "%", kind.bounds[0], rank=rank, subject=kind.bucket),
        *([Evidence(Fact.BUCKET_PCT_SPREAD, spread, "%", subject=kind.bucket)] if len(idle) > 1 else []),
        Evidence(Fact.STEP, stored(worst.step_ms if worst.bounded else recorded_step_ms), "ms", subject=words.noun),
        *(() if saved is None else (Evidence(Fact.SAVED_WITHOUT_IT, stored(saved), words.unit("ms")),)),
        *([Evidence(Fact.RECORDED, stored(worst.recorded_ms), words.unit("ms"), rank=rank)] if worst.bounded else []),
        *kind.detail(worst.times, words),
    )


def _of_profiler(kind: IdleJudgement, worst: Idle, idle: Sequence[Idle], inputs: Inputs) -> dict[str, Any]:
    """What of it is the profiler's, as the claim has it; nothing where that needs no word."""
    whole = worst.ms >= worst.recorded_ms and not (worst.light and kind.bucket == "idle_host")
    facts: dict[str, Any] = {}
    if whole and worst.step_ms != worst.times.step_ms:
        facts["plain"] = stored(worst.step_ms)
    if worst.light and whole:
        return facts
    if worst.bounded or worst.in_time_ms is not None:
        shown = max(idle, key=lambda one: one.recorded_ms) if worst.light else worst
        facts |= {"recorded": stored(shown.recorded_ms), "recorded_step": stored(shown.times.step_ms), "plain": None}
        if worst.light:
            return facts | {"profiler": "light"}
        if worst.by_looks:
            return facts | {"profiler": "samples"}
        if worst.in_time_ms is not None:
            return facts | {"profiler": "in_time", "in_time": stored(worst.in_time_ms)}
        return facts | {"profiler": "no_room"}
    if kind.bucket != "idle_host":
        return facts
    if inputs.slowdown is None and not _bounded_by_trace(worst, inputs):
        return facts | {"profiler": "unknown"}
    if inputs.slowdown is None:
        cost = recording_ms(worst.times)
        return facts | {"profiler": "own", "own": stored(worst.ms - cost), "cost": stored(cost)}
    return facts | ({"profiler": "slowed", "slowdown": stored(inputs.slowdown)} if inputs.slowdown > _SLOWED else {})


def _bounded_by_trace(worst: Idle, inputs: Inputs) -> bool:
    """Whether only the trace tells how much of it is the profiler's own cost at most."""
    return not measured(inputs) and recording_ms(worst.times) > 0


def impact_ms(
    kind: IdleJudgement, inputs: Inputs, idle: Sequence[Idle], worst: Idle, saved: float | None
) -> float | None:
    """How much shorter a step would be, ms: as the replay has it, within what is this bucket's; None if not known."""
    if saved is None:
        return worst.ms
    if worst.light and kind.bucket == "idle_host" and inputs.undisturbed is not None:
        return in_time_ms(idle, inputs.run, inputs.undisturbed, saved)
    return saved if kind.whole_change and not worst.bounded else min(worst.ms, saved)


def _confidence(kind: IdleJudgement, slowdown: float | None, light: bool) -> Confidence:
    """The profiler costs host time, so a claim about the host is as good as what is known of that cost."""
    if kind.bucket != "idle_host":
        return "high"
    if slowdown is None or (light and slowdown > _SLOWED):  # that the host is the cause is the trace's word
        return "medium"
    return "low" if slowdown > _SLOWED else "high"


def stretched(idle: Sequence[Idle]) -> dict[str, str | float]:
    """What a clear verdict adds where only the profiler makes it look worse, as facts of its reason."""
    worst = max(idle, key=lambda one: one.recorded_ms)
    if worst.ms >= worst.recorded_ms:
        return {}
    of_step = {"recorded": worst.recorded_ms, "step": worst.step_ms}
    return {**of_step, "light": worst.ms} if worst.light else {**of_step, "plain": "yes"}


def blocking_calls(times: RankTimes, words: StepWords) -> tuple[Evidence, ...]:
    """The calls of a typical step: those after which the device idles longest, and how long, then the most frequent."""
    rank, mean = times.summary.rank, times.mean
    calls = [(mean(call.idle_ns) / 1e6, mean(call.calls), call) for call in times.summary.host.blocking]
    found = []
    for idle_ms, usual, call in sorted(calls, key=lambda one: (-one[0], -one[1]))[:_MOST_CALLS]:
        name = f"{call.call} in {call.operator}" if call.operator else call.call
        if round(usual, 1):
            found.append(Evidence(Fact.BLOCKING_CALL, round(usual, 1), words.unit("calls"), rank=rank, subject=name))
        if stored(idle_ms):
            found.append(Evidence(Fact.IDLE_AFTER, stored(idle_ms), words.unit("ms"), rank=rank, subject=name))
    return tuple(found)
