"""Where a rank's host waited until its device was done: from there on it launches no earlier than the device is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceops.core.arrays import Int
from traceops.core.intervals import union
from traceops.measure.activity import Activity
from traceops.traces.model import Events

_WAITED_NS = 20_000  # a call that takes less held nobody up
_CLOCKS_NS = 5_000  # a device's clock may be off: a call returns so much before the end that it waits for
_RETURNS_NS = 50_000  # or so much after it


@dataclass(frozen=True)
class HostSyncs:
    """Blocking calls that waited, in the order of their ends. Times in ns of the rank's own clock.

    `done` is when the device had done what each waited for, `end` when the call returned. `host` is the host's own time
    (RankProgram.host) then, and `host_input` its part in data loading.
    """

    done: Int
    end: Int
    host: Int
    host_input: Int


def no_syncs() -> HostSyncs:
    """Of a rank whose host never waited, or of which nobody knows."""
    none = np.zeros(0, dtype=np.int64)
    return HostSyncs(none, none, none, none)


def waiting_calls(events: Events, activity: Activity) -> tuple[Int, Int]:
    """When the device had done what each blocking call waited for, and when the call returned.

    Where a call returns long after anything ended, amid what runs, that is when it returned.
    """
    rows = activity.host.blocking
    rows = rows[events.dur[rows] >= _WAITED_NS]
    end = events.ts[rows] + events.dur[rows]
    order = np.argsort(end, kind="stable")
    rows, end = rows[order], end[order]
    ended = np.sort(activity.end)
    last = np.searchsorted(ended, end + _CLOCKS_NS, side="right") - 1
    done = np.minimum(ended[np.maximum(last, 0)], end) if len(ended) else end
    amid = (end - done > _RETURNS_NS) & union(activity.start, activity.end).holds(end)
    done = np.where(amid, end, done)
    kept = (last >= 0) & (done > events.ts[rows])
    return done[kept], end[kept]
