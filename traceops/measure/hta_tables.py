"""HTA's six analyses of one rank by HTA's definitions and with HTA's values, without HTA."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.core.arrays import Int, native, percentiles, union, uniques
from traceops.measure.activity import COMM, COMPUTE, MEMORY
from traceops.traces.model import Events

# The rows that HTA analyses: cut, joined by correlation id and filtered as it does, in its order.

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
    """Rows in HTA's order as equally long columns: device rows first where HTA filters, else as in the file. A device
    row appears as often as kept host rows share its correlation id. Times are HTA's: float µs since the first row that
    has a stream or a correlation id or is a profiler step."""

    row: Int  # into Events
    ts: Float
    dur: Float
    stream: Int  # -1 on the host
    key: Int  # correlation ids, numbered from 0; -1 where a row has none
    keys: int
    launch_ts: Float  # start of the call that launched a device row, NaN where HTA did not keep it


def hta_rows(events: Events) -> HtaRows:
    """HTA's cut: without the last profiler step, and without device rows whose launch it leaves out. A trace with fewer
    than two steps stays whole. Unlike in HTA, whose bugs these are, event 0 is not the launch of rows that have none,
    and rows without a correlation id do not share one."""
    is_step = np.array(["ProfilerStep" in text for text in events.names], dtype=bool)
    is_sync = _among(events.names, _SYNC)
    of_steps = (text for text in (*itertools.compress(events.names, is_step.tolist()), *events.cats))
    leaves_out = len({text for text in of_steps if "ProfilerStep" in text}) > 1
    if native is not None:
        columns = (events.stream, events.correlation, events.name, events.ts, events.dur, is_step, is_sync)
        if (found := native.hta_rows(*columns, np.array([leaves_out], dtype=np.int64))) is not None:
            row, stream, key = (np.frombuffer(block, np.int64) for block in found[:3])
            ts, dur, launch_ts = (np.frombuffer(block, np.float64) for block in found[3:6])
            return HtaRows(row, ts, dur, stream, key, found[6], launch_ts)
    cut = ((events.stream != -1) | (events.correlation != -1) | is_step[events.name]).nonzero()[0]
    name, stream, correlation = events.name[cut], events.stream[cut], events.correlation[cut]
    ts = (events.ts[cut] - events.ts.min()) / 1000.0
    ts -= ts.min()
    key, keys = number_ids(correlation, stream >= 0)
    on_device = (stream >= 0) & (correlation >= 0) & (key >= 0)
    on_device |= is_sync[name]
    device, host = on_device.nonzero()[0], (~on_device).nonzero()[0]

    last_call = np.full(keys + 1, -1)  # its last place is for the key -1
    last_call[key[host]] = host
    last_call[-1] = -1
    kept, call_ts = np.arange(len(cut)), ts
    if leaves_out:
        last_step = np.max(ts[host][is_step[name[host]]], initial=-np.inf)
        host = host[ts[host] < last_step]
        calls = np.bincount(key[host] + 1, minlength=keys + 1)
        calls[0] = min(calls[0], 1)
        kept = np.concatenate((device.repeat(calls[key[device] + 1]), host))
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
    """Correlation ids numbered from 0, -1 for none, and how many there are. Those of many host and many device rows at
    once count as none: HTA would join each with each."""
    given = (correlation != -1).nonzero()[0]
    key = np.full(len(correlation), -1)
    if not len(given):
        return key, 0
    ids = correlation[given]
    first, last = int(ids.min()), int(ids.max())
    if last - first < _MOST_SPREAD * len(correlation):
        seen = np.zeros(last - first + 1, dtype=bool)
        seen[ids - first] = True
        number = seen.cumsum() - 1
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
    if native is not None:
        pairs = np.empty((2, max(len(left), len(right))), dtype=np.int64)  # as many as there are, if a key has one call
        found = native.join(left, right, np.array([keys]), pairs[0], pairs[1])
        if found is not None and found <= pairs.shape[1]:
            return pairs[0, :found], pairs[1, :found]
    count = np.bincount(right, minlength=keys)
    by_key = right.argsort(kind="stable")
    pairs = count[left]
    first = count.cumsum() - count
    of_left = np.arange(len(left)).repeat(pairs)
    within = np.arange(len(of_left)) - (pairs.cumsum() - pairs).repeat(pairs)
    return of_left, by_key[first[left[of_left]] + within]


@functools.lru_cache(maxsize=1 << 12)
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
    for i in np.bincount(used, minlength=len(names)).nonzero()[0].tolist():
        kinds[i] = hta_kind(names[i])
    return kinds


# Temporal breakdown, overlap, idle time and kernel breakdown, in HTA's float µs.

Columns = dict[str, list[Any]]
Busy = tuple[Float, Float]
_Described = tuple[float, float, float, float, float]  # sum, most, least, standard deviation, mean

KERNEL_WAIT_US = 30  # HTA's default bound between 'kernel wait' and 'other'
_KINDS = ((COMPUTE, "COMPUTATION"), (COMM, "COMMUNICATION"), (MEMORY, "MEMORY"))  # in HTA's order
_MOST_KERNELS = 10  # of a kind, beyond which HTA adds up the smaller ones
_LARGE = 80  # percentile of the running sum, beyond which it does so too


def busy_times(ts: Float, dur: Float) -> Busy:
    """Starts and ends of the times in which at least one row runs; rows that touch are one."""
    if native is not None and np.count_nonzero((dur > 0) & (ts >= 0)) == len(dur):  # such times' bits are in order
        whole = union(ts.view(np.int64), (ts + dur).view(np.int64))
        return whole.start.view(np.float64), whole.end.view(np.float64)
    order = ts.argsort()
    start, reach = ts[order], np.maximum.accumulate((ts + dur)[order])
    edge = np.ones(len(start) + 1, dtype=bool)
    edge[1:-1] = start[1:] > reach[:-1]
    return start[edge[:-1]], reach[edge[1:]]


def temporal_breakdown(rank: int, every: Busy, compute: Busy) -> Columns:
    """Idle, compute and other time of the device, between its first and its last activity."""
    span = every[1][-1] - every[0][0]
    idle = span - (np.add.reduce(every[1]) - np.add.reduce(every[0]))
    computing = np.add.reduce(compute[1]) - np.add.reduce(compute[0])
    rest = max(span - computing - idle, np.float64(0))  # HTA raises where rounding makes it negative
    parts = {"idle_time": idle, "compute_time": computing, "non_compute_time": rest}
    shares = {f"{name}_pctg": [known(rounded(100 * (part / span), 2))] for name, part in parts.items()}
    times = {f"{name}(us)": [float(part)] for name, part in {**parts, "kernel_time": span}.items()}
    return {"rank": [rank], **times, **shares}


def overlap(rank: int, comm: Busy, compute: Busy) -> Columns:
    """Percent of the time in which communication runs that computation runs as well; None without any."""
    if (found := _time_of_sets((comm, compute))) is not None:
        lasted = found[2]
    else:
        times, running = _running((comm, compute))
        both = (running == 3).nonzero()[0]
        lasted = times[both + 1] - times[both]
    share = np.add.reduce(lasted) / np.add.reduce(comm[1] - comm[0])
    return {"rank": [rank], "comp_comm_overlap_pctg": [known(rounded(100 * share, 2))]}


def idle_times(rank: int, stream: Int, ts: Float, dur: Float, launch_ts: Float) -> Columns:
    """Time between kernels of one stream, by why the later one did not start before. 'host_wait': it was launched after
    the earlier one ended, 'kernel_wait': the gap is below 30 µs, else 'other'."""
    table: Columns = {key: [] for key in ("rank", "stream", "idle_category", "idle_time", "idle_time_ratio")}
    whole: list[float] = []
    streams = [((stream == own).nonzero()[0], own) for own in uniques(stream).tolist()]
    for rows, own in sorted(streams, key=lambda one: int(one[0][0])):
        begin = ts.take(rows)
        if not (begin[1:] > begin[:-1]).all():
            rows = rows.take(begin.argsort())
        before = (ts + dur).take(rows[:-1])
        gap = ts.take(rows[1:]) - before
        by_host = launch_ts.take(rows[1:]) > before
        short = ~by_host & (gap < KERNEL_WAIT_US)
        parts = {
            name: _sum(gap[mask])
            for name, mask in (("host_wait", by_host), ("kernel_wait", short), ("other", ~by_host & ~short))
            if name == "other" or np.count_nonzero(mask)  # HTA counts the first kernel as 'other', with no gap
        }
        table["rank"] += [rank] * len(parts)
        table["stream"] += [own] * len(parts)
        table["idle_category"] += parts
        table["idle_time"] += parts.values()
        whole += [sum(parts.values())] * len(parts)
    times = np.array(table["idle_time"], dtype=np.float64)
    table["idle_time"] = times.round(2).tolist()
    table["idle_time_ratio"] = list(map(known, (times / np.array(whole)).round(2).tolist()))
    return table


def kernel_types(busy: dict[int, Busy]) -> Columns:
    """Time in which each kind of kernel, or set of kinds, runs; HTA cuts each interval to whole µs."""
    parts = [busy[kind] for kind, _ in _KINDS]
    if (found := _time_of_sets(parts)) is not None:
        sums, seen = found[0], found[1].nonzero()[0]
    else:
        times, running = _running(parts)
        shown = (running > 0).nonzero()[0]
        lasted = (times[shown + 1] - times[shown]).astype(np.int64)
        sums = np.bincount(running[shown], weights=lasted, minlength=8).astype(np.int64)
        seen = np.bincount(running[shown], minlength=8).nonzero()[0]
    label = {
        i: " overlapping ".join(name for bit, (_, name) in enumerate(_KINDS) if i >> bit & 1) for i in seen.tolist()
    }
    sets = np.array(sorted(label, key=label.__getitem__), dtype=np.int64)
    sets = sets[_descending(sums[sets])]
    own = sums[sets]
    return {
        "kernel_type": [label[i] for i in sets.tolist()],
        "sum": own.tolist(),
        "percentage": list(map(known, (own / own.sum() * 100).round(1).tolist())),
    }


def kernels(rank: int, names: Sequence[str], kinds: NDArray[np.int8], name: NDArray[np.integer], dur: Float) -> Columns:
    """Statistics of the durations by kernel, of each kind; `name` says which of `names`, of these `kinds`, a row has.
    Of a kind with more than ten kernels HTA describes the kernels' sums in place, and adds up the small ones."""
    count = np.bincount(name, minlength=len(names))
    by_name = _statistics(name, dur, count)
    rows = []
    for kind, label in sorted(_KINDS, key=lambda pair: pair[1]):
        used = ((count > 0) & (kinds == kind)).nonzero()[0].tolist()
        own = {names[i]: by_name[i] for i in used}
        if len(own) > _MOST_KERNELS:
            own = _without_small({text: own[text][0] for text in sorted(own)})
        rows += [(text, *own[text], label, rank) for text in sorted(own)]
    columns = ("name", "sum (us)", "max (us)", "min (us)", "stddev", "mean (us)", "kernel_type", "rank")
    return {column: [row[i] for row in rows] for i, column in enumerate(columns)}


