"""In which pass of its step each communication was launched: forward, backward, after both, or after the update."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.activity import Activity
from traceops.measure.exchanges import BACKWARD, FORWARD, NOTHING
from traceops.measure.host_collectives import calls_of
from traceops.measure.host_rows import ANNOTATION_CATS, BACKWARD_NAME, OPERATOR_CATS, OPTIMIZER_NAME, rows_named
from traceops.measure.nesting import begin_inside
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

_WRAPPED = re.compile(r"^(DistributedDataParallel|FullyShardedDataParallel)\.forward")
AFTER = 2  # the last backward function of its step had begun: the optimizer's part
UPDATED = 3  # the optimizer's last step behind backward had ended: what goes round is no gradient


def find_phases(events: Events, activity: Activity, steps: StepBounds, comm: Int) -> NDArray[np.int8]:
    """FORWARD, BACKWARD, AFTER or UPDATED of the communications at positions `comm` of `activity`, else NOTHING.

    What was launched inside one of autograd's functions is backward. Of the rest, what comes before another of them
    in its step is forward, as between micro-batches. Where hosts run them a backend's own thread begins them some time
    later: there all that was called between the first and the last of autograd's functions is backward. Steps without a
    backward pass tell nothing.
    """
    phases = np.full(len(comm), NOTHING, dtype=np.int8)
    rows = rows_named(events, BACKWARD_NAME)
    rows = rows[events.in_cats(*OPERATOR_CATS)[rows]]
    if not len(rows) or not len(comm) or not len(steps):
        return phases
    begun = np.sort(events.ts[rows])
    step = steps.of_activity[comm]
    calls = np.maximum(activity.launch[comm], 0) if activity.on_gpu else _called(events, activity.row[comm])
    launched = activity.launched[comm] if activity.on_gpu else events.ts[calls]
    known = (step >= 0) & (step < len(steps))
    at = np.where(known, step, 0)
    first = np.searchsorted(begun, steps.host_start[at])
    stop = np.searchsorted(begun, steps.host_end[at])
    now = np.searchsorted(begun, launched, side="right")
    inside = (now > first) & (now < stop)
    if activity.comm_on_gpu:
        known &= activity.launch[comm] >= 0
        inside = begin_inside(events, calls, rows)
    elif not activity.on_gpu:
        inside |= begin_inside(events, calls, rows)  # the last function of all gives the last bucket
    phases[known] = FORWARD
    phases[known & (now >= stop)] = AFTER
    behind = begun[np.clip(stop - 1, 0, len(begun) - 1)]
    phases[(phases == AFTER) & _updated(events, launched, behind, steps.host_end[at])] = UPDATED
    begins = (phases == FORWARD) & _before_forward(events, launched, steps.host_start[at], begun)
    phases[begins] = UPDATED
    phases[known & inside] = BACKWARD
    phases[known & (first >= stop)] = NOTHING
    return phases


def _called(events: Events, rows: Int) -> Int:
    """The call of each collective that a backend's thread runs, or its own row where that is not known."""
    order = np.argsort(events.ts[rows], kind="stable")
    called = np.empty(len(rows), dtype=np.int64)
    called[order] = calls_of(events, rows[order])
    return called


def _before_forward(events: Events, launched: Int, start: Int, backward: Int) -> NDArray[np.bool_]:
    """Whether a wrapped model's forward has not begun in the step, and an optimizer's step was later than backward.

    A step that ends where the optimizer's returns begins with what the program does behind it. backward: when each of
    autograd's functions began.
    """
    forward = np.sort(events.ts[rows_named(events, _WRAPPED)])
    rows = rows_named(events, OPTIMIZER_NAME)
    ended = np.sort(events.ts[rows] + events.dur[rows])
    if not len(forward) or not len(ended):
        return np.zeros(len(launched), dtype=bool)
    updated = np.searchsorted(ended, launched, side="right") - 1
    passed = np.searchsorted(backward, launched) - 1
    none_begun = np.searchsorted(forward, start) == np.searchsorted(forward, launched)
    later = (passed < 0) | (ended[np.maximum(updated, 0)] > backward[np.maximum(passed, 0)])
    found: NDArray[np.bool_] = none_begun & (updated >= 0) & later
    return found


def _updated(events: Events, launched: Int, backward: Int, over: Int) -> NDArray[np.bool_]:
    """Whether an optimizer's step ended between `backward` and each launch, and none begins before the step is `over`.

    One that synchronises gradients itself does so before the step that it wraps; one that averages parameters, after.
    """
    rows = rows_named(events, OPTIMIZER_NAME)
    rows = rows[events.in_cats(*ANNOTATION_CATS, *OPERATOR_CATS)[rows]]
    if not len(rows):
        return np.zeros(len(launched), dtype=bool)
    begun, ended = np.sort(events.ts[rows]), np.sort(events.ts[rows] + events.dur[rows])
    before = np.searchsorted(ended, launched, side="right") - 1
    follows = np.searchsorted(begun, launched)
    more = (follows < len(begun)) & (begun[np.minimum(follows, len(begun) - 1)] < over)
    updated: NDArray[np.bool_] = (before >= 0) & (ended[np.maximum(before, 0)] > backward) & ~more
    return updated
