"""In which pass of its step each communication was launched: forward, backward, or after both."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.activity import Activity, begin_inside
from traceops.measure.exchanges import BACKWARD, FORWARD, NOTHING
from traceops.measure.host_rows import BACKWARD_NAME, OPERATOR_CATS, rows_named
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

AFTER = 2  # the last backward function of its step had begun: the optimizer's part


def find_phases(events: Events, activity: Activity, steps: StepBounds, comm: Int) -> NDArray[np.int8]:
    """FORWARD, BACKWARD or AFTER of the communications at positions `comm` of `activity`; NOTHING where not told.

    What was launched inside one of autograd's functions is backward. Of the rest, what comes before another of them
    in its step is forward, as between micro-batches. Without a GPU a backend's own thread begins them some time later:
    there all between the first and the last of autograd's functions is backward. Steps without a backward pass tell
    nothing.
    """
    phases = np.full(len(comm), NOTHING, dtype=np.int8)
    rows = rows_named(events, BACKWARD_NAME)
    rows = rows[events.in_cats(*OPERATOR_CATS)[rows]]
    if not len(rows) or not len(comm) or not len(steps):
        return phases
    begun = np.sort(events.ts[rows])
    step = steps.of_activity[comm]
    launched = activity.launched[comm]
    known = (step >= 0) & (step < len(steps))
    at = np.where(known, step, 0)
    first = np.searchsorted(begun, steps.host_start[at])
    stop = np.searchsorted(begun, steps.host_end[at])
    now = np.searchsorted(begun, launched, side="right")
    inside = (now > first) & (now < stop)
    if activity.on_gpu:
        known &= activity.launch[comm] >= 0
        inside = begin_inside(events, np.maximum(activity.launch[comm], 0), rows)
    phases[known] = FORWARD
    phases[known & (now >= stop)] = AFTER
    phases[known & inside] = BACKWARD
    phases[known & (first >= stop)] = NOTHING
    return phases
