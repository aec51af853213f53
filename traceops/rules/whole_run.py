"""TO-W001 and TO-W004: what the whole training spends on steps unlike the others, and the phases of its loop."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from traceops.across.phases import Phase, Rounds, Stage
from traceops.across.run_steps import Occasion, Share, WholeRun
from traceops.across.whole_run import START
from traceops.core.claims import Claim, reason
from traceops.core.facts import Fact
from traceops.core.findings import MOST_STEPS, Confidence, Evidence, Finding, Severity, severity_of
from traceops.core.rule import Verdict, described
from traceops.core.units import percent_text, stored
from traceops.rules.inputs import Inputs
from traceops.rules.shared import line_of
from traceops.rules.steps import causes_of_unlike
from traceops.rules.whole_run_claims import BOUNDS, PartOfRank, PartOfRun
from traceops.traces.observed import Compilation
from traceops.traces.run_manifest import step_kinds

PHASES = described("whole_run", "TO-W004")
PHASE_RULES = (PHASES,)

_MUCH_OFF = 5.0  # points


class LoopPhases(Claim, frozen=True, kw_only=True):
    """A round of `round_steps` steps takes round_ms; several: where it is more than one. outside: what is no training.
    place, pct: of the longest phase that is none, most: the function that takes most of it, where it is another. off:
    how far shares may be off, in points, where that is much."""

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
    off: float | None = None


def judge_phases(inputs: Inputs) -> list[Verdict]:
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
        off=off if (off := max((one.off_pct for one in rounds.phases), default=0.0)) >= _MUCH_OFF else None,
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
    severity = severity_of(outside_pct(rounds), *BOUNDS.phases_pct) or "info"
    confidence: Confidence = "high" if rounds.steps > 1 or rounds.stages else "medium"
    ranks, impact = inputs.whole.ranks, stored(sum(one.ms for one in outside) / rounds.steps) if outside else None
    return [
        PHASES.verdict(
            PHASES.finding(severity, confidence, claim, evidence, ranks=ranks, impact_ms=impact, cause=cause)
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


UNLIKE_OVER_RUN = described("whole_run", "TO-W001")
RULES = (UNLIKE_OVER_RUN,)
_NEARLY_ALL, _MOST = 0.8, 0.5  # of what is seen, in one function
_REASONS = 2  # of torch, that are quoted
_NUMBERS = re.compile(r"\d+")

_WASTE = ("recompilation", "garbage_collection", "allocator", "input")  # what no training wants
_LEAST_TIMES = 2
_LEAST_STEPS = 3
_PART = 0.5  # of that time: if less of it makes steps stand out, it is named as a part of all steps
_ID = re.compile(r"\d+/\d+: ")  # of the guard, in torch's reason


def judge(inputs: Inputs) -> list[Verdict]:
    """Steps of the whole run that are unlike the others."""
    if (run := inputs.whole) is None:
        return [UNLIKE_OVER_RUN.not_evaluated(reason("whole_run", "not_observed"))]
    recorded = causes_of_unlike(inputs)
    named = [
        one for one in run.occasions if _is_named(one, recorded.get(one.cause, 0)) and not is_phase(one, inputs.rounds)
    ]
    in_most = []
    for cause, shares in (("garbage_collection", run.garbage), ("recompilation", run.compiled)):
        unlike = sum(one.share_pct for one in named if one.cause == cause)
        if not shares or unlike > _PART * max(one.pct for one in shares.values()):
            continue  # nearly all of it lies in steps that stand out by it
        if (spread := _spread(run, cause, shares, inputs)) is not None:
            in_most.append(spread)
    causes = {one.cause for one in in_most}
    found = [*in_most, *(_finding(run, one, inputs) for one in named if one.cause not in causes)]
    if not any(one.cause == "recompilation" for one in found):
        found += _recompiled(run, inputs)
    return [UNLIKE_OVER_RUN.verdict(*found) if found else _without_a_cause(run, inputs)]


def _without_a_cause(run: WholeRun, inputs: Inputs) -> Verdict:
    """Clear, or where what comes again takes much of the run for no known cause, not evaluated."""
    timed = int(run.timed.sum())
    counts = {"timed": timed, "beyond": timed - run.typical_steps - len(run.start)}
    unknown = (one for one in run.occasions if one.cause == "unknown" and not is_phase(one, inputs.rounds))
    again = next((one for one in unknown if one.times >= _LEAST_TIMES), None)
    if again is None or again.share_pct < BOUNDS.unlike_pct[0]:
        return UNLIKE_OVER_RUN.clear(reason("whole_run", "few_unlike", **counts))
    kinds = step_kinds(inputs.manifest)
    other = kinds if kinds is not None and kinds.may_be(again.steps, timed) else None
    why = reason(
        "whole_run",
        "unexplained" if other is None else "another_optimizer",
        **counts,
        times=again.times,
        pct=again.share_pct,
        another=None if other is None else other.another,
    )
    little = other is not None or again.share_pct < BOUNDS.unlike_pct[1]
    return UNLIKE_OVER_RUN.clear(why) if little else UNLIKE_OVER_RUN.not_evaluated(why)


def _is_named(one: Occasion, recorded: int) -> bool:
    """recorded: how often the same came in the recorded steps, which are none of those that it counts."""
    if one.cause == "unknown" or one.share_pct < BOUNDS.unlike_pct[0]:
        return False
    least = 3 if one.cause in ("host", "input") else _LEAST_TIMES
    return one.times >= _LEAST_TIMES and one.times + recorded >= least


def _severity(cause: str, share_pct: float) -> Severity:
    error = BOUNDS.waste_pct if cause in _WASTE else float("inf")
    return severity_of(share_pct, *BOUNDS.unlike_pct, error) or "info"


def _finding(run: WholeRun, one: Occasion, inputs: Inputs) -> Finding:
    more, steps, place = one.more_ms / one.times, int(run.timed.sum()), one.place
    compiled = [c for own in inputs.observed for c in own.compilations if c.step in one.steps]
    claim = PartOfRun(
        cause=one.cause,
        pct=one.share_pct,
        ranks=() if set(one.ranks) == set(run.ranks) else tuple(one.ranks),
        times=one.times,
        steps=steps,
        more=more,
        typical=run.typical_ms,
        **what_was_compiled(compiled if one.cause == "recompilation" else ()),
    )
    evidence = [
        Evidence(Fact.OF_RUN, round(one.share_pct, 2), "%", BOUNDS.unlike_pct[0]),
        Evidence(Fact.CAME, one.times, f"times in {steps} steps"),
        Evidence(Fact.LONGER, stored(more), "ms each time"),
        Evidence(Fact.TYPICAL_STEP, stored(run.typical_ms), "ms"),
    ]
    if place is not None:
        placed = "all" if one.placed > _NEARLY_ALL else "most" if one.placed > _MOST else "some"
        claim = replace(claim, place=place.said, placed=placed)
        evidence += line_of(place)
    severity, impact = _severity(one.cause, one.share_pct), stored(one.more_ms / max(steps, 1))
    confidence: Confidence = "high" if one.cause != "host" else "medium"
    ranks, unlike = one.ranks, one.steps[:MOST_STEPS]
    return UNLIKE_OVER_RUN.finding(
        severity, confidence, claim, evidence, ranks=ranks, steps=unlike, impact_ms=impact, cause=one.cause
    )


def what_was_compiled(compilations: Sequence[Compilation]) -> dict[str, Any]:
    """The function that was compiled most, and torch's own reason, as facts of a claim; none where nothing was."""
    if not compilations:
        return {}
    most = max(compilations, key=lambda c: (c.us, c.function))
    spent: dict[str, int] = defaultdict(int)
    longest: dict[str, Compilation] = {}
    for one in sorted(compilations, key=lambda c: c.us):
        if _why(one):
            kind = _NUMBERS.sub("", _why(one))  # of one kind: "expected 32, actual 40" and "… 41"
            spent[kind] += one.us
            longest[kind] = one
    total = max(sum(spent.values()), 1)
    first = sorted(spent, key=lambda kind: (-spent[kind], kind))[:_REASONS]
    parts = [
        _why(longest[kind]) + ("" if len(spent) == 1 else f" ({percent_text(100 * spent[kind] / total)} of it)")
        for kind in first
    ]
    place = f"{most.function} ({most.file.rpartition('/')[2]}:{most.line})"
    return {"compiled": place, "why": ", ".join(parts) or None}


