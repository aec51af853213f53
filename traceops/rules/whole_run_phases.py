"""TO-W004: the rounds and stages of a training, and the phases of its loop that are no training steps."""

from __future__ import annotations

from msgspec.structs import replace

from traceops.across.phases import Phase, Rounds, Stage
from traceops.across.run_steps import Occasion
from traceops.core.claims import Claim, reason
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, severity_of
from traceops.core.rule import Verdict, described
from traceops.core.units import stored
from traceops.rules.inputs import Inputs
from traceops.rules.whole_run_claims import BOUNDS

PHASES = described("whole_run", "TO-W004")
RULES = (PHASES,)


class LoopPhases(Claim, frozen=True, kw_only=True):
    """A round of `round_steps` steps takes round_ms; several: where it is more than one. outside: what is no training.

    place, pct: of the longest phase that is none, most: the function that takes most of it, where it is another.
    """

    family = "whole_run"
    kind = "loop_phases"
    round_steps: int
    round_ms: float
    rounds: int
    several: bool
    phases: tuple[Phase, ...]
    stages: tuple[Stage, ...]
    place: str | None = None
    pct: float | None = None
    most: str | None = None
    outside: float | None = None


def judge(inputs: Inputs) -> list[Verdict]:
    """Whether the loop has phases: a round of several steps, stages, or much beside the training in each step."""
    rounds = inputs.rounds
    if inputs.whole is None:
        return [PHASES.not_evaluated(reason("whole_run", "not_observed"))]
    if rounds is None or (rounds.steps == 1 and not rounds.stages and outside_pct(rounds) < BOUNDS.phases_pct[0]):
        return [PHASES.clear(reason("whole_run", "no_phases", timed=int(inputs.whole.timed.sum())))]
    outside = [one for one in rounds.phases if _is_outside(one)]
    claim = LoopPhases(
        round_steps=rounds.steps,
        round_ms=rounds.ms,
        rounds=rounds.count,
        several=rounds.steps > 1,
        phases=rounds.phases,
        stages=rounds.stages,
        outside=outside_pct(rounds) if len(outside) > 1 else None,
    )
    cause = "stages" if rounds.stages else None
    if outside:
        longest, most = outside[0], outside[0].most
        place, in_most = longest.place.said, None if most is None else most.said
        claim, cause = replace(claim, place=place, pct=longest.pct, most=in_most), longest.does
    evidence = [Evidence(Fact.ROUND, stored(rounds.ms), f"ms, {rounds.steps} steps, {rounds.count} times")]
    evidence += [
        Evidence(Fact.IN_PHASE, stored(one.ms), "ms a round", subject=one.place.said, file=one.place.file,
                 line=max(one.place.line, 1))
        for one in rounds.phases
    ]  # fmt: skip
    return [
        PHASES.verdict(
            PHASES.finding(
                severity_of(outside_pct(rounds), *BOUNDS.phases_pct) or "info",
                "high" if rounds.steps > 1 or rounds.stages else "medium",
                claim,
                evidence,
                ranks=inputs.whole.ranks,
                impact_ms=stored(sum(one.ms for one in outside) / rounds.steps) if outside else None,
                cause=cause,
            )
        )
    ]


def is_phase(one: Occasion, rounds: Rounds | None) -> bool:
    """Whether steps unlike the others are a phase of the loop, which this rule names."""
    if rounds is None or not rounds.explained:
        return False
    if one.place is None:
        return one.cause == "unknown" and all(rounds.is_long(step) for step in one.steps)
    most = outside_pct(rounds) >= BOUNDS.phases_pct[1]  # else it may be an evaluation, and TO-W001 the more severe rule
    return (one.cause == "host" or (one.cause == "inference" and most)) and rounds.holds(one.place)


def _is_outside(one: Phase) -> bool:
    """Whether a phase is no training, and nothing that other rules judge."""
    return not one.trains and not one.waits and one.does not in ("input", "recompilation", "allocator")


def outside_pct(rounds: Rounds) -> float:
    """Of a round, percent, what is no training."""
    return sum(one.pct for one in rounds.phases if _is_outside(one))
