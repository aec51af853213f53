"""How long each step of a run took, by the device's clock where that is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceops.core.step_log import EVENT, RECORDED, SPAN

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_MOST = 0.8  # of the steps: known by the device's own timeline
_UNEVEN = (
    0.1  # of a span: from so much more than its usual steps on, those in which the host was long took it
)


def device_ms(steps: NDArray[np.void]) -> Floats:
    """Each step by the device's clock, ms; NaN where that is not known.

    steps: records of `core.step_log`, of one rank, in order. Of a step between two events the device's time is known.
    Of a span of steps between two events their sum is: each takes an equal part. Where the span took longer than so
    many usual steps, the usual part is each one's, and the rest is given to those in which the host took longer than
    that. The host's times alone would be false where it runs ahead: it waits in one step for the work of many.
    """
    flags = steps["flags"]
    took = steps["device_us"].astype(np.float64) / 1e3
    known = took > 0
    spans = known & (flags & SPAN > 0)
    found = np.where(known & ~spans, took, np.nan)
    marks, last = np.flatnonzero(flags & EVENT), np.flatnonzero(spans)
    before = np.searchsorted(marks, last) - 1
    last, before = last[before >= 0], before[before >= 0]
    first = marks[before] + 1
    recorded = np.concatenate([[0], np.cumsum(flags & RECORDED > 0)])
    even = recorded[last + 1] == recorded[first]  # steps under a profiler take longer than those beside them
    first, last = first[even], last[even]
    if len(last):
        _divide(found, first, last, took[last], steps["host_us"] / 1e3, flags & RECORDED > 0)
    return found


def took_ms(steps: NDArray[np.void], device: Floats | None) -> Floats:
    """Each step, ms: by the device's clock where that is given and known, else by the host's."""
    host: Floats = steps["host_us"] / 1e3
    return host if device is None else np.where(np.isnan(device), host, device)


def is_known(steps: NDArray[np.void], device: Floats) -> bool:
    """Whether the device's clock tells most of a rank's steps, the first and those under a profiler aside."""
    free = (steps["flags"] & RECORDED == 0)[1:]
    return bool(free.any()) and float((~np.isnan(device[1:][free])).mean()) >= _MOST


def _divide(found: Floats, first: Ints, last: Ints, took: Floats, host: Floats, recorded: Mask) -> None:
    """Give each step of the spans its part, in `found`."""
    count = last - first + 1
    usual = np.median(took / count)
    single = found[~np.isnan(found) & ~recorded]
    if len(single):  # an event makes a short step longer, and every span may hold an odd step
        usual = min(usual, np.median(single))
    longer = np.maximum(host - usual, 0.0)
    total = np.concatenate([[0.0], np.cumsum(longer)])
    excess, of_host = took - count * usual, total[last + 1] - total[first]
    uneven = (excess > _UNEVEN * count * usual) & (of_host > 0)
    part = np.where(uneven, usual, took / count)
    share = np.divide(excess, of_host, out=np.zeros_like(excess), where=uneven)
    within = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])
    found[within] = np.repeat(part, count) + np.repeat(share, count) * longer[within]