def _without_small(sums: dict[str, float]) -> dict[str, _Described]:
    """The statistics of the largest sums by name, and of the rest as 'others'."""
    names, values = list(sums), np.array(list(sums.values()))
    order = _descending(values)
    running = values[order].cumsum()
    small = (running > percentiles(running, (_LARGE,))[0]) | (np.arange(len(order)) >= _MOST_KERNELS)
    result: dict[str, list[float]] = {}
    for i, is_small in zip(order, small, strict=True):
        result.setdefault("others" if is_small else names[i], []).append(float(values[i]))
    return {text: _described(np.array(own)) for text, own in result.items()}


def _sum(values: Float) -> float:
    """Kahan's sum, which is pandas' for groups: so it has HTA's last digit too."""
    if native is not None and (found := native.kahan(values)) is not None:
        return float(found)
    total = lost = 0.0
    for value in values.tolist():
        value -= lost
        more = total + value
        lost = more - total - value
        total = more
    return total


def _statistics(group: NDArray[np.integer], values: Float, count: Int) -> dict[int, _Described]:
    """Sum, largest, smallest, standard deviation (0 for one value) and mean of the values of each group that has some.
    The deviation is Welford's, in the order of the values: so it has HTA's last digit too."""
    used = count.nonzero()[0].tolist()
    if native is not None:
        total, most, least, deviation = columns = np.empty((4, len(count)))
        if native.statistics(group, values, total, most, least, deviation) is not None:
            rows = columns[:, used].T.tolist()
            return {i: (*row, row[0] / int(count[i])) for i, row in zip(used, rows, strict=True)}
    order = group.argsort(kind="stable")
    ends = count.cumsum()
    return {i: _described(values[order[ends[i] - count[i] : ends[i]]]) for i in used}


