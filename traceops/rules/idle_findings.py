"""What is said of an idle device: the finding, and what to add where only the profiler makes it look worse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceops.across.cross_rank import RankTimes
from traceops.core.arrays import mean_ms
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding, Severity
from traceops.core.rank_text import who_of
from traceops.core.rule import Rule
from traceops.core.step_words import StepWords
from traceops.core.units import count_text, ms_text, stored
from traceops.measure.held_launches import HeldLaunches
from traceops.rules.idle_time import (
    Idle,
    in_time_ms,
    measured,
    next_batch,
    not_by_workers,
    of_program,
    other_loaders,
    recording_ms,
    within_lateness_ms,
    workers_needed,
)
from traceops.rules.inputs import Inputs
from traceops.rules.plain_cure import told_of_turns

# Whether it is the optimizer's step that keeps a host from launching, and what to do about that.


_REGION = "Optimizer.step#"  # as torch names it
_LEAST_OF_STEP = 0.25


def optimizer_time(times: RankTimes, idle_ms: float) -> tuple[str, float] | None:
    """The optimizer's step of a rank and its host time, ms a step; None where that is not most of why it idles.

    Nor where it calls a closure: then the forward and the backward pass are a part of it.
    idle_ms: a step, while the host was late. The region must take a quarter of the step, and half as long as that.
    """
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
UNSEEN = "nothing_recorded"
ON_CPU = "computes_on_cpu"
_LEAST_PCT = 10.0  # of the step
_LEAST_SHARE = 0.2  # of the idle time
_MOSTLY = 0.5  # of the idle time: from there it is what to mend
_LEAST_PART = 0.1  # of the idle time: from there one is named
_MOST_NAMED = 3
_MOST_SAID = 2
_OFTEN = 1.5  # times a step: from there the number is told
_FULL = 0.5  # of the mean step's: a step that has it


@dataclass(frozen=True)
class _Part:
    """One operator or call, or what the trace does not show: idle time and stretches of a typical step."""

    held: HeldLaunches
    ms: float
    count: float
    steps: int  # of the typical ones that have it

    @property
    def what(self) -> str:
        """'cudaMalloc (aten::empty)'."""
        if self.held.unseen:
            return "what the trace does not show"
        return self.held.name + f" ({self.held.operator})" * bool(self.held.operator)


def of_held(found: Finding, rule: Rule, inputs: Inputs) -> Finding:
    """The finding with what holds the host for long, where that is much of the idle time."""
    rank = next((e.rank for e in found.evidence if e.rank is not None), None)
    times = inputs.run.times_of(rank)
    if times is None or not times.typical.any():
        return found
    idle_ms, parts = times.mean_ms("idle_host"), _parts(times)
    whole = min(sum(part.ms for part in parts), idle_ms)  # two threads may each do one
    named = [part for part in parts if part.ms >= _LEAST_PART * idle_ms][:_MOST_NAMED]
    if whole < _MOSTLY * idle_ms and found.proof(Fact.OPTIMIZER_STEP) is None:
        found = _on_cpu(found, rule, times, inputs)
    if not named or whole < max(_LEAST_PCT / 100 * times.step_ms, _LEAST_SHARE * idle_ms):
        return found
    words = inputs.run.step_words
    evidence = [Evidence(Fact.HELD_BY_ONE_THING, stored(whole), words.unit("ms"), rank=rank)]
    for part in named:
        evidence.append(Evidence(Fact.HELD_IN, stored(part.ms), words.unit("ms"), rank=rank, subject=part.what))
        evidence.append(
            Evidence(Fact.TIMES_IN, round(part.count, 1), words.unit("times"), rank=rank, subject=part.what)
        )
    found = replace(found, evidence=(*found.evidence, *evidence))
    if found.proof(Fact.OPTIMIZER_STEP) is not None:  # in which that is
        return found
    message = f"{found.message} {_said(named[:_MOST_SAID], whole, times, words)}"
    advice = rule.advice_for(UNSEEN if named[0].held.unseen else CALLS)
    return replace(found, message=message, advice=advice if whole >= _MOSTLY * idle_ms else found.advice)


def _on_cpu(found: Finding, rule: Rule, times: RankTimes, inputs: Inputs) -> Finding:
    """The finding with what the host computes itself, where that is most of the idle time."""
    work, words, rank = times.summary.host_work, inputs.run.step_words, times.summary.rank
    ms = 0.0 if work is None else mean_ms(work.idle_ns[times.typical])
    if work is None or ms < max(_LEAST_PCT / 100 * times.step_ms, _MOSTLY * times.mean_ms("idle_host")):
        return found
    evidence = Evidence(Fact.HOST_COMPUTES, stored(ms), words.unit("ms"), rank=rank, subject=", ".join(work.names))
    said = f"For {ms_text(ms)} ms {words.per} the host computes on the CPU instead, in {', '.join(work.names)}."
    return replace(
        found, message=f"{found.message} {said}", evidence=(*found.evidence, evidence), advice=rule.advice_for(ON_CPU)
    )


def held_mostly(found: Finding, lost_ms: float) -> Evidence | None:
    """The one long thing that is most of these ms, where the advice is about such."""
    first, ms = found.proof(Fact.HELD_IN), found.number(Fact.HELD_IN)
    whole, idle_ms = found.number(Fact.HELD_BY_ONE_THING), found.number(Fact.RECORDED) or found.number(Fact.BUCKET)
    if ms is None or whole is None or idle_ms is None or found.proof(Fact.OPTIMIZER_STEP) is not None:
        return None
    return first if whole >= _MOSTLY * idle_ms and _MOSTLY * lost_ms <= ms <= lost_ms else None


def _parts(times: RankTimes) -> list[_Part]:
    """Most idle time first. What a damaged trace has lost looks like nothing recorded."""
    parts = []
    for held in times.summary.held:
        took, count = held.idle_ns[times.typical], held.count[times.typical]
        if took.any() and not (held.unseen and times.summary.damage):
            steps = int((took >= _FULL * took.mean()).sum())
            parts.append(_Part(held, mean_ms(took), float(count.mean()), steps))
    return sorted(parts, key=lambda part: -part.ms)


def _said(named: Sequence[_Part], whole_ms: float, times: RankTimes, words: StepWords) -> str:
    """'The host spends 141 ms a step in long stretches: 101 ms in aten::add (20 times) and …'."""
    steps = int(times.typical.sum())
    alone = len(named) == 1 and ms_text(named[0].ms) == ms_text(whole_ms)
    listed = []
    for part in named:
        told = []
        if part.steps < steps:
            told.append(f"mostly in {part.steps} of {steps} steps")
        elif part.count >= _OFTEN:
            told.append(f"{count_text(part.count)} times")
        took = "" if alone else f"{ms_text(part.ms)} ms in "
        listed.append(took + part.what + f" ({', '.join(told)})" * bool(told))
    what = " in " if alone else " in long stretches: "
    return f"The host spends {ms_text(whole_ms)} ms {words.per}{what}{' and '.join(listed)}."


_ALSO = 0.5  # of the worst rank's share: from there on a rank is named beside it
_MOST_CALLS = 3
_SLOWED = 1.2  # profiled ÷ unprofiled step from which host times are mostly the profiler's


@dataclass(frozen=True)
class IdleJudgement:
    """Which bucket a rule judges, and from which percent of the step it is how severe."""

    rule: Rule
    bucket: str
    bounds: tuple[float, float, float]  # info, warning, error
    cause: str
    gpu_only: bool
    change: str  # of traceops.across.replay.what_if
    message: str  # {where}, {ms}, {pct}, {words}: StepWords
    whole_change: bool = True  # whether `change` takes away this bucket only, so that its saving is the rule's
    detail: Callable[[RankTimes, StepWords], tuple[Evidence, ...]] = lambda times, words: ()


def finding_of(
    kind: IdleJudgement, severity: Severity, inputs: Inputs, idle: Sequence[Idle], saved: float | None, *, damaged: bool
) -> Finding:
    """A finding about the worst of these ranks, which names those that are hardly better.

    saved: what a step gains without this idle time, ms; None where nothing tells. damaged: whether all these traces
    have lost events, which looks like idle time.
    """
    words, slowdown = inputs.run.step_words, inputs.slowdown
    worst = max(idle, key=lambda one: one.pct)
    by_light, by_trace = _hit(kind, idle, worst)
    named = _numbers(by_light) | _numbers(by_trace)
    ranks = [rank for one in idle if (rank := one.times.summary.rank) in named]
    rank = worst.times.summary.rank
    impact = impact_ms(kind, inputs, idle, worst, saved)
    gain = impact if worst.light or saved is not None else None
    evidence = _evidence(kind, worst, idle, inputs.run.step_ms, gain, words)
    at_most = "" if len(ranks) == 1 else "up to "
    message = kind.message.format(
        where=who_of(ranks, len(inputs.run.ranks)), ms=f"{at_most}{worst.ms:.2f}", pct=worst.pct, words=words
    )
    message += _of_profiler(kind, worst, idle, inputs) + _by_turns(kind, worst, by_light, by_trace, inputs)
    if kind.bucket == "idle_host" and _bounded_by_trace(worst, inputs):
        evidence += (Evidence(Fact.RECORDING_AT_MOST, stored(recording_ms(worst.times)), "ms", rank=rank),)
    optimizer = optimizer_time(worst.times, worst.recorded_ms) if kind.bucket == "idle_host" else None
    if optimizer is not None:
        name, took = optimizer
        when, of = (" In the recorded steps, on", "") if worst.light else (" On", f" of {words.each}")
        message += f"{when} rank {rank} the optimizer alone ({name}) keeps the host for {took:.1f} ms{of}."
        evidence += (Evidence(Fact.OPTIMIZER_STEP, stored(took), words.unit("ms"), rank=rank),)
    if kind.bucket == "idle_input":
        said, told = not_by_workers(next_batch(inputs, worst))
        if not said and (not worst.bounded or worst.light or worst.in_time_ms is not None):
            said, told = workers_needed(
                worst.times,
                worst.ms if worst.bounded or saved is None else saved,
                inputs.manifest,
                words,
                step_ms=worst.step_ms,
                recording_ms=0.0 if measured(inputs) else within_lateness_ms(worst.times),
            )
        message, evidence = message + said, evidence + told
        said, told = other_loaders(inputs.run, ranks, worst.step_ms)
        message, evidence = message + said, evidence + told
    found = kind.rule.finding(
        severity,
        "low" if damaged else _confidence(kind, slowdown, worst.light),
        message,
        evidence,
        ranks=ranks,
        impact_ms=None if impact is None else stored(impact),
        cause=kind.cause,
    )
    return found if optimizer is None else replace(found, advice=kind.rule.advice_for("optimizer"))


def _hit(kind: IdleJudgement, idle: Sequence[Idle], worst: Idle) -> tuple[list[Idle], list[Idle]]:
    """Ranks that are hardly better than the worst: by what is claimed, and by the traces, where these say other ranks.

    Of two hosts the one is the later now and the other then: the device that waits for its host in the light window
    may wait for another rank in the traces. A rank that neither is idle nor waits without the profiler is not named.
    """
    hit = [one for one in idle if one.pct >= max(kind.bounds[0], _ALSO * worst.pct)]
    if not worst.light or kind.bucket != "idle_host":
        return hit, []
    least = max(kind.bounds[0], _ALSO * max(one.recorded_pct for one in idle))
    room = kind.bounds[0] / 100 * worst.step_ms
    return hit, [one for one in idle if one.recorded_pct >= least and one.ms + one.wait_ms >= room]


def _numbers(idle: Sequence[Idle]) -> set[int]:
    return {one.times.summary.rank for one in idle}


def _by_turns(
    kind: IdleJudgement, worst: Idle, by_light: Sequence[Idle], by_trace: Sequence[Idle], inputs: Inputs
) -> str:
    """That another host is late in another light window, or in the traces; '' where the same one is."""
    if kind.bucket == "idle_host" and (told := told_of_turns(inputs.undisturbed, kind.bounds[0])):
        return f"{told} While one is late, the others wait for it."
    if _numbers(by_trace) <= _numbers(by_light):
        return ""
    shown = max(by_trace, key=lambda one: one.recorded_pct)
    if shown is worst:
        return ""
    rank, other = worst.times.summary.rank, shown.times.summary.rank
    light = "the light window" if inputs.undisturbed is None else inputs.undisturbed.light
    return f" Whose host is the latest changes: rank {rank}'s in {light}, rank {other}'s in the traces."


def _evidence(
    kind: IdleJudgement,
    worst: Idle,
    idle: Sequence[Idle],
    recorded_step_ms: float,
    saved: float | None,
    words: StepWords,
) -> tuple[Evidence, ...]:
    rank, shares = worst.times.summary.rank, [one.pct for one in idle]
    return (
        Evidence(Fact.BUCKET, stored(worst.ms), words.unit("ms"), rank=rank, subject=kind.bucket),
        Evidence(Fact.BUCKET_PCT, round(worst.pct, 1), "%", kind.bounds[0], rank=rank, subject=kind.bucket),
        Evidence(
            Fact.BUCKET_PCT_SPREAD,
            f"{min(shares):.1f} / {np.median(shares):.1f} / {worst.pct:.1f}",
            "%",
            subject=kind.bucket,
        ),
        Evidence(Fact.STEP, stored(worst.step_ms if worst.bounded else recorded_step_ms), "ms"),
        *(() if saved is None else (Evidence(Fact.SAVED_WITHOUT_IT, stored(saved), words.unit("ms")),)),
        *_recorded(worst, words),
        *kind.detail(worst.times, words),
    )


def _of_profiler(kind: IdleJudgement, worst: Idle, idle: Sequence[Idle], inputs: Inputs) -> str:
    """A sentence on what of it is the profiler's, '' where that needs none."""
    slowdown = inputs.slowdown
    whole = worst.ms >= worst.recorded_ms and not (worst.light and kind.bucket == "idle_host")
    of_plain = ""
    if whole and worst.step_ms != worst.times.step_ms:
        of_plain = f" The share is of a step without the profiler, which takes {worst.step_ms:.2f} ms."
    if worst.light and whole:
        return of_plain
    if worst.light:
        shown = max(idle, key=lambda one: one.recorded_ms)
        return (
            " That is of a step without the profiler, by the light window; the traces show up to "
            f"{shown.recorded_ms:.2f} of {shown.times.step_ms:.2f} ms."
        )
    if worst.by_looks:
        return (
            f" The trace shows {worst.recorded_ms:.2f} of {worst.times.step_ms:.2f} ms; a step without the profiler "
            f"takes {worst.step_ms:.2f} ms, and looks at the host there see it wait for so long."
        )
    if worst.in_time_ms is not None:
        return (
            f" The trace shows {worst.recorded_ms:.2f} of {worst.times.step_ms:.2f} ms; a step without the profiler "
            f"takes {worst.step_ms:.2f} ms, and {worst.in_time_ms:.2f} where input is in time."
        )
    if worst.bounded:
        return (
            f" The trace shows {worst.recorded_ms:.2f} of {worst.times.step_ms:.2f} ms, but a step without the "
            f"profiler takes {worst.step_ms:.2f} ms and has no room for more."
        )
    if kind.bucket != "idle_host":
        return of_plain
    if slowdown is None:
        told = "These traces do not tell how much of it is the profiler's own cost"
        return f"{of_plain} {of_program(worst) if _bounded_by_trace(worst, inputs) else told}."
    if slowdown > _SLOWED:
        return f"{of_plain} The profiler made the step {slowdown:.2f} times as long, most of it host time."
    return of_plain


