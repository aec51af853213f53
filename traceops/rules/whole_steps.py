"""TO-V010: traces without a complete step, and what would record one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceops.core.findings import Evidence
from traceops.core.rank_text import ranks_text
from traceops.core.rule import Rule, Verdict
from traceops.core.shorter_schedule import counted, shorter_schedule
from traceops.core.words import STEPS_FOUND, steps_found_text
from traceops.measure.summary import RankSummary, numbered_steps
from traceops.rules.inputs import Inputs

NO_WHOLE_STEP = Rule(
    id="TO-V010",
    title="No complete step",
    fires=(
        "Info where the traces mark no step and no repetition shows one. All numbers are then of the whole "
        "window, and findings about time are warnings at most. Warning where a capture of traceops recorded no "
        "complete step: then nothing is said about time."
    ),
    advice=(
        "Record whole steps: `traceops run`, or torch.profiler with a schedule and profiler.step() where each "
        "iteration ends."
    ),
    by_cause=(
        ("too_short", "Leave fewer steps out before the recorded ones, or let the program run longer."),
        ("given_way", "Take the profiler out of the program for this run: two cannot record at once."),
    ),
)
NO_STEP_REASON = "no step was recorded whole, see TO-V010"
_MOST_SAID = 4


def judge(inputs: Inputs) -> Verdict:
    """Whether there are steps to speak of."""
    ranks = inputs.ranks
    cut = [summary.rank for summary in ranks if summary.steps_by == "cut_off"]
    if cut:
        return _cut_off(cut, len(ranks), inputs.manifest)
    without = [summary.rank for summary in ranks if summary.steps_by == "window"]
    if len(without) < len(ranks):
        return NO_WHOLE_STEP.clear(_found(ranks))
    return NO_WHOLE_STEP.verdict(
        NO_WHOLE_STEP.finding(
            "info",
            "high",
            "The traces mark no steps, and none could be found by what repeats: all numbers are of the whole window.",
            [Evidence("steps", 0, "steps", 1)],
            ranks=without,
        )
    )


def _found(ranks: Sequence[RankSummary]) -> str:
    first = next(summary for summary in ranks if summary.steps_by in STEPS_FOUND)
    count = len(numbered_steps(ranks))
    return steps_found_text(count, first.steps_by, first.step_mark)


def _cut_off(ranks: Sequence[int], count: int, manifest: dict[str, Any]) -> Verdict:
    entries = [entry for entry in manifest.get("ranks") or () if entry.get("rank") in ranks]
    steps = min((n for entry in entries if isinstance(n := entry.get("steps"), int)), default=None)
    shorter = None if steps is None else shorter_schedule(manifest.get("schedule"), steps)
    said = "No step was recorded whole"
    if len(ranks) < count:
        said = f"On rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks, _MOST_SAID)} no step was recorded whole"
    evidence = [Evidence("whole steps", 0, "steps", 1)]
    cause = None
    if any(entry.get("status") == "given_way" for entry in entries):
        said += ", because the program started a profiler of its own"
        cause = "given_way"
    elif shorter is not None and steps is not None:
        said += f": the program ended after {counted(steps)}, and the schedule needs {shorter.needed}"
        cause = "too_short"
        evidence.append(Evidence("steps of the program", steps, "steps", shorter.needed))
    said += ". Nothing is said about its time."
    if shorter is not None and cause == "too_short":
        said += f" {_would_record(shorter.active)}: traceops run {shorter.flags}"
    return NO_WHOLE_STEP.verdict(NO_WHOLE_STEP.finding("warning", "high", said, evidence, ranks=ranks, cause=cause))


def ended_before(manifest: Mapping[str, Any], rank: int) -> tuple[int, int] | None:
    """The steps of a rank whose program ended by itself before its window, and those that the schedule needs."""
    entry: Mapping[str, Any] = next((one for one in manifest.get("ranks") or () if one.get("rank") == rank), {})
    steps = entry.get("steps")
    if entry.get("status") != "finished" or entry.get("traces") or not isinstance(steps, int):
        return None
    shorter = shorter_schedule(manifest.get("schedule"), steps)
    return None if shorter is None else (steps, shorter.needed)


def _would_record(steps: int) -> str:
    return "What would record one" if steps == 1 else f"What would record {steps}"
