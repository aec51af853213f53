"""What a step takes that nothing records, and what the profiler costs the steps that it records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.run_steps import WholeRun
from traceops.across.run_use import recorded_waits
from traceops.core.arrays import Int, Mask, median
from traceops.core.capture_failure import steps_needed
from traceops.measure.host_places import CodePlace, host_times
from traceops.measure.recording import SLOWED, profiler_slowdown
from traceops.measure.steps import usual_steps
from traceops.traces.observed import Observed
from traceops.traces.run_manifest import ended_cupti, last_recorded

_NEAR = 3  # steps from the last recorded one to the first of the light window


def last_of_window(recorded: Int, last: int) -> int:
    """The last recorded step of a window that ends with step `last`, and of the light window right behind it. recorded:
    numbers of the steps in which anything of ours or a profiler of the script's own recorded, in order."""
    for step in recorded[recorded > last].tolist():
        if step - last > _NEAR:
            break
        last = step
    return last


_ENOUGH = 6  # steps without recording, of the whole run
_LEAST = 4  # on either side of the windows
_MOST = 1.5  # behind ÷ before: beyond that nobody knows whether it is the profiler's or the training's own
_MORE = 1.03  # behind ÷ before from which it is told


class StepsBefore(Struct, frozen=True):
    """Steps before the windows: how many, the shortest and the longest of them."""

    count: int
    least_ms: float
    most_ms: float


class SlowerBehind(Struct, frozen=True):
    """Steps behind the windows take longer than those before them."""

    before_ms: float
    behind_ms: float

    @property
    def much(self) -> bool:
        """Whether by so much that it is told."""
        return self.behind_ms >= SLOWED * self.before_ms


class PlainStep(Struct, frozen=True):
    """ms: without recording, before any window where that is shorter. whole_ms: of all such steps. near_ms: of those
    that a light window lies among. behind_ms: the same, None where it is hardly longer than ms, or where the profiler
    is not what made it so. before: the steps that `ms` is the mean of; None where all such steps of the run count.
    longer: behind the windows, whatever the reason."""

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
    """As if the profiler stayed behind its windows; None where too few steps are like the others. Between the windows
    of a schedule CUPTI stays, also where it is ended behind the last. alone_from: the step from which on it was ended
    behind each; None: behind none that other windows follow. last: the last step that torch's profiler recorded, where
    light windows may follow each other behind it; None where none do, or nothing tells."""
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


# The steps right before a window, where nothing was recorded: those that its own are held to.

_NEAREST = 6  # as many as a schedule times before its window
_LEAST_BEFORE = 3


def steps_before(run: WholeRun, window: Collection[int]) -> Int:
    """Where the typical steps between this window and the one before are in the run. window: numbers of its steps. The
    nearest ones; none where there are too few."""
    own = np.flatnonzero(np.isin(run.numbers, list(window)))
    nearest = np.flatnonzero(run.like & (np.arange(len(run.numbers)) < min(own, default=0)))[-_NEAREST:]
    if not len(nearest):
        return nearest
    recorded = np.flatnonzero(~run.timed & ~np.isnan(run.step_ms))
    nearest = nearest[nearest > max(recorded[recorded < nearest[-1]], default=-1)]
    return nearest if len(nearest) >= _LEAST_BEFORE else nearest[:0]


_NEAR_ENOUGH = 4  # timed steps just before the window
_LATER = 20  # steps behind it that are like the others
_SLOWER = 1.25
MUCH_LONGER = 1.5  # times the recorded steps: those of a run take longer than that by themselves
_SETTLED = 1.1  # times the later step, over this many steps:
_RUN = 8


class EarlyWindow(Struct, frozen=True):
    """A step took near_ms just before the window and takes later_ms behind it; settled: the first such step."""

    near_ms: float
    later_ms: float
    settled: int


def early_window(run: WholeRun, window: Collection[int]) -> EarlyWindow | None:
    """window: numbers of the recorded steps that count; others may have been recorded before and after. Later steps may
    also be the longer ones. None where those before the window or its own take about as long as the later ones, or
    where too few tell."""
    step = run.step_ms
    recorded = np.flatnonzero(~run.timed & ~np.isnan(step))
    recorded = recorded[recorded > 0]  # the first step is the program's start
    if not len(recorded):
        return None
    own = recorded[np.isin(run.numbers[recorded], list(window))]
    begin = own[0] if len(own) else recorded[0]
    timed = np.flatnonzero(run.timed)
    end = last_of_window(recorded, int(own[-1] if len(own) else recorded[0]))
    before, behind = timed[timed < begin], timed[timed > end]
    later = behind[run.like[behind]]
    if len(before) < _NEAR_ENOUGH or len(later) < _LATER:
        return None
    near_ms, later_ms = median(step[before[-_NEAR_ENOUGH:]]), median(step[later])
    window_ms = float(median(step[own if len(own) else recorded]))
    shorter = min(near_ms, window_ms) >= _SLOWER * later_ms
    longer = max(near_ms, window_ms) <= later_ms / MUCH_LONGER
    if not shorter and not longer:
        return None
    for at in range(len(behind) - _RUN + 1):
        own_ms = median(step[behind[at : at + _RUN]])
        if max(own_ms / later_ms, later_ms / own_ms) <= _SETTLED:
            return EarlyWindow(near_ms, later_ms, int(run.numbers[behind[at]]))
    return None


