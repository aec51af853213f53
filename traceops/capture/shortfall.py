"""What to say of a capture that ended before its schedule was complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from traceops.capture.first_window import FIRST
from traceops.capture.manifest import ScriptProfilerRecord
from traceops.capture.schedule import Schedule
from traceops.core.capture_failure import shorter_schedule


def shortfall(
    schedule: Schedule, done: int, kept: Sequence[int], theirs: ScriptProfilerRecord | None, counts: str | None
) -> str:
    """Why not all was recorded, and what would help.

    done: steps. kept: recorded ones. theirs: a profiler of the script's own that was in the way, as `in_the_way` says.
    counts: what ends a step by itself, as `--step-on` has it; None where the script calls `step`.
    """
    if counts is not None and done == 0:
        return (
            f"no {'optimizer step' if counts == 'optimizer' else 'forward pass'} was seen, so "
            "nothing was recorded; does the script use torch.optim? If not: --step-on forward takes each call of "
            "the model for a step, or say where steps end with traceops.capture(...) and step()"
        )
    steps = f"{'' if counts is None else f'{counts} '}step{'' if done == 1 else 's'}"
    only = f"only {done} {steps}, the schedule needs {schedule.total_steps} ({schedule.explain()})"
    if theirs is not None and (not kept or kept[-1] < FIRST.total_steps - 1):
        held = f"recorded was step {kept[0]} alone" if kept else "nothing was recorded"
        return (
            f"{only}; {held}: the script's own profiler was at work from step {theirs['first']} on, and two cannot "
            "record at once. Take it out for this run, or analyze the trace that it writes"
        )
    if not kept or kept[-1] >= FIRST.total_steps:
        return f"{only}; train longer, or pass lower --skip-first, --unprofiled, --warmup or --active"
    recorded = f"step{'s' if len(kept) > 1 else ''} {' and '.join(map(str, kept))}"
    shorter = shorter_schedule(asdict(schedule), done)
    better = shorter is not None and done > FIRST.total_steps
    advice = f"; for later ones: {shorter.flags}" if shorter is not None and better else ""
    return f"{only}; recorded were the first whole ones, {recorded}{advice}"


def in_the_way(theirs: ScriptProfilerRecord | None, done: int) -> ScriptProfilerRecord | None:
    """The script's own profiler, if it was at work in the steps that the first window would have taken."""
    return theirs if theirs is not None and theirs["first"] < FIRST.total_steps <= done else None
