"""Loads one torch.profiler (kineto) trace into columns; times become int64 ns."""

from __future__ import annotations

import gc
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from traceops.load.event import ExactEvent, RawEvent
from traceops.load.run_manifest import MOST_RANKS
from traceops.load.scan import Scanner
from traceops.load.source import chunks, is_remote, open_binary
from traceops.model import CommArgs, Events, Group, RankTrace, TraceMeta

# Below this a float of µs with three decimals still rounds to the right ns (half a spacing of
# doubles under 2**43 is less than half a ns); above it we read the digits themselves.
_EXACT_FLOAT_US = float((1 << 43) - (1 << 40))  # the trace may go on for days
# Garbage beyond these is left out; together with the zero of the clock they cannot overflow an int64.
_LATEST_NS = 1 << 61  # 73 years
_LONGEST_NS = 1 << 56  # 2 years
_TS = re.compile(rb'"ts"\s*:\s*"?(-?[0-9.eE+]+)')
_NOT_ACTIVITY = frozenset({"python_function", "Trace"})
_COMM_ANNOTATION = re.compile(r"^(gloo|nccl|mpi|ucc|xccl|hccl):")
_COLUMNS = ("index", "name", "cat", "ts", "dur", "pid", "tid", "stream", "correlation", "shape")


def load_trace(path: str) -> RankTrace:
    """Read a `.json` or `.json.gz` trace, local or remote, as far as it is readable.

    Damage is listed in the result rather than raised: what could be read is used, and said.
    Raises InputError where the file cannot be opened at all.
    """
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects that are all freed by reference count
    try:
        with open_binary(path) as file:
            scanner = Scanner(chunks(file))
            times = map(_float, _TS.findall(scanner.peek()))
            builder = _Builder(max(times, default=0.0) >= _EXACT_FLOAT_US)
            if builder.exact:
                scanner.event_type = ExactEvent
            for batch in scanner.batches():
                builder.add(batch)
    finally:
        if collecting:
            gc.enable()
    damage = list(dict.fromkeys(scanner.damage))
    counts = {"not readable": scanner.unreadable, "without a valid time": builder.bad_times}
    damage += [f"{count} events are {what}" for what, count in counts.items() if count]
    meta = read_meta(scanner.meta, builder.with_stack)
    size = 0 if is_remote(path) else Path(path).stat().st_size
    return RankTrace(path, meta, builder.events(_base_ns(scanner.meta)), tuple(damage), size)


def read_meta(raw: dict[str, Any], with_stack: bool = False) -> TraceMeta:
    """What a trace's metadata tells, each field only if it has the right type."""
    info = raw.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    config = info.get("pg_config")
    groups = []
    for entry in config if isinstance(config, list) else ():
        if isinstance(entry, dict) and (ranks := parse_ranks(entry.get("ranks"))):
            groups.append(Group(str(entry.get("pg_name", "")), str(entry.get("pg_desc", "")), ranks))
    devices = raw.get("deviceProperties")
    device = (
        devices[0].get("name")
        if isinstance(devices, list) and devices and isinstance(devices[0], dict)
        else None
    )
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
    )


def parse_ranks(value: Any) -> tuple[int, ...] | None:
    """Sorted ranks from a list, or from kineto's text such as "[0, 1, 2, 3]"; None if cut short with '...'."""
    if isinstance(value, list) and all(_int(rank) is not None for rank in value):
        return tuple(sorted(set(value))) or None
    if isinstance(value, str) and re.fullmatch(r"\[[\d,\s]*\]", value.strip()):
        return tuple(sorted({int(rank[:9]) for rank in re.findall(r"\d+", value)})) or None
    return None


