"""What is said of an idle device: the finding, and what to add where only the profiler makes it look worse."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceops.across.cross_rank import RankTimes
from traceops.core.findings import Confidence, Evidence, Finding, Severity
from traceops.core.rank_text import who_of
from traceops.core.rule import Rule
from traceops.core.step_words import StepWords
from traceops.core.units import stored
from traceops.rules.host_turns import told_of_turns
from traceops.rules.idle_cores import next_batch, not_by_workers
from traceops.rules.idle_loading import other_loaders, workers_needed
from traceops.rules.idle_optimizer import optimizer_time
from traceops.rules.idle_recording import AT_MOST, measured, of_program, recording_ms, within_lateness_ms
from traceops.rules.idle_time import Idle, in_time_ms
from traceops.rules.inputs import Inputs
from traceops.rules.plain_cure import RECORDED

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
    evidence = _evidence(kind, worst, idle, inputs.run.step_ms, impact if worst.light else saved, words)
    at_most = "" if len(ranks) == 1 else "up to "
    message = kind.message.format(
        where=who_of(ranks, len(inputs.run.ranks)), ms=f"{at_most}{worst.ms:.2f}", pct=worst.pct, words=words
    )
    message += _of_profiler(kind, worst, idle, inputs) + _by_turns(kind, worst, by_light, by_trace, inputs)
    if kind.bucket == "idle_host" and _bounded_by_trace(worst, inputs):
        evidence += (Evidence(AT_MOST, stored(recording_ms(worst.times)), "ms", rank=rank),)
    optimizer = optimizer_time(worst.times, worst.recorded_ms) if kind.bucket == "idle_host" else None
    if optimizer is not None:
        name, took = optimizer
        when, of = (" In the recorded steps, on", "") if worst.light else (" On", f" of {words.each}")
        message += f"{when} rank {rank} the optimizer alone ({name}) keeps the host for {took:.1f} ms{of}."
        evidence += (Evidence("the optimizer's step", stored(took), words.unit("ms"), rank=rank),)
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
        Evidence(kind.bucket, stored(worst.ms), words.unit("ms"), rank=rank),
        Evidence(f"{kind.bucket}_pct", round(worst.pct, 1), "%", kind.bounds[0], rank=rank),
        Evidence(
            f"{kind.bucket}_pct (least, median, most over ranks)",
            f"{min(shares):.1f} / {np.median(shares):.1f} / {worst.pct:.1f}",
            "%",
        ),
        Evidence("step", stored(worst.step_ms if worst.bounded else recorded_step_ms), "ms"),
        *(() if saved is None else (Evidence("saved without it", stored(saved), words.unit("ms")),)),
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
    return (Evidence(RECORDED, stored(worst.recorded_ms), words.unit("ms"), rank=rank),)


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
    """The calls that block most often in a typical step."""
    counted: dict[str, float] = defaultdict(float)
    for call in times.summary.host.blocking:
        name = f"{call.call} in {call.operator}" if call.operator else call.call
        counted[name] += call.usual
    return tuple(
        Evidence(what, round(count, 1), words.unit("calls"), rank=times.summary.rank)
        for what, count in sorted(counted.items(), key=lambda item: -item[1])[:_MOST_CALLS]
        if count
    )
