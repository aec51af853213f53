"""TO-I001 where the host does few long things, not many short ones: what, and that more work a launch is no cure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from traceops.across.cross_rank import RankTimes
from traceops.core.arrays import mean_ms
from traceops.core.findings import Evidence, Finding
from traceops.core.rule import Rule
from traceops.core.step_words import StepWords
from traceops.core.units import count_text, ms_text, stored
from traceops.measure.held_launches import HeldLaunches
from traceops.rules.inputs import Inputs

CALLS = "long_calls"
CALLS_ADVICE = (
    "The host works or waits in single operators or calls: many short launches are not the main trouble. Move "
    "tensors to the device where such an operator computes on the CPU. Where it plans or compiles again for each "
    "shape, pad to few shapes. A launch that is long once loads its kernel: record later steps."
)
UNSEEN = "nothing_recorded"
UNSEEN_ADVICE = (
    "Python or a library holds the host there, such as gc.collect(), numpy, files or a lock: many short launches are "
    "not the main trouble. Where no function is named, with_stack=True or `traceops run` names it. Do it less often, "
    "outside of the step, or on another thread or process while the GPU works."
)
PART = "of it in "  # how the metric of each begins, most first
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
    if not named or whole < max(_LEAST_PCT / 100 * times.step_ms, _LEAST_SHARE * idle_ms):
        return found
    words = inputs.run.step_words
    evidence = [Evidence("idle while the host does one long thing", stored(whole), words.unit("ms"), rank=rank)]
    for part in named:
        evidence.append(Evidence(f"{PART}{part.what}", stored(part.ms), words.unit("ms"), rank=rank))
        evidence.append(Evidence(f"times in {part.what}", round(part.count, 1), words.unit("times"), rank=rank))
    found = replace(found, evidence=(*found.evidence, *evidence))
    if found.advice != rule.advice:  # the optimizer is named, in which that is
        return found
    message = f"{found.message} {_said(named[:_MOST_SAID], whole, times, words)}"
    advice = rule.advice_for(UNSEEN if named[0].held.unseen else CALLS)
    return replace(found, message=message, advice=advice if whole >= _MOSTLY * idle_ms else found.advice)


def held_mostly(found: Finding, rule: Rule, lost_ms: float) -> Evidence | None:
    """The one long thing that is most of these ms, where the advice is about such."""
    first = next((e for e in found.evidence if e.metric.startswith(PART) and e.unit.startswith("ms")), None)
    if first is None or not isinstance(first.value, (int, float)):
        return None
    mended = found.advice in (rule.advice_for(CALLS), rule.advice_for(UNSEEN))
    return first if mended and _MOSTLY * lost_ms <= first.value <= lost_ms else None


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
    """'As recorded, the host is held for 141 ms a step by aten::add (101 ms, 20 times) and …'."""
    steps = int(times.typical.sum())
    alone = len(named) == 1 and ms_text(named[0].ms) == ms_text(whole_ms)
    listed = []
    for part in named:
        told = [] if alone else [f"{ms_text(part.ms)} ms"]
        if part.steps < steps:
            told.append(f"mostly in {part.steps} of {steps} steps")
        elif part.count >= _OFTEN:
            told.append(f"{count_text(part.count)} times")
        listed.append(part.what + f" ({', '.join(told)})" * bool(told))
    return f"As recorded, the host is held for {ms_text(whole_ms)} ms {words.per} by {' and '.join(listed)}."
