"""HTA's six analyses of one rank by HTA's definitions and with HTA's values, without HTA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.measure.activity import COMM, COMPUTE, MEMORY
from traceops.measure.hta_breakdown import (
    Columns,
    busy_times,
    idle_times,
    kernel_types,
    kernels,
    overlap,
    temporal_breakdown,
)
from traceops.measure.hta_rows import Bool, HtaRows, hta_kinds, hta_rows, join
from traceops.traces.model import Events

# HTA's launch statistics and queue lengths of one rank, described as pandas describes them.


# Not the launches through the driver, which HTA misses.
_LAUNCHES = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "runFunction - job_prep_and_submit_for_execution",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
)
_QUEUED = (
    *_LAUNCHES,
    "cuLaunchKernel",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemsetAsync",
    "hipMemcpyAsync",
    "hipMemcpyWithStream",
)


def launch_statistics(events: Events, rows: HtaRows) -> Columns:
    """Time of the launching call, of what it launched, and between the two, µs: a row each."""
    launched = np.zeros(rows.keys + 1, dtype=bool)
    launched[rows.key[_named(events, rows, _LAUNCHES)]] = True
    launched[-1] = False
    host = np.flatnonzero(launched[rows.key] & (rows.stream == -1))
    device = np.flatnonzero(launched[rows.key] & (rows.stream != -1))
    of_host, of_device = join(rows.key[host], rows.key[device], rows.keys)
    host, device = host[of_host], device[of_device]
    delay = rows.ts[device] - rows.ts[host] - rows.dur[host]
    quantities = {
        "cpu_duration": rows.dur[host],
        "gpu_duration": rows.dur[device],
        "launch_delay": np.maximum(delay, 0.0),
    }
    described = [_describe(values, (5, 50, 95)) for values in quantities.values()]
    return {"quantity": list(quantities), **{key: [row[key] for row in described] for key in described[0]}}


def queue_lengths(rank: int, events: Events, rows: HtaRows) -> Columns | None:
    """What a stream had outstanding after each launch and each start: a row each stream; None without any.

    HTA raises where several calls share a correlation id; there the first of them launched what has it.
    """
    calls = np.flatnonzero(_named(events, rows, _QUEUED) & (rows.key >= 0))
    device = np.flatnonzero((rows.stream != -1) & (rows.key >= 0))
    calls = calls[np.bincount(rows.key[device], minlength=rows.keys)[rows.key[calls]] > 0]
    called = np.bincount(rows.key[calls], minlength=rows.keys)
    device = device[called[rows.key[device]] > 0]
    if not len(device):
        return None
    if called.max() > 1:
        calls = calls[np.argsort(rows.ts[calls], kind="stable")]
        calls = calls[np.unique(rows.key[calls], return_index=True)[1]]
        device = device[np.unique(rows.row[device], return_index=True)[1]]
    of_call, of_device = join(rows.key[calls], rows.key[device], rows.keys)
    stream = np.concatenate((rows.stream[device[of_device]], rows.stream[device]))
    change = np.repeat([1, -1], len(device))
    order = np.argsort(np.concatenate((rows.ts[calls[of_call]], rows.ts[device])))
    stream, change = stream[order], change[order]
    streams = np.unique(stream)
    described = [_describe(np.cumsum(change[stream == own]), (25, 50, 75)) for own in streams]
    return {
        "rank": [rank] * len(streams),
        "stream": streams.tolist(),
        **{key: [row[key] for row in described] for key in described[0]},
    }


def _named(events: Events, rows: HtaRows, names: tuple[str, ...]) -> Bool:
    wanted = np.array([text in names for text in events.names], dtype=bool)
    hits: Bool = wanted[events.name[rows.row]]
    return hits


def _describe(values: NDArray[Any], percentiles: Sequence[int]) -> dict[str, float | None]:
    """Count, mean, standard deviation, least, percentiles and most; None where there are too few values."""
    count = len(values)
    if not count:
        names = ("mean", "std", "min", *(f"{percent}%" for percent in percentiles), "max")
        return {"count": 0.0, **dict.fromkeys(names)}
    mean = values.sum(dtype=np.float64) / count
    squares = ((mean - values) ** 2).sum()
    return {
        "count": float(count),
        "mean": float(mean),
        "std": float(np.sqrt(squares / (count - 1))) if count > 1 else None,
        "min": float(values.min()),
        **{f"{percent}%": value for percent, value in zip(percentiles, _percentiles(values, percentiles), strict=True)},
        "max": float(values.max()),
    }


def _percentiles(values: NDArray[Any], percentiles: Sequence[int]) -> list[float]:
    """As np.percentile has them to the last digit, which takes ten times as long for few values."""
    at = [percent / 100 * (len(values) - 1) for percent in percentiles]
    places = [(int(each), min(int(each) + 1, len(values) - 1)) for each in at]
    partly = np.partition(values, sorted({place for pair in places for place in pair}))
    found = []
    for each, (low, high) in zip(at, places, strict=True):
        below, above, part = float(partly[low]), float(partly[high]), each - low
        found.append(below + (above - below) * part if part < 0.5 else above - (above - below) * (1 - part))
    return found


_KERNEL_CATS = ("kernel", "Kernel", "gpu_memset", "Memset", "gpu_memcpy", "Memcpy", "mtia_ccp_events")

NO_ACTIVITY = (("all", "the trace has no GPU activity"),)


class HtaTables(Struct, frozen=True):
    """HTA's six analyses of one rank: HTA's column -> its values in HTA's order (times in µs).

    Plain numbers and strings, None for what is no number. A table is None where HTA has no answer; `failed` holds
    the analysis and the error for each that failed. `launches` has a row a quantity in place of HTA's row a launch.
    """

    temporal: Columns | None = None
    overlap: Columns | None = None
    idle: Columns | None = None
    kernel_types: Columns | None = None
    kernels: Columns | None = None
    launches: Columns | None = None
    queue_length: Columns | None = None
    failed: tuple[tuple[str, str], ...] = ()


def hta_tables(rank: int, events: Events) -> HtaTables:
    """The tables of one rank; none of them without GPU activity, where HTA raises or answers NaN."""
    if not (events.stream >= 0).any():
        return HtaTables(failed=NO_ACTIVITY)
    rows = hta_rows(events)
    device = np.flatnonzero(rows.stream != -1)
    if not len(device):
        return HtaTables(failed=(("all", "HTA leaves out the last step, and no GPU activity remains"),))
    ts, dur, name = rows.ts[device], rows.dur[device], events.name[rows.row[device]]
    kinds = hta_kinds(events.names, name)
    busy = {kind: busy_times(*_where(kinds[name] == kind, ts, dur)) for kind in (COMPUTE, COMM, MEMORY)}
    of_kernels = np.array([cat in _KERNEL_CATS for cat in events.cats])[events.cat[rows.row[device]]]
    with np.errstate(divide="ignore", invalid="ignore"):  # shares of nothing
        return HtaTables(
            temporal=temporal_breakdown(rank, busy_times(ts, dur), busy[COMPUTE]),
            overlap=overlap(rank, busy[COMM], busy[COMPUTE]),
            idle=idle_times(rank, *_where(of_kernels, rows.stream[device], ts, dur, rows.launch_ts[device])),
            kernel_types=kernel_types(busy),
            kernels=kernels(rank, events.names, kinds, name, dur),
            launches=launch_statistics(events, rows),
            queue_length=queue_lengths(rank, events, rows),
        )


def _where(mask: Bool, *columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    return tuple(column[mask] for column in columns)
