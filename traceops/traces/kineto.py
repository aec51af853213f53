"""Loads one torch.profiler (kineto) trace into columns; times become int64 ns. Traces of other programs are named."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.arrays import uniques
from traceops.core.errors import FileError
from traceops.core.rank_files import COLLECTIVES, RECORDED_KEY
from traceops.core.units import count, events_text
from traceops.traces.event import EXACT_FLOAT_US, first_times_us
from traceops.traces.event_columns import EventColumns
from traceops.traces.model import CommArgs, Events, Group, RankTrace, TraceMeta, parse_ranks, with_known_ranks
from traceops.traces.run_manifest import MOST_RANKS
from traceops.traces.scan import Scanner
from traceops.traces.source import CHUNK_BYTES, Damaged, chunks, is_remote, open_binary, read_ahead

_SOONER_NS = 1_000_000  # than its call a collective may begin: two clocks are read
_CLEARLY = 2  # times as late as the closest: another fit


class _Recorded(Struct, frozen=True):
    created_ns: int
    args: CommArgs


def with_recorded(events: Events, raw: dict[str, Any]) -> dict[int, CommArgs]:
    """What the events' arguments and the trace's metadata `raw` say of the collectives, by row.

    A backend runs its collectives in the order in which they were called. So those of one name are paired from the last
    one that had been called when its last event began. Where one event would begin before its call, one group's calls
    left no events, or the name is left.
    """
    rows = raw.get(COLLECTIVES)
    known: dict[str, list[_Recorded]] = defaultdict(list)
    for row in rows if isinstance(rows, list) else ():
        if (read := _read(row)) is not None:
            known[read[0]].append(read[1])
    found = dict(events.comm)
    on_device = events.in_cats("gpu_user_annotation")  # the same note, around what was launched inside it
    numbers = {name: number for number, name in enumerate(events.names) if name in known}
    for name, number in numbers.items():
        own = ((events.name == number) & ~on_device).nonzero()[0]
        own = own[events.ts[own].argsort(kind="stable")]
        found.update(_paired(own.tolist(), events.ts[own].tolist(), known[name]))
    return found


def _paired(rows: Sequence[int], starts: Sequence[int], known: list[_Recorded]) -> dict[int, CommArgs]:
    """The calls by row: all of them or, where they do not fit, those without one group's. A thread that the profiler
    does not follow, such as one that writes a checkpoint, leaves no events of its calls."""
    called = sorted((one for one in known if one.created_ns <= starts[-1] + _SOONER_NS), key=lambda one: one.created_ns)
    if (found := _last_ones(rows, starts, called)) is None:
        without = [
            fit
            for group in sorted({one.args.group_name or "" for one in called})
            if (fit := _last_ones(rows, starts, [one for one in called if one.args.group_name != group]))
        ]
        found = _closest(without)
    return {} if found is None else {row: one.args for row, one in found.pairs}


class _Fit(Struct, frozen=True):
    pairs: list[tuple[int, _Recorded]]
    later_ns: int  # the events begin than their calls, in all


def _last_ones(rows: Sequence[int], starts: Sequence[int], called: list[_Recorded]) -> _Fit | None:
    """The last of both paired; None where there is none, or where one event would begin before its call."""
    if not (most := min(len(rows), len(called))):
        return None
    late = [start - one.created_ns for start, one in zip(starts[-most:], called[-most:], strict=True)]
    if min(late) < -_SOONER_NS:
        return None
    return _Fit(list(zip(rows[-most:], called[-most:], strict=True)), sum(late))


def _closest(fits: Sequence[_Fit]) -> _Fit | None:
    """The one that pairs most events; of several the one whose events follow their calls clearly closest."""
    most = max((len(fit.pairs) for fit in fits), default=0)
    best = sorted((fit for fit in fits if len(fit.pairs) == most), key=lambda fit: fit.later_ns)
    if len(best) > 1 and best[1].later_ns < _CLEARLY * best[0].later_ns:
        return None
    return best[0] if best else None


def _read(row: Any) -> tuple[str, _Recorded] | None:
    """The name and what was recorded of one collective; None for what is no such list."""
    if not isinstance(row, list) or len(row) != len(RECORDED_KEY):
        return None
    name, group, description, sequence, elements_in, elements_out, dtype, created = row
    texts = (name, group, description)
    if (created_ns := count(created)) is None or not all(isinstance(text, str) for text in texts):
        return None
    args = CommArgs(
        op=name.partition(":")[2],
        elements_in=count(elements_in) or None,
        elements_out=count(elements_out) or None,
        dtype=dtype if isinstance(dtype, str) else None,
        group_name=group,
        group_description=description,
        sequence=count(sequence),
    )
    return name, _Recorded(created_ns, args)


SEVERAL = "a tool merged several traces into it: give each rank's own"
_LEAST_OF_PROCESS = 0.01  # of the operators of another: damage makes pids, too
_MOST_UNREADABLE = 0.01  # of the events: with more of them lost, what is missing is not told from what was not there


def load_trace(path: str, ahead: bool = True) -> RankTrace:
    """Read a `.json` or `.json.gz` trace, local or remote, as far as it is readable. `ahead`: a thread reads and unzips
    meanwhile, which pays where a core is free for it. Damage is listed in the result rather than raised: what could be
    read is used, and said. Raises InputError where the file cannot be opened at all, or is merged of several."""
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects that are all freed by reference count
    try:
        with open_binary(path) as file:
            pieces = chunks(file)
            size = 0 if is_remote(path) else os.fstat(file.fileno()).st_size
            in_one_piece = 0 < size <= CHUNK_BYTES
            scanner = Scanner(read_ahead(pieces) if ahead and not in_one_piece else pieces)
            times = first_times_us(scanner.peek())
            columns = EventColumns(exact=max(times, default=0.0) >= EXACT_FLOAT_US)
            scanner.read(columns)
            events = columns.finish(_base_ns(scanner.meta))
            frames = columns.frames(_base_ns(scanner.meta))
    finally:
        if collecting:
            gc.enable()
    if _is_merged(events):
        raise FileError(path, SEVERAL, ": ")
    damage = list(dict.fromkeys(scanner.damage))
    counts = {"not readable": scanner.unreadable, "without a valid time": columns.bad_times}
    damage += [f"{events_text(count)} {what}" for what, count in counts.items() if count]
    meta = read_meta(scanner.meta, columns.with_stack)
    comm = with_recorded(events, scanner.meta)
    events = replace(events, comm=with_known_ranks(comm, meta.groups))
    incomplete = scanner.cut_off or scanner.unreadable > _MOST_UNREADABLE * len(events)
    return RankTrace(path, meta, events, tuple(damage), size, frames, incomplete, columns.bad_times)


def _is_merged(events: Events) -> bool:
    """Whether a tool merged several ranks: a profiler records its own process alone, and a rank uses one device. Of
    several processes those are ranks that use a device, if any does, and communicate, if any does: a DataLoader's
    worker does neither."""
    host, calls = events.in_cats("cpu_op", "operator"), events.in_cats("cuda_runtime", "cuda_driver", "runtime")
    pid = events.pid[host if host.any() else calls if calls.any() else list(events.comm)]
    if not len(pid) or (pid == pid[0]).all():
        return False
    counts = {one: int((pid == one).sum()) for one in uniques(pid[pid >= 0]).tolist()}
    found = [one for one, n in counts.items() if n > max(1, _LEAST_OF_PROCESS * max(counts.values()))]
    for did in (calls, list(events.comm)):
        found = [one for one in found if one in events.pid[did]] or found
    return len(found) > 1


def read_meta(raw: dict[str, Any], with_stack: bool = False) -> TraceMeta:
    """What a trace's metadata tells, each field only if it has the right type."""
    info = raw.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    config = info.get("pg_config")
    groups = []
    for entry in config if isinstance(config, list) else ():
        if isinstance(entry, dict) and (ranks := parse_ranks(entry.get("ranks"))):
            groups.append(Group(str(entry.get("pg_name", "")), str(entry.get("pg_desc", "")), ranks))
    devices = raw.get("deviceProperties") or raw.get("computeProperties")
    device = devices[0].get("name") if isinstance(devices, list) and devices and isinstance(devices[0], dict) else None
    return TraceMeta(
        rank=_rank(info.get("rank"), MOST_RANKS - 1),
        world_size=_rank(info.get("world_size"), MOST_RANKS) or None,
        backend=_text(info.get("backend")),
        host=_text(raw.get("host_name")),
        device=_text(device),
        torch_version=_text(raw.get("pytorch_version") or raw.get("torch_version")),
        nccl_version=_text(info.get("nccl_version")),
        groups=tuple(groups),
        with_stack=with_stack or bool(raw.get("with_stack")),
        profile_memory=bool(raw.get("profile_memory")),
        devices=len(devices) if isinstance(devices, list) and devices else None,
    )


