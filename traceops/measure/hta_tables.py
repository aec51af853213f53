"""HTA's six analyses of one rank by HTA's definitions and with HTA's values, without HTA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
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
from traceops.measure.hta_launches import launch_statistics, queue_lengths
from traceops.measure.hta_rows import Bool, hta_kinds, hta_rows
from traceops.traces.model import Events

_KERNEL_CATS = ("kernel", "Kernel", "gpu_memset", "Memset", "gpu_memcpy", "Memcpy", "mtia_ccp_events")

NO_ACTIVITY = (("all", "the trace has no GPU activity"),)


@dataclass(frozen=True)
class HtaTables:
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