def much_longer(typical_ms: float, recorded_ms: float | None) -> float | None:
    """How many times as long as the recorded steps the run's typical one takes; None where that is not far more."""
    if not recorded_ms or typical_ms < MUCH_LONGER * recorded_ms:
        return None
    return typical_ms / recorded_ms


def is_unlike(run: WholeRun, window: Collection[int], recorded_ms: float) -> bool:
    """Whether what the recorded steps show need not hold for the run."""
    return much_longer(run.typical_ms, recorded_ms) is not None or early_window(run, window) is not None


_MOST_OF = 0.5  # of what these steps take longer
_LATER_SAMPLES = 0.1  # of what it spends there: with more of it in later steps they do the same, only faster
_LOOKS = 5  # there
_ALIKE, _FAR = 0.75, 1.25  # so many of these steps take about as long as they do in the median


class EarlyPlace(Struct, frozen=True):
    """ms: a step, on this rank, beyond what it spends there in typical steps."""

    rank: int
    place: CodePlace
    ms: float


def early_place(run: WholeRun, observed: Sequence[Observed], early: EarlyWindow, begin: int) -> EarlyPlace | None:
    """begin: the first recorded step. None where those before are no longer, differ among themselves, or nothing was
    seen in most of that."""
    longer = early.near_ms - early.later_ms
    took = run.step_ms[run.timed & (run.numbers < begin)] / early.near_ms
    if longer <= 0 or float(((took <= _FAR) & (took >= 1 / _FAR)).mean()) < _ALIKE:
        return None
    best = None
    for one in observed:
        numbers = np.arange(one.first, one.first + len(one.steps))
        usual = {own.key: own.ms for own in run.host.get(one.rank, ()) if not own.waits}
        for own in host_times(one, (numbers > 0) & (numbers < begin), early.near_ms):
            later_ms = usual.get(own.key, 0.0)
            ms = own.ms - later_ms
            if own.waits or own.looks < _LOOKS or ms < _MOST_OF * longer or later_ms > _LATER_SAMPLES * own.ms:
                continue
            if best is None or ms > best.ms:
                best = EarlyPlace(one.rank, own.place, ms)
    return best


_MANY = 0.2  # of the steps without the profiler


class ProfilerCost(Struct, frozen=True):
    """Profiled ÷ unprofiled step. ratio: as the median steps have it; None where one of them is not known, or is no
    measure. core_pct: the most that a rank waits for a core in the recorded steps, but for the step in which it waited
    longest. as_long_pct: of the run's steps without the profiler, those that take as long as the recorded ones; None of
    a run that was not observed, and where CUPTI stays in the process and slows later steps."""

    ratio: float | None
    core_pct: float = 0.0
    as_long_pct: float | None = None

    @property
    def least(self) -> float | None:
        """What is left of the ratio where recorded steps had never waited for a core; the others may have."""
        return None if self.ratio is None else self.ratio * (1 - self.core_pct / 100)

    @property
    def by_cores(self) -> bool:
        """Whether waiting for cores may be all that makes recorded steps longer."""
        return self.least is not None and self.ratio is not None and self.least < SLOWED <= self.ratio

    @property
    def by_chance(self) -> bool:
        """Whether many steps without the profiler take as long as the recorded ones."""
        many = self.as_long_pct is not None and self.as_long_pct >= 100 * _MANY
        return many and self.ratio is not None and self.ratio >= SLOWED

    @property
    def slowdown(self) -> float | None:
        """The ratio where it tells what the profiler costs."""
        return None if self.by_cores or self.by_chance else self.ratio


def profiler_cost(
    manifest: dict[str, Any], observed: Sequence[Observed], whole: WholeRun | None, *, on_gpu: bool
) -> ProfilerCost:
    """Of a run whose ranks were observed, or not."""
    ratio = profiler_slowdown(manifest)
    waits = recorded_waits(observed)
    stays = on_gpu and not ended_cupti(manifest)
    if ratio is None or whole is None or stays or not whole.timed.any():
        as_long = None
    else:
        as_long = 100 * float((whole.step_ms[whole.timed] >= manifest["profiled_step_ms"]).mean())
    return ProfilerCost(ratio, max((one.beside_pct for one in waits.values()), default=0.0), as_long)
