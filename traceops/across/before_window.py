"""What a step took right before a window, where nothing was recorded: the step that its own is held to."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from traceops.across.whole_run import WholeRun

_NEAREST = 6  # as many as a schedule times before its window
_LEAST = 3


def step_before(run: WholeRun, window: Collection[int]) -> float | None:
    """ms: the median of the typical steps between this window and the one before. window: numbers of its steps.

    None where there are too few.
    """
    step = run.step_ms
    own = np.flatnonzero(np.isin(run.numbers, list(window)))
    if not len(own):
        return None
    recorded = np.flatnonzero(~run.timed & ~np.isnan(step))
    nearest = np.flatnonzero(run.like & (np.arange(len(step)) < own[0]))[-_NEAREST:]
    earlier = [at for at in recorded.tolist() if len(nearest) and at < nearest[-1]]
    nearest = nearest[nearest > max(earlier, default=-1)]
    return float(np.median(step[nearest])) if len(nearest) >= _LEAST else None
