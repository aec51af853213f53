"""Whether the recorded steps are unlike the run: it had not settled yet, or became slower behind them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from traceops.across.behind_windows import last_of_window
from traceops.across.run_steps import WholeRun

_NEAR = 4  # timed steps just before the window
_LATER = 20  # steps behind it that are like the others
_SLOWER = 1.25
MUCH_LONGER = 1.5  # times the recorded steps: those of a run take longer than that by themselves
_SETTLED = 1.1  # times the later step, over this many steps:
_RUN = 8


@dataclass(frozen=True)
class EarlyWindow:
    """A step took near_ms just before the window and takes later_ms behind it; settled: the first such step."""

    near_ms: float
    later_ms: float
    settled: int


def early_window(run: WholeRun, window: Collection[int]) -> EarlyWindow | None:
    """window: numbers of the recorded steps that count; others may have been recorded before and after.

    Later steps may also be the longer ones. None where those before the window or its own take about as long as the
    later ones, or where too few tell.
    """
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
    if len(before) < _NEAR or len(later) < _LATER:
        return None
    near_ms, later_ms = float(np.median(step[before[-_NEAR:]])), float(np.median(step[later]))
    window_ms = float(np.median(step[own if len(own) else recorded]))
    shorter = min(near_ms, window_ms) >= _SLOWER * later_ms
    longer = max(near_ms, window_ms) <= later_ms / MUCH_LONGER
    if not shorter and not longer:
        return None
    for at in range(len(behind) - _RUN + 1):
        own_ms = float(np.median(step[behind[at : at + _RUN]]))
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
