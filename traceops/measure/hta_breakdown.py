"""HTA's temporal breakdown, overlap, idle time and kernel breakdown of one rank, in HTA's float µs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.activity import COMM, COMPUTE, MEMORY
from traceops.measure.hta_rows import Float

Columns = dict[str, list[Any]]
Busy = tuple[Float, Float]

KERNEL_WAIT_US = 30  # HTA's default bound between 'kernel wait' and 'other'
_KINDS = ((COMPUTE, "COMPUTATION"), (COMM, "COMMUNICATION"), (MEMORY, "MEMORY"))  # in HTA's order
_MOST_KERNELS = 10  # of a kind, beyond which HTA adds up the smaller ones
_LARGE = 80  # percentile of the running sum, beyond which it does so too


def busy_times(ts: Float, dur: Float) -> Busy:
    """Starts and ends of the times in which at least one row runs; rows that touch are one."""
    order = np.argsort(ts)
    start, reach = ts[order], np.maximum.accumulate((ts + dur)[order])
    edge = np.ones(len(start) + 1, dtype=bool)
    edge[1:-1] = start[1:] > reach[:-1]
    return start[edge[:-1]], reach[edge[1:]]


def temporal_breakdown(rank: int, every: Busy, compute: Busy) -> Columns:
    """Idle, compute and other time of the device, between its first and its last activity."""
    span = every[1][-1] - every[0][0]
    idle = span - (every[1].sum() - every[0].sum())
    computing = compute[1].sum() - compute[0].sum()
    rest = max(span - computing - idle, np.float64(0))  # HTA raises where rounding makes it negative
    parts = {"idle_time": idle, "compute_time": computing, "non_compute_time": rest}
    shares = {f"{name}_pctg": [known(np.round(100 * (part / span), 2))] for name, part in parts.items()}
    times = {f"{name}(us)": [float(part)] for name, part in {**parts, "kernel_time": span}.items()}
    return {"rank": [rank], **times, **shares}


def overlap(rank: int, comm: Busy, compute: Busy) -> Columns:
    """Percent of the time in which communication runs that computation runs as well; None without any."""
    times, running = _running((comm, compute))
    both = np.flatnonzero(running == 3)
    total = (comm[1] - comm[0]).sum()
    share = (times[both + 1] - times[both]).sum() / total
    return {"rank": [rank], "comp_comm_overlap_pctg": [known(np.round(100 * share, 2))]}


def idle_times(rank: int, stream: Int, ts: Float, dur: Float, launch_ts: Float) -> Columns:
    """Time between kernels of one stream, by why the later one did not start before.

    'host_wait': it was launched after the earlier one ended, 'kernel_wait': the gap is below 30 µs, else 'other'.
    """
    table: Columns = {key: [] for key in ("rank", "stream", "idle_category", "idle_time", "idle_time_ratio")}
    for own in dict.fromkeys(stream.tolist()):
        rows = np.flatnonzero(stream == own)
        rows = rows[np.argsort(ts[rows])]
        before = (ts + dur)[rows[:-1]]
        gap = ts[rows[1:]] - before
        by_host = launch_ts[rows[1:]] > before
        short = ~by_host & (gap < KERNEL_WAIT_US)
        parts = {
            name: _sum(gap[mask].tolist())
            for name, mask in (("host_wait", by_host), ("kernel_wait", short), ("other", ~by_host & ~short))
            if name == "other" or mask.any()  # HTA counts the first kernel as 'other', with no gap
        }
        times = np.array(list(parts.values()))
        table["rank"] += [rank] * len(parts)
        table["stream"] += [own] * len(parts)
        table["idle_category"] += parts
        table["idle_time"] += np.round(times, 2).tolist()
        table["idle_time_ratio"] += map(known, np.round(times / sum(parts.values()), 2))
    return table


def kernel_types(busy: dict[int, Busy]) -> Columns:
    """Time in which each kind of kernel, or set of kinds, runs; HTA cuts each interval to whole µs."""
    times, running = _running([busy[kind] for kind, _ in _KINDS])
    shown = np.flatnonzero(running > 0)
    lasted = (times[shown + 1] - times[shown]).astype(np.int64)
    sums = np.bincount(running[shown], weights=lasted, minlength=8).astype(np.int64)
    seen = np.flatnonzero(np.bincount(running[shown], minlength=8))
    label = {
        i: " overlapping ".join(name for bit, (_, name) in enumerate(_KINDS) if i >> bit & 1) for i in seen.tolist()
    }
    sets = np.array(sorted(label, key=label.__getitem__), dtype=np.int64)
    sets = sets[_descending(sums[sets])]
    shares = np.round(sums[sets] / sums[sets].sum() * 100, 1)
    return {
        "kernel_type": [label[i] for i in sets.tolist()],
        "sum": sums[sets].tolist(),
        "percentage": [known(share) for share in shares],
    }


def kernels(rank: int, names: Sequence[str], kinds: NDArray[np.int8], name: NDArray[np.integer], dur: Float) -> Columns:
    """Statistics of the durations by kernel, of each kind; `name` says which of `names`, of these `kinds`, a row has.

    Of a kind with more than ten kernels HTA describes the kernels' sums in place, and adds up the small ones.
    """
    count = np.bincount(name, minlength=len(names))
    order = np.argsort(name.astype(np.uint16 if len(names) <= 1 << 16 else name.dtype), kind="stable")
    values, ends = dur[order].tolist(), np.cumsum(count).tolist()
    rows = []
    for kind, label in sorted(_KINDS, key=lambda pair: pair[1]):
        used = np.flatnonzero((count > 0) & (kinds == kind)).tolist()
        own = {names[i]: values[ends[i] - count[i] : ends[i]] for i in used}
        if len(own) > _MOST_KERNELS:
            own = _without_small({text: _sum(own[text]) for text in sorted(own)})
        rows += [(text, *_describe(own[text]), label, rank) for text in sorted(own)]
    columns = ("name", "sum (us)", "max (us)", "min (us)", "stddev", "mean (us)", "kernel_type", "rank")
    return {column: [row[i] for row in rows] for i, column in enumerate(columns)}


def _without_small(sums: dict[str, float]) -> dict[str, list[float]]:
    """The largest sums by name, the rest under 'others'."""
    names, values = list(sums), np.array(list(sums.values()))
    order = _descending(values)
    running = np.cumsum(values[order])
    small = (running > np.percentile(running, _LARGE)) | (np.arange(len(order)) >= _MOST_KERNELS)
    result: dict[str, list[float]] = {}
    for i, is_small in zip(order, small, strict=True):
        result.setdefault("others" if is_small else names[i], []).append(float(values[i]))
    return result


def _sum(values: list[float]) -> float:
    """Kahan's sum, which is pandas' for groups: so it has HTA's last digit too."""
    total = lost = 0.0
    for value in values:
        value -= lost
        more = total + value
        lost = more - total - value
        total = more
    return total


