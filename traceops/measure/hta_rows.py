"""The rows of one rank that HTA analyses: cut, joined by correlation id and filtered as HTA does, in HTA's order."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.activity import COMM, COMPUTE, MEMORY
from traceops.traces.model import Events

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

OTHER = -1  # what HTA counts as busy, but as no kind of kernel
_MOST_JOINED = 100_000  # pairs of one correlation id; a CUDA graph has one launch and its kernels
_MOST_SPREAD = 32  # correlation ids are looked up in a table if it has at most this many places a row

# HTA's classifier (hta/utils/utils.py) tries these in this order.
_COMM = re.compile(r"nccl.*Kernel")
_MEMORY = re.compile(r"Memcpy|Memset|dma")
_NOT_COMPUTE = re.compile(r".*Memcpy|.*Sync")
# Waiting that HTA takes for device activity whatever its stream.
_SYNC = ("Event Sync", "Context Sync")


class HtaRows(Struct, frozen=True):
    """Rows in HTA's order as equally long columns: device rows first where HTA filters, else as in the file.

    A device row appears as often as kept host rows share its correlation id. Times are HTA's: float µs since the
    first row that has a stream or a correlation id or is a profiler step.
    """

    row: Int  # into Events
    ts: Float
    dur: Float
    stream: Int  # -1 on the host
    key: Int  # correlation ids, numbered from 0; -1 where a row has none
    keys: int
    launch_ts: Float  # start of the call that launched a device row, NaN where HTA did not keep it


def hta_rows(events: Events) -> HtaRows:
    """HTA's cut: without the last profiler step, and without device rows whose launch it leaves out.

    A trace with fewer than two steps stays whole. Unlike in HTA, whose bugs these are, event 0 is not the launch of
    rows that have none, and rows without a correlation id do not share one.
    """
    is_step = np.array(["ProfilerStep" in text for text in events.names], dtype=bool)
    cut = np.flatnonzero((events.stream != -1) | (events.correlation != -1) | is_step[events.name])
    name, stream, correlation = events.name[cut], events.stream[cut], events.correlation[cut]
    ts = (events.ts[cut] - events.ts.min()) / 1000.0
    ts -= ts.min()
    key, keys = number_ids(correlation, stream >= 0)
    on_device = (stream >= 0) & (correlation >= 0) & (key >= 0)
    on_device |= np.array([text in _SYNC for text in events.names], dtype=bool)[name]
    device, host = np.flatnonzero(on_device), np.flatnonzero(~on_device)

    last_call = np.full(keys + 1, -1)  # its last place is for the key -1
    last_call[key[host]] = host
    last_call[-1] = -1
    kept, call_ts = np.arange(len(cut)), ts
    if len({text for text in (*events.names, *events.cats) if "ProfilerStep" in text}) > 1:
        last_step = np.max(ts[host][is_step[name[host]]], initial=-np.inf)
        host = host[ts[host] < last_step]
        calls = np.bincount(key[host] + 1, minlength=keys + 1)
        calls[0] = min(calls[0], 1)
        kept = np.concatenate((np.repeat(device, calls[key[device] + 1]), host))
        call_ts = np.where(ts < last_step, ts, np.nan)
    call = last_call[key[kept]]
    return HtaRows(
        row=cut[kept],
        ts=ts[kept],
        dur=events.dur[cut[kept]] / 1000.0,
        stream=stream[kept],
        key=key[kept],
        keys=keys,
        launch_ts=np.where(call >= 0, call_ts[call], np.nan),
    )


def number_ids(correlation: Int, on_device: Bool) -> tuple[Int, int]:
    """Correlation ids numbered from 0, -1 for none, and how many there are.

    Those of many host and many device rows at once count as none: HTA would join each with each.
    """
    given = np.flatnonzero(correlation != -1)
    key = np.full(len(correlation), -1)
    if not len(given):
        return key, 0
    ids = correlation[given]
    first, last = int(ids.min()), int(ids.max())
    if last - first < _MOST_SPREAD * len(correlation):
        seen = np.zeros(last - first + 1, dtype=bool)
        seen[ids - first] = True
        number = np.cumsum(seen) - 1
        keys, own = int(number[-1]) + 1, number[ids - first]
    else:
        unique, own = np.unique(ids, return_inverse=True)
        keys = len(unique)
    device = np.bincount(own[on_device[given]], minlength=keys)
    host = np.bincount(own, minlength=keys) - device
    key[given] = np.where((device * host > _MOST_JOINED)[own], -1, own)
    return key, keys


def join(left: Int, right: Int, keys: int) -> tuple[Int, Int]:
    """Positions in `left` and `right` of each pair with equal keys, in left order, then in right order; keys from 0."""
    count = np.bincount(right, minlength=keys)
    by_key = np.argsort(right, kind="stable")
    pairs = count[left]
    first = np.cumsum(count) - count
    of_left = np.repeat(np.arange(len(left)), pairs)
    within = np.arange(len(of_left)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    return of_left, by_key[first[left[of_left]] + within]


def hta_kind(name: str) -> int:
    """What HTA takes a kernel of this name for: COMM, MEMORY, COMPUTE or OTHER."""
    if _COMM.match(name):
        return COMM
    if _MEMORY.match(name):
        return MEMORY
    return OTHER if _NOT_COMPUTE.match(name) else COMPUTE


def hta_kinds(names: Sequence[str], used: NDArray[np.integer]) -> NDArray[np.int8]:
    """`hta_kind` of each of `names`; those whose position is not in `used` are not looked at and OTHER."""
    kinds = np.full(len(names), OTHER, dtype=np.int8)
    for i in np.flatnonzero(np.bincount(used, minlength=len(names))).tolist():
        kinds[i] = hta_kind(names[i])
    return kinds