class _Builder:
    """Gathers batches of events into columns."""

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        self.bad_times = 0
        self.with_stack = False
        self._seen = 0
        self._rows = 0
        self._names: dict[str, int] = {}
        self._cats: dict[str, int] = {}
        self._shapes: dict[bytes, int] = {}
        self._parts: dict[str, list[np.ndarray[Any, Any]]] = {column: [] for column in _COLUMNS}
        self._comm: dict[int, CommArgs] = {}

    def add(self, batch: list[RawEvent]) -> None:
        kept = [
            (number, event)
            for number, event in enumerate(batch, self._seen)
            if event.ph == "X" and event.cat is not None and event.cat not in _NOT_ACTIVITY
        ]
        self.with_stack = self.with_stack or any(event.cat == "python_function" for event in batch)
        self._seen += len(batch)
        if not kept:
            return
        events = [event for _, event in kept]
        ts, ts_valid = self._times([event.ts for event in events])
        dur, dur_valid = self._times([event.dur for event in events])
        valid = ts_valid & dur_valid & (dur >= 0) & (dur < _LONGEST_NS)
        if not valid.all():
            # Without a duration it is no damage, just no activity (HTA drops these as well).
            self.bad_times += sum(not ok and _is_given(e.dur) for ok, e in zip(valid, events, strict=True))
            kept = [pair for pair, ok in zip(kept, valid, strict=True) if ok]
            events = [event for _, event in kept]
            ts, dur = ts[valid], dur[valid]
        names, cats = self._names, self._cats
        columns: dict[str, Any] = {
            "index": np.array([number for number, _ in kept], dtype=np.int64),
            "name": np.array([names.setdefault(e.name, len(names)) for e in events], dtype=np.int32),
            "cat": np.array([cats.setdefault(e.cat or "", len(cats)) for e in events], dtype=np.int32),
            "ts": ts,
            "dur": dur,
            "pid": _ints([e.pid for e in events]),
            "tid": _ints([e.tid for e in events]),
            "stream": _ints([-1 if (a := e.args) is None or a.stream is None else a.stream for e in events]),
            "correlation": _ints(
                [-1 if (a := e.args) is None or a.correlation is None else a.correlation for e in events]
            ),
            "shape": np.array(
                [-1 if (a := e.args) is None or not a.dims else self._shape(a.dims) for e in events],
                dtype=np.int32,
            ),
        }
        for row, event in enumerate(events, self._rows):
            if event.args is not None and (
                event.args.op is not None or (event.args.dims and _COMM_ANNOTATION.match(event.name))
            ):
                self._comm[row] = _comm_args(event)
        for column, values in columns.items():
            self._parts[column].append(values)
        self._rows += len(events)

    def events(self, base_ns: int) -> Events:
        def column(name: str, dtype: Any = np.int64) -> Any:
            parts = self._parts[name]
            return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)

        return Events(
            index=column("index"),
            name=column("name", np.int32),
            cat=column("cat", np.int32),
            ts=column("ts") + base_ns,
            dur=column("dur"),
            pid=column("pid"),
            tid=column("tid"),
            stream=column("stream"),
            correlation=column("correlation"),
            shape=column("shape", np.int32),
            names=tuple(self._names),
            cats=tuple(self._cats),
            shapes=tuple(shape.decode("utf-8", "replace") for shape in self._shapes),
            comm=self._comm,
        )

    def _shape(self, dims: msgspec.Raw) -> int:
        text = bytes(dims)
        return self._shapes.setdefault(text, len(self._shapes))

    def _times(self, values: list[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """µs to int64 ns, and which of them are numbers that fit."""
        if self.exact:
            digits = [digits_to_ns(bytes(value)) if value else None for value in values]
            valid = np.array([ns is not None and abs(ns) < _LATEST_NS for ns in digits])
            return _ints([ns if ok else 0 for ns, ok in zip(digits, valid, strict=True)]), valid
        us = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        valid = np.abs(us) < _LATEST_NS / 1000  # which NaN is not
        fraction, whole = np.modf(np.where(valid, us, 0.0))  # the product of both would be rounded once more
        return whole.astype(np.int64) * 1000 + np.rint(fraction * 1000.0).astype(np.int64), valid


def digits_to_ns(digits: bytes) -> int | None:
    """Decimal µs, as written in the file, to ns without passing through a float; None if no number."""
    text = digits.decode("ascii", "replace").strip('" ')
    match = re.fullmatch(r"(-?)(\d{1,16})(?:\.(\d*))?", text)
    if match is None:
        try:
            value = float(text) * 1000.0
        except ValueError:
            return None
        return round(value) if abs(value) < _LATEST_NS else None
    sign, whole, fraction = match.groups()
    fraction = (fraction or "").ljust(4, "0")
    ns = int(whole) * 1000 + int(fraction[:3]) + (fraction[3] >= "5")
    return -ns if sign else ns


def _comm_args(event: RawEvent) -> CommArgs:
    args = event.args
    assert args is not None
    if args.op is None:  # gloo's annotations have shapes only: the first input's
        return CommArgs(op=event.name.partition(":")[2], elements_in=_elements(args.dims))
    ranks = parse_ranks(args.group_ranks)
    return CommArgs(
        op=args.op,
        elements_in=_int(args.elements_in),
        elements_out=_int(args.elements_out),
        dtype=args.dtype,
        group_size=_int(args.group_size),
        group_name=args.group_name,
        group_description=args.group_description,
        group_ranks=ranks,
        sequence=_int(args.sequence),
        source=_int(args.source),
        destination=_int(args.destination),
    )


def _elements(dims: msgspec.Raw) -> int | None:
    """Elements of all tensors in an "Input Dims" argument, None where it is no list of shapes."""
    try:
        shapes = msgspec.json.decode(dims)
    except (msgspec.DecodeError, RecursionError):
        return None
    total = 0
    pending = list(shapes) if isinstance(shapes, list) else []
    while pending:
        shape = pending.pop()
        if not isinstance(shape, list) or not shape:
            continue
        if all(isinstance(size, int) for size in shape):
            total += math.prod(shape)
        else:
            pending.extend(shape)
    return _int(total) or None


def _is_given(time: Any) -> bool:
    return time is not None and (isinstance(time, float) or bytes(time) not in (b"", b"null"))


def _ints(values: list[Any]) -> np.ndarray[Any, Any]:
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_int_or_missing(value) for value in values], dtype=np.int64)


def _int_or_missing(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return -1
    return number if -(1 << 62) < number < (1 << 62) else -1


def first_ts_us(text: bytes) -> float:
    """The first timestamp in a piece of trace JSON, µs without its sign; 0 where there is none."""
    match = _TS.search(text)
    return _float(match.group(1)) if match else 0.0


def _float(digits: bytes) -> float:
    try:
        return abs(float(digits))
    except ValueError:
        return 0.0


def _base_ns(raw: dict[str, Any]) -> int:
    base = raw.get("baseTimeNanoseconds")
    return base if isinstance(base, int) and 0 <= base < (1 << 62) else 0


def _int(value: Any) -> int | None:
    """A count or number that arithmetic on int64 survives."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def _rank(value: Any, most: int) -> int | None:
    number = _int(value)
    return number if number is not None and number <= most else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