def _describe(values: list[float]) -> tuple[float, float, float, float, float]:
    """Sum, largest, smallest, standard deviation (0 for one value) and mean.

    The deviation is Welford's, in the order of the values: so it has HTA's last digit too.
    """
    total, mean, squares = _sum(values), 0.0, 0.0
    for count, value in enumerate(values, 1):
        before = value - mean
        mean += before / count
        squares += (value - mean) * before
    deviation = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return total, max(values), min(values), deviation, total / len(values)


def _running(parts: Sequence[Busy]) -> tuple[Float, Int]:
    """Every start and end in order, and the set of parts that run from there on: bit i stands for the i-th.

    Sorted after each part and by the sort that HTA calls, because what it answers for equal times depends on that.
    """
    times, change = np.empty(0), np.empty(0, dtype=np.int64)
    for i, (start, end) in enumerate(parts):
        times = np.concatenate((times, start, end))
        change = np.concatenate((change, np.repeat([1 << i, -1 << i], len(start))))
        order = np.argsort(times)
        times, change = times[order], change[order]
    return times, np.cumsum(change)


def _descending(values: NDArray[Any]) -> Int:
    """Positions from the largest value to the smallest, equal ones as pandas leaves them."""
    order: Int = len(values) - 1 - np.argsort(values[::-1])[::-1]
    return order


def known(value: Any) -> float | None:
    """A number for a table: None for what is none, such as a share of nothing."""
    return float(value) if np.isfinite(value) else None