def _described(values: Float) -> _Described:
    total, mean, squares = _sum(values), 0.0, 0.0
    for number, value in enumerate(values.tolist(), 1):
        before = value - mean
        mean += before / number
        squares += (value - mean) * before
    deviation = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return total, float(max(values)), float(min(values)), deviation, total / len(values)


def _time_of_sets(parts: Sequence[Busy]) -> tuple[Int, Int, Float] | None:
    """By set of parts (bits, as in `_running`) its time in whole µs and its stretches, and how long those of 3 are.
    None where the order of equal times decides which sets run for no time: then the sort that HTA calls has to say."""
    if native is None:
        return None
    columns = [column for part in parts for column in part]
    columns += [np.empty(0)] * (6 - len(columns))
    sums, stretches = np.empty((2, 8), dtype=np.int64)
    both = np.empty(sum(map(len, columns)))
    found = native.running(*columns, sums, stretches, both)
    return None if found is None else (sums, stretches, both[:found])


def _running(parts: Sequence[Busy]) -> tuple[Float, Int]:
    """Every start and end in order, and the set of parts that run from there on: bit i stands for the i-th. Sorted
    after each part and by the sort that HTA calls, because what it answers for equal times depends on that."""
    times, change = np.empty(0), np.empty(0, dtype=np.int64)
    for i, (start, end) in enumerate(parts):
        times = np.concatenate((times, start, end))
        change = np.concatenate((change, np.repeat([1 << i, -1 << i], len(start))))
        order = times.argsort()
        times, change = times[order], change[order]
    return times, change.cumsum()


