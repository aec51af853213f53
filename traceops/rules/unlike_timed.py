"""How much of a run goes to steps unlike the others, over all that were timed (TO-T001)."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.measure.summary import numbered_steps
from traceops.measure.typical import spells, typical_steps
from traceops.rules.inputs import Inputs
from traceops.rules.unlike_start import step_ms
from traceops.traces.run_manifest import manifest_ranks


@dataclass(frozen=True)
class Timed:
    """Steps of the run that were timed, recorded or not: how many, how many are unlike, and their share, percent.

    spells: how often such steps came, neighbours being one time. mean_ms: of a timed step.
    """

    steps: int
    unlike: int
    spells: int
    share_pct: float
    mean_ms: float


# What both rules name alike: of a step that is long for one of these, those that are long for another are not more.
_OF_BOTH = frozenset(("evaluation", "checkpoint", "recompilation", "garbage_collection", "input"))


def timed_steps(inputs: Inputs, run: CrossRank, but: Container[int], cause: str) -> Timed:
    """Recorded and unrecorded steps, each against the typical one of its own kind. but: steps that are left out.

    cause: of the recorded ones. Steps in which the whole run shows another one alone are timed, and none of these.
    """
    every = numbered_steps(times.summary for times in run.ranks)
    numbers = sorted(number for number in every if number not in but)
    unprofiled, alike, others = _unprofiled(inputs, cause)
    recorded = [step_ms(run, number) for number in numbers]
    like = [number not in run.unlike for number in numbers]
    more, total = _beyond_usual(recorded, like), sum(recorded)
    unlike, times = like.count(False), spells([not typical for typical in like])
    if unprofiled:
        more, total = more + _beyond_usual(unprofiled, alike), total + sum(unprofiled)
        unlike, times = unlike + alike.count(False), times + spells([not typical for typical in alike])
    total += sum(others)
    share, steps = 100 * more / total if total else 0.0, len(recorded) + len(unprofiled) + len(others)
    return Timed(steps, unlike, times, share, total / steps if steps else 0.0)


def _unprofiled(inputs: Inputs, cause: str) -> tuple[list[float], list[bool], list[float]]:
    """Steps timed without the profiler, ms, which of them are like the others, and those that have another cause.

    The median over ranks of each. All of them, where the run was observed: that also knows which are typical.
    """
    if (whole := inputs.whole) is not None:
        told = whole.timed & ~np.isin(whole.numbers, whole.start)
        known = {"unknown", cause} if cause in _OF_BOTH else {one.cause for one in whole.occasions}
        own, apart = (
            [number for one in whole.occasions if (one.cause in known) is such for number in one.steps]
            for such in (True, False)
        )
        other = told & np.isin(whole.numbers, apart) & ~np.isin(whole.numbers, own)
        told = told & ~other
        return whole.step_ms[told].tolist(), whole.like[told].tolist(), whole.step_ms[other].tolist()
    series = [own.unprofiled_step_ms for own in manifest_ranks(inputs.manifest)]
    count = min((len(own) for own in series), default=0)
    rows = ([own[i] for own in series] for i in range(count))
    took = [float(np.median([ms for ms in row if ms is not None])) for row in rows if None not in row]
    return took, typical_steps(took).tolist(), []


def _beyond_usual(steps: list[float], like: list[bool]) -> float:
    """What the steps that are unlike the others take beyond the mean of those, all together."""
    usual = [ms for ms, typical in zip(steps, like, strict=True) if typical]
    mean = float(np.mean(usual)) if usual else 0.0
    return sum(ms - mean for ms, typical in zip(steps, like, strict=True) if not typical)
