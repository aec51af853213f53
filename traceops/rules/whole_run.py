"""TO-W001: what the whole training spends on steps unlike the others, by what the ranks do in them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from traceops.across.run_steps import Occasion, Share, WholeRun
from traceops.across.whole_run import START
from traceops.core.facts import Fact
from traceops.core.findings import MOST_STEPS, Evidence, Finding, Severity, severity_of
from traceops.core.rank_text import who
from traceops.core.rule import Verdict, described
from traceops.core.units import ms_text, percent_text, stored
from traceops.rules.inputs import Inputs
from traceops.rules.shared import NOT_OBSERVED
from traceops.rules.steps import causes_of_unlike
from traceops.traces.observed import Compilation
from traceops.traces.run_manifest import step_kinds

UNLIKE_OVER_RUN = described("whole_run", "TO-W001")
RULES = (UNLIKE_OVER_RUN,)
_NEARLY_ALL, _MOST = 0.8, 0.5  # of what is seen, in one function
_REASONS = 2  # of torch, that are quoted
_NUMBERS = re.compile(r"\d+")

_BOUNDS = (1.0, 10.0)  # percent of the run
_ERROR_PCT = 30.0
_WASTE = ("recompilation", "garbage_collection", "allocator", "input")  # what no training wants
_LEAST_TIMES = 2
_SPREAD_PCT = 3.0  # of a rank's time: told also where no step stands out by it
_LEAST_STEPS = 3
_PART = 0.5  # of that time: if less of it makes steps stand out, it is told as a part of all steps
_ID = re.compile(r"\d+/\d+: ")  # of the guard, in torch's reason
_IS = {
    "evaluation": "Evaluation takes",
    "inference": "Calling a model without gradients takes",
    "checkpoint": "Writing checkpoints takes",
    "recompilation": "torch.compile compiling again takes",
    "garbage_collection": "Python's garbage collector takes",
    "allocator": "Emptying the allocator's cache takes",
    "input": "Data that comes late takes",
    "logging": "Logging takes",
    "host": "A function that most steps do not call takes",
}


def judge(inputs: Inputs) -> list[Verdict]:
    """Steps of the whole run that are unlike the others."""
    run = inputs.whole
    if run is None:
        return [UNLIKE_OVER_RUN.not_evaluated(NOT_OBSERVED)]
    recorded = causes_of_unlike(inputs)
    told = [one for one in run.occasions if _is_told(one, recorded.get(one.cause, 0))]
    in_most = []
    for cause, shares in (("garbage_collection", run.garbage), ("recompilation", run.compiled)):
        unlike = sum(one.share_pct for one in told if one.cause == cause)
        if not shares or unlike > _PART * max(one.pct for one in shares.values()):
            continue  # nearly all of it lies in steps that stand out by it
        if (spread := _spread(run, cause, shares, inputs)) is not None:
            in_most.append(spread)
    causes = {one.cause for one in in_most}
    found = [*in_most, *(_finding(run, one, inputs) for one in told if one.cause not in causes)]
    if not any(one.cause == "recompilation" for one in found):
        found += _recompiled(run, inputs)
    timed = int(run.timed.sum())
    beyond = timed - run.typical_steps - len(run.start)
    said = f"of {timed} steps timed without the profiler, {beyond} are unlike the others"
    again = next((one for one in run.occasions if one.cause == "unknown" and one.times >= _LEAST_TIMES), None)
    if found or again is None or again.share_pct < _BOUNDS[0]:
        return [UNLIKE_OVER_RUN.verdict(*found, clear=f"{said}, and nothing that comes again takes 1 % of the run")]
    took = f"what takes longer there came {again.times} times, {percent_text(again.share_pct)} of the run"
    kinds = step_kinds(inputs.manifest)
    if kinds is not None and kinds.may_be(again.steps, timed):
        return [UNLIKE_OVER_RUN.clear(f"{said}, as another optimizer's {kinds.another} comes: {took}")]
    if again.share_pct < _BOUNDS[1]:
        return [UNLIKE_OVER_RUN.clear(f"{said}, and nothing shows why: {took}")]
    return [UNLIKE_OVER_RUN.not_evaluated(f"{said}, and nothing shows why: {took}")]


def _is_told(one: Occasion, recorded: int) -> bool:
    """recorded: how often the same came in the recorded steps, which are none of those that it counts."""
    if one.cause == "unknown" or one.share_pct < _BOUNDS[0]:
        return False
    least = 3 if one.cause in ("host", "input") else _LEAST_TIMES
    return one.times >= _LEAST_TIMES and one.times + recorded >= least


def _severity(cause: str, share_pct: float) -> Severity:
    error = _ERROR_PCT if cause in _WASTE else float("inf")
    return severity_of(share_pct, *_BOUNDS, error) or "info"


def _finding(run: WholeRun, one: Occasion, inputs: Inputs) -> Finding:
    each = one.more_ms / one.times
    where = "" if one.place is None else f", {_how_much(one.placed)}in {one.place.said}"
    again = what_was_compiled(inputs, one) if one.cause == "recompilation" else ""
    on = "" if set(one.ranks) == set(run.ranks) else f" on {who(one.ranks)}"
    message = (
        f"{_IS[one.cause]} {percent_text(one.share_pct)} of the run{on}{where}: {one.times} times in "
        f"{int(run.timed.sum())} steps, {ms_text(each)} ms each beyond the typical step of "
        f"{ms_text(run.typical_ms)} ms.{again}"
    )
    evidence = [
        Evidence(Fact.OF_RUN, round(one.share_pct, 2), "%", _BOUNDS[0]),
        Evidence(Fact.CAME, one.times, f"times in {int(run.timed.sum())} steps"),
        Evidence(Fact.LONGER, stored(each), "ms each time"),
        Evidence(Fact.TYPICAL_STEP, stored(run.typical_ms), "ms"),
    ]
    if one.place is not None and one.place.text:
        evidence.append(Evidence(Fact.LINE, one.place.text, file=one.place.file, line=max(one.place.line, 1)))
    return UNLIKE_OVER_RUN.finding(
        _severity(one.cause, one.share_pct),
        "high" if one.cause != "host" else "medium",
        message,
        evidence,
        ranks=one.ranks,
        steps=one.steps[:MOST_STEPS],
        impact_ms=stored(one.more_ms / max(int(run.timed.sum()), 1)),
        cause=one.cause,
    )


def _how_much(placed: float) -> str:
    return "" if placed > _NEARLY_ALL else "most of it " if placed > _MOST else "some of it "


def what_was_compiled(inputs: Inputs, one: Occasion) -> str:
    """What was compiled most, and torch's own reason."""
    return _place([c for own in inputs.observed for c in own.compilations if c.step in one.steps])


