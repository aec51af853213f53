"""Loads one torch.profiler (kineto) trace into columns; times become int64 ns."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from traceops.core.units import events_text
from traceops.traces.collective import count, parse_ranks, with_known_ranks
from traceops.traces.event_columns import EventColumns
from traceops.traces.model import Group, RankTrace, TraceMeta
from traceops.traces.recorded import with_recorded
from traceops.traces.run_manifest import MOST_RANKS
from traceops.traces.scan import Scanner
from traceops.traces.source import chunks, is_remote, open_binary, read_ahead
from traceops.traces.times import EXACT_FLOAT_US, first_times_us

_MOST_UNREADABLE = 0.01  # of the events: with more of them lost, what is missing is not told from what was not there


def load_trace(path: str, ahead: bool = True) -> RankTrace:
    """Read a `.json` or `.json.gz` trace, local or remote, as far as it is readable.

    `ahead`: a thread reads and unzips meanwhile, which pays where a core is free for it.

    Damage is listed in the result rather than raised: what could be read is used, and said.
    Raises InputError where the file cannot be opened at all.
    """
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects that are all freed by reference count
    try:
        with open_binary(path) as file:
            pieces = chunks(file)
            scanner = Scanner(read_ahead(pieces) if ahead else pieces)
            times = first_times_us(scanner.peek())
            columns = EventColumns(exact=max(times, default=0.0) >= EXACT_FLOAT_US)
            scanner.read(columns)
            events = columns.finish(_base_ns(scanner.meta))
            frames = columns.frames(_base_ns(scanner.meta))
    finally:
        if collecting:
            gc.enable()
    damage = list(dict.fromkeys(scanner.damage))
    counts = {"not readable": scanner.unreadable, "without a valid time": columns.bad_times}
    damage += [f"{events_text(count)} {what}" for what, count in counts.items() if count]
    meta = read_meta(scanner.meta, columns.with_stack)
    comm = with_recorded(events, scanner.meta)
    events = replace(events, comm=with_known_ranks(comm, meta.groups))
    size = 0 if is_remote(path) else Path(path).stat().st_size
    incomplete = scanner.cut_off or scanner.unreadable > _MOST_UNREADABLE * len(events)
    return RankTrace(path, meta, events, tuple(damage), size, frames, incomplete)


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
