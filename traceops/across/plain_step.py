"""What a step takes that nothing records: of a whole run, the steps that the profiler has not touched yet, or all.

torch's profiler leaves CUPTI attached behind its windows, and that slows hosts for the rest of the process, on two
H200s by up to 28 %. So where the steps before the first window are shorter than those behind it, they are taken. Where
CUPTI was ended behind the last window, and without GPUs, what differs is the training's own: all steps count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traceops.across.behind_windows import last_of_window
from traceops.across.run_steps import Mask, WholeRun
from traceops.core.shorter_schedule import steps_needed
from traceops.measure.profiler_cost import SLOWED
from traceops.measure.typical import usual_steps
from traceops.traces.run_manifest import ended_cupti, last_recorded

_ENOUGH = 6  # steps without recording, of the whole run
_LEAST = 4  # on either side of the windows
_MOST = 1.5  # behind ÷ before: beyond that nobody knows whether it is the profiler's or the training's own
_MORE = 1.03  # behind ÷ before from which it is told


@dataclass(frozen=True)
class StepsBefore:
    """Steps before the windows: how many, the shortest and the longest of them."""

    count: int
    least_ms: float
    most_ms: float


@dataclass(frozen=True)
class SlowerBehind:
    """Steps behind the windows take longer than those before them."""

    before_ms: float
    behind_ms: float

    @property
    def much(self) -> bool:
        """Whether by so much that it is told."""
        return self.behind_ms >= SLOWED * self.before_ms


@dataclass(frozen=True)
class PlainStep:
    """ms: without recording, before any window where that is shorter. whole_ms: of all such steps.

    near_ms: of those that a light window lies among. behind_ms: the same, None where it is hardly longer than ms, or
    where the profiler is not what made it so. before: the steps that `ms` is the mean of; None where all such steps of
    the run count. longer: behind the windows, whatever the reason.
    """

    ms: float
    whole_ms: float
    near_ms: float
    behind_ms: float | None = None
    before: StepsBefore | None = None
    longer: SlowerBehind | None = None

    @property
    def far_apart(self) -> bool:
        """Whether steps behind the windows take so much longer that those before need not be of the same training."""
        return self.behind_ms is not None and self.behind_ms > _MOST * self.ms

    @property
    def all_count(self) -> bool:
        """Whether all steps of the run without recording count: none of them has the profiler in it."""
        return self.before is None

    @classmethod
    def even(cls, ms: float) -> PlainStep:
        """Of a run whose steps are alike before its windows and behind them."""
        return cls(ms, ms, ms)


def plain_step(run: WholeRun | None, manifest: Mapping[str, Any], *, on_gpu: bool) -> PlainStep | None:
    """Of the whole run; where it tells too little, of the steps that the capture timed. None without either."""
    stays = on_gpu and not ended_cupti(manifest)
    alone_from = None if stays else steps_needed(manifest.get("schedule")) if on_gpu else 0
    found = None if run is None else _of_run(run, alone_from, None if stays else last_recorded(manifest))
    if found is not None and not stays:
        return replace(PlainStep.even(found.whole_ms), longer=found.longer)
    known = manifest.get("unprofiled_step_ms")
    if found is None and isinstance(known, (int, float)) and known > 0:
        return PlainStep.even(float(known))
    return found


def _of_run(run: WholeRun, alone_from: int | None, last: int | None) -> PlainStep | None:
    """As if the profiler stayed behind its windows; None where too few steps are like the others.

    Between the windows of a schedule CUPTI stays, also where it is ended behind the last. alone_from: the step from
    which on it was ended behind each; None: behind none that other windows follow. last: the last step that torch's
    profiler recorded, where light windows may follow each other behind it; None where none do, or nothing tells.
    """
    if run.typical_steps < _ENOUGH:
        return None
    step = run.step_ms
    recorded = np.flatnonzero(~run.timed & ~np.isnan(step))
    recorded = recorded[recorded > 0]  # the first step is the program's start
    if not len(recorded):
        return PlainStep.even(run.typical_ms)
    number = np.arange(len(step))
    end = run.numbers[recorded[-1]] if last is None else last_of_window(run.numbers[recorded], last)
    before, behind = (run.like & side for side in (number < recorded[0], run.numbers > end))
    alone = before | behind
    if alone_from is not None:
        alone |= run.like & (run.numbers >= alone_from)
    if alone.sum() < _ENOUGH:
        return None
    whole = float(step[alone].mean())  # as typical_ms: so many steps need no trimming, which makes uneven ones short
    if run.by_turns or min(before.sum(), behind.sum()) < _LEAST:
        return PlainStep.even(whole)
    early, late = _usual_ms(run, before), _usual_ms(run, behind)
    if early >= late:
        return PlainStep.even(whole)
    more = late if late > _MORE * early else None
    own = step[before][usual_steps(step[before])]
    before_them = StepsBefore(len(own), float(own.min()), float(own.max()))
    return PlainStep(early, whole, late, more, before_them, None if more is None else SlowerBehind(early, more))


def _usual_ms(run: WholeRun, steps: Mask) -> float:
    """Of the few steps on one side of the windows."""
    took = run.step_ms[steps]
    return float(took[usual_steps(took)].mean())
