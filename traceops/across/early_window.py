"""Whether the recorded steps lie where a training had not settled yet: compiling, warming up, filling its caches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from traceops.across.whole_run import WholeRun

_NEAR = 4  # timed steps just before the window
_LATER = 20  # steps behind it that are like the others
_SLOWER = 1.25
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

    None where the steps before the window take about as long as those behind it, or where too few tell.
    """
    step = run.step_ms
    recorded = np.flatnonzero(~run.timed & ~np.isnan(step))
    recorded = recorded[recorded > 0]  # the first step is the program's start
    if not len(recorded):
        return None
    own = recorded[np.isin(run.numbers[recorded], list(window))]
    begin = own[0] if len(own) else recorded[0]
    timed = np.flatnonzero(run.timed)
    before, behind = timed[timed < begin], timed[timed > recorded[-1]]
    later = behind[run.like[behind]]
    if len(before) < _NEAR or len(later) < _LATER:
        return None
    near_ms, later_ms = float(np.median(step[before[-_NEAR:]])), float(np.median(step[later]))
    if near_ms < _SLOWER * later_ms:
        return None
    for at in range(len(behind) - _RUN + 1):
        if float(np.median(step[behind[at : at + _RUN]])) <= _SETTLED * later_ms:
            return EarlyWindow(near_ms, later_ms, int(run.numbers[behind[at]]))
    return None