def _descending(values: NDArray[Any]) -> Int:
    """Positions from the largest value to the smallest, equal ones as pandas leaves them."""
    order: Int = len(values) - 1 - values[::-1].argsort()[::-1]
    return order


def rounded(value: np.float64, digits: int) -> float:
    """As np.round has it, which takes eight times as long for one number."""
    scale = 10.0**digits
    return float(np.rint(value * scale)) / scale


def known(value: Any) -> float | None:
    """A number for a table: None for what is none, such as a share of nothing."""
    number = float(value)
    return number if math.isfinite(number) else None


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
    host = (launched.take(rows.key) & (rows.stream == -1)).nonzero()[0]
    device = (launched.take(rows.key) & (rows.stream != -1)).nonzero()[0]
    of_host, of_device = join(rows.key.take(host), rows.key.take(device), rows.keys)
    host, device = host.take(of_host), device.take(of_device)
    delay = rows.ts.take(device) - rows.ts.take(host) - rows.dur.take(host)
    quantities = {
        "cpu_duration": rows.dur.take(host),
        "gpu_duration": rows.dur.take(device),
        "launch_delay": np.maximum(delay, 0.0),
    }
    described = [_describe(values, (5, 50, 95)) for values in quantities.values()]
    return {"quantity": list(quantities), **{key: [row[key] for row in described] for key in described[0]}}


