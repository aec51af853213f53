"""The steps right before a window, where nothing was recorded: those that its own are held to."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from traceops.across.run_steps import WholeRun
from traceops.core.arrays import Int

_NEAREST = 6  # as many as a schedule times before its window
_LEAST = 3


def steps_before(run: WholeRun, window: Collection[int]) -> Int:
    """Where the typical steps between this window and the one before are in the run. window: numbers of its steps.

    The nearest ones; none where there are too few.
    """
    own = np.flatnonzero(np.isin(run.numbers, list(window)))
    nearest = np.flatnonzero(run.like & (np.arange(len(run.numbers)) < min(own, default=0)))[-_NEAREST:]
    if not len(nearest):
        return nearest
    recorded = np.flatnonzero(~run.timed & ~np.isnan(run.step_ms))
    nearest = nearest[nearest > max(recorded[recorded < nearest[-1]], default=-1)]
    return nearest if len(nearest) >= _LEAST else nearest[:0]