def _base_ns(raw: dict[str, Any]) -> int:
    base = raw.get("baseTimeNanoseconds")
    return base if isinstance(base, int) and 0 <= base < (1 << 62) else 0


def _rank(value: Any, most: int) -> int | None:
    number = count(value)
    return number if number is not None and number <= most else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# Kineto's categories, in lower case; a device's own (``xpu_runtime``, ``privateuse1_driver``) end alike.
_TORCHS = frozenset((
    "cpu_op", "operator", "kernel", "memcpy", "memset", "runtime", "user_annotation", "gpu_user_annotation",
    "python_function", "overhead", "trace", "collective_comm", "cuda_sync", "mtia_ccp_events",
    "concurrent_kernel", "cpu_instant_event", "python_gc",
))  # fmt: skip
# Of torch_npu only: what ran on the NPU is in tracks of its own, in msprof's words.
_NPU_QUEUES = {"enqueue", "dequeue"}
_NPU = (
    "it is a trace of an Ascend NPU (torch_npu, msprof), whose device activity traceops cannot read: the host's "
    "operators alone would tell nothing true of its steps; ui.perfetto.dev shows it"
)
_ENDINGS = ("_runtime", "_driver", "_memcpy", "_memset", "_op", "_kernel", "_user_annotation")
# What is in the first bytes or the last of a file of each program; the first that is found counts.
_MAKERS: tuple[tuple[bytes, str], ...] = (
    (b"viztracer", "VizTracer"),
    (b'"/device:', "the profiler of JAX or TensorFlow"),
    (b'"/host:CPU"', "the profiler of JAX or TensorFlow"),
    (b'"model_loading', "ONNX Runtime"),
    (b"NEGOTIATE_", "Horovod's timeline"),
    (b'"CPU functions"', "torch.autograd.profiler without Kineto"),
    (b'"CUDA functions"', "torch.autograd.profiler without Kineto"),
    (b'"DevTools"', "Chrome"),
    (b'"ThreadControllerImpl', "Chrome"),
    (b'"CrBrowserMain"', "Chrome"),
    (b'"perfetto', "Perfetto"),
    (b'"clang', "clang's -ftime-trace"),
    (b'"Total Frontend"', "clang's -ftime-trace"),
)
_LOOKED_AT = 1 << 20
_PHASE = b'"ph"'
_NO_EVENTS = 'it is no Chrome trace: what it lists has no phase ("ph"), as each event of one has'


def why_foreign(trace: RankTrace) -> str:
    """What a trace is that holds nothing of torch's profiler; empty for torch's own, and for one that is damaged."""
    categories = {category.lower() for category in trace.events.cats}
    if categories >= _NPU_QUEUES:
        return _NPU
    torchs = any(name in _TORCHS or name.endswith(_ENDINGS) for name in categories)
    if trace.damage or trace.meta != TraceMeta() or torchs:
        return ""
    # Read the first and the last bytes of the file.
    begin, end = b"", b""
    try:
        with open_binary(trace.path) as file:
            for piece in chunks(file):
                begin += piece[: _LOOKED_AT - len(begin)]
                end = (end + piece)[-_LOOKED_AT:]
    except Damaged:
        pass
    text = begin + end
    maker = next((maker for sign, maker in _MAKERS if sign in text), None)
    if maker is None and _PHASE not in text:
        return _NO_EVENTS
    what = f"it is a Chrome trace by {maker}" if maker else "it is a Chrome trace, but none of torch's profiler"
    return f"{what}: it holds no event of a kind that torch.profiler writes; ui.perfetto.dev shows it"