def queue_lengths(rank: int, events: Events, rows: HtaRows) -> Columns | None:
    """What a stream had outstanding after each launch and each start: a row each stream; None without any. HTA raises
    where several calls share a correlation id; there the first of them launched what has it."""
    calls = (_named(events, rows, _QUEUED) & (rows.key >= 0)).nonzero()[0]
    device = ((rows.stream != -1) & (rows.key >= 0)).nonzero()[0]
    calls = calls[np.bincount(rows.key.take(device), minlength=rows.keys).take(rows.key.take(calls)) > 0]
    called = np.bincount(rows.key.take(calls), minlength=rows.keys)
    device = device[called.take(rows.key.take(device)) > 0]
    if not len(device):
        return None
    if called.max() > 1:
        calls = calls[rows.ts[calls].argsort(kind="stable")]
        calls = calls[np.unique(rows.key[calls], return_index=True)[1]]
        device = device[np.unique(rows.row[device], return_index=True)[1]]
    of_call, of_device = join(rows.key.take(calls), rows.key.take(device), rows.keys)
    stream = np.concatenate((rows.stream.take(device.take(of_device)), rows.stream.take(device)))
    change = np.ones(2 * len(device), dtype=np.int64)
    change[len(device) :] = -1
    times = np.concatenate((rows.ts.take(calls.take(of_call)), rows.ts.take(device)))
    order = times.argsort(kind="stable")  # fast, as these are few runs that are in order
    in_order = times.take(order)
    same = in_order[1:] == in_order[:-1]
    if np.count_nonzero(same):
        # Of a start and a launch of one stream at the same time, what HTA says depends on its sort.
        after, before = order[1:], order[:-1]
        both = same & (stream.take(after) == stream.take(before)) & (change.take(after) != change.take(before))
        if np.count_nonzero(both) or np.count_nonzero(same[1:] & same[:-1]):
            order = times.argsort()
    stream, change = stream.take(order), change.take(order)
    streams = uniques(stream)
    described = [_describe(change[stream == own].cumsum(), (25, 50, 75)) for own in streams]
    return {
        "rank": [rank] * len(streams),
        "stream": streams.tolist(),
        **{key: [row[key] for row in described] for key in described[0]},
    }


def _named(events: Events, rows: HtaRows, names: tuple[str, ...]) -> Bool:
    return _among(events.names, names).take(events.name.take(rows.row))


@functools.lru_cache(maxsize=64)
def _among(own: tuple[str, ...], wanted: tuple[str, ...]) -> Bool:
    """Which of a trace's own texts are wanted; ranks of a run have the same ones."""
    return np.array([text in wanted for text in own], dtype=bool)


def _describe(values: NDArray[Any], percents: Sequence[int]) -> dict[str, float | None]:
    """Count, mean, standard deviation, least, percentiles and most; None where there are too few values."""
    if not (count := len(values)):
        names = ("mean", "std", "min", *(f"{percent}%" for percent in percents), "max")
        return {"count": 0.0, **dict.fromkeys(names)}
    mean = np.add.reduce(values, dtype=np.float64) / count
    squares = float(np.add.reduce((mean - values) ** 2))
    least, *middle, most = percentiles(values, (0, *percents, 100))
    return {
        "count": float(count),
        "mean": float(mean),
        "std": math.sqrt(squares / (count - 1)) if count > 1 else None,
        "min": least,
        **{f"{percent}%": value for percent, value in zip(percents, middle, strict=True)},
        "max": most,
    }


_KERNEL_CATS = ("kernel", "Kernel", "gpu_memset", "Memset", "gpu_memcpy", "Memcpy", "mtia_ccp_events")

# Of HTA's sequences of kernels: the operator and its kernels, and times of all occurrences.
SEQUENCE_COLUMNS = ("pattern", "count", "GPU kernel duration (us)", "CPU op duration (us)")
NO_ACTIVITY = (("all", "the trace has no GPU activity"),)


class HtaTables(Struct, frozen=True):
    """HTA's six analyses of one rank: HTA's column -> its values in HTA's order (times in µs). Plain numbers and
    strings, None for what is no number. A table is None where HTA has no answer; `failed` holds the analysis and the
    error for each that failed. `launches` has a row a quantity in place of HTA's row a launch. Sequences of kernels and
    hardware counters come from HTA's own code only."""

    temporal: Columns | None = None
    overlap: Columns | None = None
    idle: Columns | None = None
    kernel_types: Columns | None = None
    kernels: Columns | None = None
    launches: Columns | None = None
    queue_length: Columns | None = None
    sequences: Columns | None = None
    counters: Columns | None = None
    failed: tuple[tuple[str, str], ...] = ()