def _place(told: Sequence[Compilation]) -> str:
    if not told:
        return ""
    most = max(told, key=lambda c: (c.us, c.function))
    spent: dict[str, int] = defaultdict(int)
    longest: dict[str, Compilation] = {}
    for one in sorted(told, key=lambda c: c.us):
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
    why = f"; torch says why: {', '.join(parts)}" if parts else ""
    return f" It compiles {most.function} ({most.file.rpartition('/')[2]}:{most.line}){why}."


def _why(one: Compilation) -> str:
    """Torch's own reason in short, without the program's line."""
    said = (one.reason or "").strip()
    first = said.splitlines()[0].partition("  #")[0][:120] if said else ""
    return _ID.sub("", first).strip().rstrip(".")


def _recompiled(run: WholeRun, inputs: Inputs) -> list[Finding]:
    """What torch says that it compiled again, in recorded steps and at the start too: no other part counts these.

    A remark where it has ended with the start.
    """
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
    if len(steps) < _LEAST_TIMES or share < _BOUNDS[0]:
        return []
    count = len(run.numbers) - 1
    return [
        UNLIKE_OVER_RUN.finding(
            _severity("recompilation", share) if steps[-1] >= first + START else "info",
            "high",
            f"{_IS['recompilation']} {percent_text(share)} of rank {rank}'s time: in {len(steps)} of {count} steps "
            f"after the first, {ms_text(spent_ms)} ms in all, the last time in step {steps[-1]}.{_place(again[rank])}",
            [
                Evidence(Fact.OF_TIME, stored(share), "%", _BOUNDS[0], rank),
                Evidence(Fact.CAME, len(steps), f"of {count} steps", rank=rank),
                Evidence(Fact.COMPILING, stored(spent_ms), "ms", rank=rank),
            ],
            ranks=[rank],
            steps=steps[:MOST_STEPS],
            impact_ms=stored(spent_ms / count),
            cause="recompilation",
        )
    ]


def _spread(run: WholeRun, cause: str, shares: Mapping[int, Share], inputs: Inputs) -> Finding | None:
    """What takes a part of a rank's time without making steps stand out by it."""
    rank = max(shares, key=lambda one: shares[one].pct)
    share = shares[rank]
    if share.pct < _SPREAD_PCT or share.steps < _LEAST_STEPS:
        return None
    steps = int(run.timed.sum()) - len(run.start)
    own = [c for one in inputs.observed if one.rank == rank for c in one.compilations if c.reason]
    where = _place(own) if cause == "recompilation" else ""
    return UNLIKE_OVER_RUN.finding(
        _severity(cause, share.pct),
        "high",
        f"{_IS[cause]} {percent_text(share.pct)} of rank {rank}'s time, in {share.steps} of {steps} steps.{where}",
        [
            Evidence(Fact.OF_TIME, round(share.pct, 2), "%", _SPREAD_PCT, rank),
            Evidence(Fact.CAME, share.steps, f"of {steps} steps", rank=rank),
        ],
        ranks=[rank],
        impact_ms=stored(share.pct / 100 * run.total_ms / max(int(run.timed.sum()), 1)),
        cause=cause,
    )
