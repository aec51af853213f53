"""What is said of an idle device: the finding, and what to add where only the profiler makes it look worse."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
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
    workers_needed,
)
from traceops.rules.inputs import Inputs
from traceops.rules.memory import ASKS_DRIVER

_REGION = "Optimizer.step#"  # as torch names it
_MULTI = re.compile(r"^aten::_(fused|foreach_(add|addcmul|addcdiv|lerp))_")  # all parameters in a few launches


def optimizer_time(times: RankTimes, idle_ms: float) -> tuple[str, float] | None:
    """The optimizer's step of a rank, and what its device idles meanwhile for late launches, ms per step; None where
    that is not most of it. idle_ms: all of it."""
    took = times.mean(times.summary.host.optimizing) / 1e6
    name = next((name for name, _ in times.summary.host.regions if _REGION in name), None)
    return None if name is None or took < _MOSTLY * idle_ms else (name, took)


# TO-I001 where the host does few long things, not many short ones: what, and that more work a launch is no cure.

MEMORY = "takes_memory"
UNSEEN = "nothing_recorded"
RECORDS = "records"
FIRST_USE = "first_use"
COMPILING = "compiles"
ON_CPU = "computes_on_cpu"
_LEAST_PCT = 10.0  # of the step
_LEAST_SHARE = 0.2  # of the idle time
_MOSTLY = 0.5  # of the idle time: from there it is what to fix
_OFTEN = 5.0  # times a step: libraries that start take memory too
_COMPILER = "torch.compile (dynamo_timed)"
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
        if COMPILES.search(self.held.name):
            return COMPILING
        if self.held.unseen or (_NO_WORK.match(self.held.name) and not COMPUTES.match(self.held.name)):
            return UNSEEN
        call = _CALL.match(self.held.name)
        if call and (call[1] in _TAKES if call[1] else self.count >= _OFTEN and ALLOCATES.search(self.held.name)):
            return MEMORY
        once = not call[1] if call else self.count <= _FIRST * self.held.launches
        if self.steps == 1 and once:  # a cold program's first launches are many
            return FIRST_USE
        return ON_CPU if COMPUTES.match(self.held.name) and not self.held.launches else UNSEEN


def of_held(found: Finding, rule: Rule, inputs: Inputs) -> Finding:
    """The finding with what holds the host for long, where that is much of the idle time."""
    rank = next((e.rank for e in found.evidence if e.rank is not None), None)
    if (times := inputs.run.times_of(rank)) is None or not times.typical.any():
        return found
    idle_ms, parts = times.mean_ms("idle_host"), _parts(times)
    mostly = sum(part.ms for part in parts) >= _MOSTLY * idle_ms
    if found.advice == rule.advice_for("optimizer"):  # whose state may lie on the CPU
        on_cpu = sum(part.ms for part in parts if part.advice == ON_CPU) >= _MOSTLY * idle_ms
        return replace(found, advice=rule.advice_for(ON_CPU)) if on_cpu else found
    known = found.facts or {}  # where less is claimed than is recorded, what is recorded is no part of it
    named = not (known.get("optimizer") or known.get("recorded"))
    if not mostly:
        found = _on_cpu(found, rule, times, inputs)
    if named and parts and parts[0].ms >= max(_LEAST_PCT / 100 * times.step_ms, _LEAST_SHARE * idle_ms):
        first, ms = parts[0], stored(min(parts[0].ms, idle_ms))  # two threads may each be in one
        evidence = Evidence(Fact.HELD_IN, ms, inputs.run.step_words.unit("ms"), rank=rank, subject=first.what)
        inside, what = (first.held.operator or None, None) if first.held.unseen else (None, first.what)
        found = restated(found, HostBound, first=Held(ms=ms, what=what, inside=inside))
        found = replace(found, evidence=(*found.evidence, evidence))
        mostly |= bool(COMPILES.search(first.held.name))
    return _advised(found, parts, rule, times) if mostly else found


def _advised(found: Finding, parts: Sequence[_Part], rule: Rule, times: RankTimes) -> Finding:
    """The finding with what to do about most of it, or to record: without stacks it may be anything."""
    again = [one.ms for one in parts if one.steps > 1 and ALLOCATES.search(one.held.name)]
    if sum(again) >= _MOSTLY * times.mean_ms("idle_host"):
        return replace(restated(found, HostBound, for_memory=True), advice=ASKS_DRIVER.advice)
    total = {UNSEEN: 0.0}
    for part in parts if found.proof(Fact.HELD_IN) else ():
        total[part.advice] = total.get(part.advice, 0.0) + part.ms
    key = max(total, key=lambda one: total[one])
    if key == FIRST_USE:  # the profiler may start there as well
        found = restated(found, HostBound, profiler="", own=None, cost=None)
    return replace(
        found, advice=rule.advice_for(RECORDS if key == UNSEEN and not times.summary.meta.with_stack else key)
    )


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
    """By name, most idle time first. What a damaged trace has lost looks like nothing recorded."""
    alike, parts = defaultdict[tuple[str, str], list[HeldLaunches]](list), []
    for held in times.summary.held:
        if not (held.unseen and times.summary.damage):
            name = _COMPILER if COMPILES.search(held.name) else held.name
            alike[name, held.operator * held.unseen].append(held)
    for (name, _), some in alike.items():
        took, count = (
            np.sum(own, axis=0)[times.typical] for own in zip(*((o.idle_ns, o.count) for o in some), strict=True)
        )
        held = some[0]
        if len(some) > 1:
            held = HeldLaunches(name, "", held.idle_ns, held.count, any(one.launches for one in some))
        if took.any():
            steps = int((took >= _FULL * took.mean()).sum())
            parts.append(_Part(held, mean_ms(took), float(count.mean()), steps))
    return sorted(parts, key=lambda part: -part.ms)


_ALSO = 0.5  # of the worst rank's share: from there on a rank is named beside it
_MOST_CALLS = 3
_LEAST_COST = 0.1  # of the idle time: less of it is not told
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
    if optimizer is not None and not worst.bounded:
        facts |= {"optimizer": optimizer[0], "optimizer_ms": stored(optimizer[1])}
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
    return found


def _of_loading(
    inputs: Inputs, worst: Idle, ranks: Sequence[int], saved: float | None
) -> tuple[dict[str, Any], tuple[Evidence, ...]]:
    """What the loader's workers do, how many would be enough, and whether others' loaders are as slow."""
    words = inputs.run.step_words
    facts, evidence = not_by_workers(next_batch(inputs, worst))
    if not facts and (not worst.bounded or worst.light or worst.in_time_ms is not None):
        gain = worst.ms if worst.bounded or saved is None else saved
        cost = 0.0 if measured(inputs) else recording_ms(worst.times)
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
    if inputs.slowdown is None:
        cost = 0.0 if measured(inputs) else recording_ms(worst.times)
        if cost < _LEAST_COST * worst.ms:
            return facts
        return facts | {"profiler": "own", "own": stored(worst.ms - cost), "cost": stored(cost)}
    return facts | ({"profiler": "slowed", "slowdown": stored(inputs.slowdown)} if inputs.slowdown > _SLOWED else {})


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
    calls = sorted(calls, key=lambda one: (-one[0], -one[1]))[:_MOST_CALLS]
    least, found = _LEAST_SHARE * sum(idle_ms for idle_ms, *_ in calls), list[Evidence]()
    for idle_ms, usual, call in calls:
        name = f"{call.call} in {call.operator}" if call.operator else call.call
        if idle_ms < least or not stored(idle_ms):
            continue
        if round(usual, 1):
            found.append(Evidence(Fact.BLOCKING_CALL, round(usual, 1), words.unit("calls"), rank=rank, subject=name))
        found.append(Evidence(Fact.IDLE_AFTER, stored(idle_ms), words.unit("ms"), rank=rank, subject=name))
    return tuple(found)