def hta_tables(rank: int, events: Events) -> HtaTables:
    """The tables of one rank; none of them without GPU activity, where HTA raises or answers NaN."""
    if not np.count_nonzero(events.stream >= 0):
        return HtaTables(failed=NO_ACTIVITY)
    rows = hta_rows(events)
    device = (rows.stream != -1).nonzero()[0]
    if not len(device):
        return HtaTables(failed=(("all", "HTA leaves out the last step, and no GPU activity remains"),))
    ts, dur, name = rows.ts.take(device), rows.dur.take(device), events.name.take(rows.row.take(device))
    kinds = hta_kinds(events.names, name)
    busy = {kind: busy_times(*_where(kinds.take(name) == kind, ts, dur)) for kind in (COMPUTE, COMM, MEMORY)}
    of_kernels = _among(events.cats, _KERNEL_CATS).take(events.cat.take(rows.row.take(device)))
    with np.errstate(divide="ignore", invalid="ignore"):  # shares of nothing
        return HtaTables(
            temporal=temporal_breakdown(rank, busy_times(ts, dur), busy[COMPUTE]),
            overlap=overlap(rank, busy[COMM], busy[COMPUTE]),
            idle=idle_times(rank, *_where(of_kernels, rows.stream.take(device), ts, dur, rows.launch_ts.take(device))),
            kernel_types=kernel_types(busy),
            kernels=kernels(rank, events.names, kinds, name, dur),
            launches=launch_statistics(events, rows),
            queue_length=queue_lengths(rank, events, rows),
        )


def _where(mask: Bool, *columns: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    return tuple(column[mask] for column in columns)


_ROUNDING = 1e-9  # relative; µs below a billionth are rounding too
_NAMES = tuple(name for name in HtaTables.__struct_fields__ if name not in ("sequences", "counters", "failed"))


class HtaAgreement(Struct, frozen=True):
    """How many values of HTA's tables were compared, and how many differ by more than rounding. `by` is HTA as
    installed ('HolisticTraceAnalysis 0.5.0'), `ranks` those with a table to compare, `tables` those of HtaTables in
    which values differ. A table that HTA's code fails at is not compared. Where a table has other rows, values are
    compared as they stand under each other."""

    by: str
    ranks: int = 0
    values: int = 0
    differing: int = 0
    tables: tuple[str, ...] = ()
    first: str = ""  # of the values that differ, with both


def compare_tables(ours: HtaTables, theirs: HtaTables, by: str) -> HtaAgreement:
    """The agreement on one rank."""
    found = HtaAgreement(by)
    for name in _NAMES:
        table: Columns | None = getattr(theirs, name)
        if table is None:
            continue
        values, differing = _compare(getattr(ours, name) or {}, table)
        found = replace(
            found,
            values=found.values + values,
            differing=found.differing + len(differing),
            tables=(*found.tables, name) if differing else found.tables,
            first=found.first or (f"{name}.{differing[0]}" if differing else ""),
        )
    return replace(found, ranks=int(found.values > 0))


def agreement_of_ranks(found: Iterable[HtaAgreement | None]) -> HtaAgreement | None:
    """The agreement on all ranks; None where no rank was compared."""
    if not (known := [one for one in found if one is not None]):
        return None
    return HtaAgreement(
        by=", ".join(dict.fromkeys(one.by for one in known if one.by)),
        ranks=sum(one.ranks for one in known),
        values=sum(one.values for one in known),
        differing=sum(one.differing for one in known),
        tables=tuple(name for name in _NAMES if any(name in one.tables for one in known)),
        first=next((one.first for one in known if one.first), ""),
    )


def _compare(ours: Columns, theirs: Columns) -> tuple[int, list[str]]:
    """How many values there are, and those that differ, in words."""
    values, differing = 0, []
    for column in dict.fromkeys((*ours, *theirs)):
        pairs = list(itertools.zip_longest(ours.get(column, []), theirs.get(column, []), fillvalue="no value"))
        values += len(pairs)
        differing += [f"{column}: {one}, HTA's {other}" for one, other in pairs if not _same(one, other)]
    return values, differing


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    return bool(one == other)