def _why(one: Compilation) -> str:
    """Torch's own reason in short, without the program's line."""
    said = (one.reason or "").strip()
    first = said.splitlines()[0].partition("  #")[0][:120] if said else ""
    return _ID.sub("", first).strip().rstrip(".")


def _recompiled(run: WholeRun, inputs: Inputs) -> list[Finding]:
    """What torch says that it compiled again, in recorded steps and at the start too: no other part counts these. A
    remark where it has ended with the start."""
    first = int(run.numbers[0])
    again = {
        own.rank: [c for c in own.compilations if c.reason and c.step > first and own.rank in run.ranks]
        for own in inputs.observed
    }
    rank = max(again, key=lambda one: sum(c.us for c in again[one]), default=None)
    if rank is None:
        return []
    steps = sorted({c.step for c in again[rank]})
    took_ms = float(np.nansum(run.took_ms[run.ranks.index(rank)][1:])) if steps else 0.0
    spent_ms = sum(c.us for c in again[rank]) / 1e3
    share = min(100 * spent_ms / took_ms, 100.0) if took_ms else 0.0
    if len(steps) < _LEAST_TIMES or share < BOUNDS.unlike_pct[0]:
        return []
    count, cause, compiled = len(run.numbers) - 1, "recompilation", what_was_compiled(again[rank])
    claim = PartOfRank(cause=cause, pct=share, rank=rank, count=len(steps), steps=count, **compiled)
    claim = replace(claim, spent=spent_ms, last=steps[-1])
    evidence = [
        Evidence(Fact.OF_TIME, stored(share), "%", BOUNDS.unlike_pct[0], rank),
        Evidence(Fact.CAME, len(steps), f"of {count} steps", rank=rank),
        Evidence(Fact.COMPILING, stored(spent_ms), "ms", rank=rank),
    ]
    severity, impact = _severity(cause, share) if steps[-1] >= first + START else "info", stored(spent_ms / count)
    found = UNLIKE_OVER_RUN.finding(
        severity, "high", claim, evidence, ranks=[rank], steps=steps[:MOST_STEPS], impact_ms=impact, cause=cause
    )
    return [found]


def _spread(run: WholeRun, cause: str, shares: Mapping[int, Share], inputs: Inputs) -> Finding | None:
    """What takes a part of a rank's time without making steps stand out by it."""
    rank = max(shares, key=lambda one: shares[one].pct)
    share = shares[rank]
    if share.pct < BOUNDS.spread_pct or share.steps < _LEAST_STEPS:
        return None
    steps = int(run.timed.sum()) - len(run.start)
    own = [c for one in inputs.observed if one.rank == rank for c in one.compilations if c.reason]
    compiled = what_was_compiled(own if cause == "recompilation" else ())
    claim = PartOfRank(cause=cause, pct=share.pct, rank=rank, count=share.steps, steps=steps, **compiled)
    evidence = [
        Evidence(Fact.OF_TIME, round(share.pct, 2), "%", BOUNDS.spread_pct, rank),
        Evidence(Fact.CAME, share.steps, f"of {steps} steps", rank=rank),
    ]
    severity, impact = _severity(cause, share.pct), share.pct / 100 * run.total_ms / max(int(run.timed.sum()), 1)
    return UNLIKE_OVER_RUN.finding(
        severity, "high", claim, evidence, ranks=[rank], impact_ms=stored(impact), cause=cause
    )