def _bounded_by_trace(worst: Idle, inputs: Inputs) -> bool:
    """Whether only the trace tells how much of it is the profiler's own cost at most."""
    return not measured(inputs) and recording_ms(worst.times) > 0


def _recorded(worst: Idle, words: StepWords) -> tuple[Evidence, ...]:
    if not worst.bounded:
        return ()
    rank = worst.times.summary.rank
    return (Evidence(Fact.RECORDED, stored(worst.recorded_ms), words.unit("ms"), rank=rank),)


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
    if light and slowdown is not None and slowdown > _SLOWED:
        return "medium"  # the device is idle for so long; that the host is the cause is the trace's word
    if slowdown is None:
        return "medium"
    return "low" if slowdown > _SLOWED else "high"


def stretched(idle: Sequence[Idle]) -> str:
    """What a clear verdict adds where only the profiler makes it look worse."""
    worst = max(idle, key=lambda one: one.recorded_ms)
    if worst.ms >= worst.recorded_ms:
        return ""
    if worst.light:
        return (
            f"; the trace shows up to {worst.recorded_ms:.1f} ms, but by the light window it is {worst.ms:.1f} of "
            f"{worst.step_ms:.1f} ms at most"
        )
    return (
        f"; the trace shows up to {worst.recorded_ms:.1f} ms, but a step without the profiler takes "
        f"{worst.step_ms:.1f} ms and has no room for it"
    )


def blocking_calls(times: RankTimes, words: StepWords) -> tuple[Evidence, ...]:
    """The calls of a typical step: those after which the device idles longest, and how long, then the most frequent."""
    rank, calls = times.summary.rank, [call for call in times.summary.host.blocking if call.usual]
    found = []
    for call in sorted(calls, key=lambda one: (-one.idle_ms, -one.usual))[:_MOST_CALLS]:
        name = f"{call.call} in {call.operator}" if call.operator else call.call
        found.append(Evidence(Fact.BLOCKING_CALL, round(call.usual, 1), words.unit("calls"), rank=rank, subject=name))
        if stored(call.idle_ms):
            found.append(Evidence(Fact.IDLE_AFTER, stored(call.idle_ms), words.unit("ms"), rank=rank, subject=name))
    return tuple(found)
