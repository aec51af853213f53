"""Where each step begins and ends: on the host by its annotation, on the device by what it launched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.activity import Activity
from traceops.measure.grouping import distinct
from traceops.traces.model import Events

NO_STEP = -1  # the number of the one window of a trace that marks no steps


@dataclass(frozen=True)
class StepBounds:
    """Steps tile the device's timeline: step i runs from `edges[i]` to `edges[i + 1]` (ns).

    `host_start` and `host_end` are the annotations on the host; `of_activity` the step of each activity,
    -1 before the first and `len(number)` behind the last. `empty` are the numbers of marked steps left
    out because nothing they launched outlasted the step before.
    """

    number: Int
    edges: Int
    host_start: Int
    host_end: Int
    of_activity: Int
    empty: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.number)


def find_steps(events: Events, activity: Activity, recorded: tuple[int, ...] | None = None) -> StepBounds:
    """Step boundaries of one trace [docs/metrics.md, the step ledger].

    Device step k ends with the last activity launched in steps up to k. Without a GPU it begins and
    ends with its annotation. A trace that marks no steps, or only empty ones, is one window from first to last
    activity. Of a window that was cut off only the `recorded` steps count.
    """
    rows, numbers = activity.host.steps
    if recorded is not None:
        whole = np.isin(numbers, recorded)
        rows, numbers = rows[whole], numbers[whole]
    if not len(rows):
        return _one_window(activity)
    start = events.ts[rows]
    end = start + events.dur[rows]
    step = np.searchsorted(start, activity.launched, side="right") - 1
    step[activity.launched >= end[-1]] = len(rows)
    if not activity.on_gpu:
        return StepBounds(numbers, np.append(start, end[-1]), start, end, step)
    step[_launched_before_window(events, activity)] = -1
    edges = np.full(len(rows) + 1, np.iinfo(np.int64).min)
    inside = (step >= -1) & (step < len(rows))
    np.maximum.at(edges, step[inside] + 1, activity.end[inside])
    if not (step == -1).any():
        edges[0] = start[0]
    edges = np.maximum.accumulate(edges)
    kept = np.diff(edges) > 0
    if not kept.any():
        return _one_window(activity, tuple(numbers.tolist()))
    position = np.concatenate(
        ([-1], np.cumsum(kept) - 1, [kept.sum()])
    )  # of old steps -1, 0 … n among the kept
    return StepBounds(
        numbers[kept],
        np.concatenate((edges[:1], edges[1:][kept])),
        start[kept],
        end[kept],
        position[step + 1],
        tuple(numbers[~kept].tolist()),
    )


def _one_window(activity: Activity, empty: tuple[int, ...] = ()) -> StepBounds:
    first = int(activity.start.min()) if len(activity.start) else 0
    last = int(activity.end.max()) if len(activity.end) else first
    edges = np.array([first, last], dtype=np.int64)
    of_activity = np.zeros(len(activity.start), dtype=np.int64)
    return StepBounds(np.array([NO_STEP]), edges, edges[:1], edges[1:], of_activity, empty)


def _launched_before_window(events: Events, activity: Activity) -> NDArray[np.bool_]:
    """Activities without a launch record that no recorded launch precedes on their stream.

    Streams run in order, so these were launched before the window; a record lost later in the window
    does not count.
    """
    missing = activity.launch < 0
    # Where no launch is recorded at all the trace holds no host side: then its own time says the step.
    if missing.all() or not missing.any():
        return np.zeros(len(missing), dtype=bool)
    streams, which = distinct(events.stream[activity.row[activity.by_start]])
    recorded = np.flatnonzero(~missing[activity.by_start])
    first = np.full(len(streams), len(missing))
    np.minimum.at(first, which[recorded], recorded)
    before = np.empty(len(missing), dtype=bool)
    before[activity.by_start] = np.arange(len(missing)) < first[which]
    return before
