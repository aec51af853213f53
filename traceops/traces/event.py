"""One event as the file has it: the fields we use, decoded strictly for speed or leniently for damage, and its times.

Moments and durations, µs in whatever writing, become int64 ns.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceops.traces.scan import CLOSED, MORE, ODD

# Below this a float of µs with three decimals still rounds to the right ns (half a spacing of
# doubles under 2**43 is less than half a ns); above it we read the digits themselves.
EXACT_FLOAT_US = float((1 << 43) - (1 << 40))  # the trace may go on for days
# Garbage beyond these is left out; together with the zero of the clock they cannot overflow an int64.
LATEST_NS = 1 << 61  # 73 years
LONGEST_NS = 1 << 56  # 2 years
_TS = re.compile(rb'"ts"\s*:\s*"?(-?[0-9.eE+]+)')

Times = tuple[NDArray[np.int64], NDArray[np.bool_]]  # ns, and which of them are numbers that fit


def first_times_us(text: bytes) -> list[float]:
    """The timestamps in a piece of trace JSON, µs without their sign; 0 for those that cannot be."""
    values = (abs(to_float(digits)) for digits in _TS.findall(text))
    return [us if us < LATEST_NS / 1000 else 0.0 for us in values]


def floats_to_ns(values: list[float | None]) -> Times:
    """µs to ns."""
    us = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    valid = np.abs(us) < LATEST_NS / 1000  # which NaN is not
    fraction, whole = np.modf(np.where(valid, us, 0.0))  # the product of both would be rounded once more
    return whole.astype(np.int64) * 1000 + np.rint(fraction * 1000.0).astype(np.int64), valid


def texts_to_ns(values: list[Any]) -> Times:
    """Raw JSON of µs to ns without passing through a float."""
    digits = [digits_to_ns(bytes(value)) if value else None for value in values]
    valid = np.array([ns is not None and abs(ns) < LATEST_NS for ns in digits], dtype=np.bool_)
    fitting = [ns if ok else 0 for ns, ok in zip(digits, valid, strict=True)]
    return np.array(fitting, dtype=np.int64), valid


def digits_to_ns(digits: bytes) -> int | None:
    """Decimal µs, as written in the file, to ns without passing through a float; None if no number."""
    text = digits.decode("ascii", "replace").strip('" ')
    if (match := re.fullmatch(r"(-?)(\d{1,16})(?:\.(\d*))?", text)) is None:
        try:
            value = float(text) * 1000.0
        except ValueError:
            return None
        return round(value) if abs(value) < LATEST_NS else None
    sign, whole, fraction = match.groups()
    fraction = (fraction or "").ljust(4, "0")
    ns = int(whole) * 1000 + int(fraction[:3]) + (fraction[3] >= "5")
    return -ns if sign else ns


def to_float(value: Any) -> float:
    """µs of any type, NaN where it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


_ABSENT = msgspec.Raw(b"")
_RAW = ("Input Dims", "grid", "bytes", "size", "Input type", "Input Strides", "Concrete Inputs")

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class _Args(msgspec.Struct, gc=False):
    stream: int | str | None = None
    correlation: int | None = None
    external: int | str | None = msgspec.field(default=None, name="External id")
    order: int | str | None = msgspec.field(default=None, name="Sequence number")
    dims: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Dims")
    grid: msgspec.Raw = _ABSENT
    size: msgspec.Raw = msgspec.field(default=_ABSENT, name="bytes")
    call_size: msgspec.Raw = msgspec.field(default=_ABSENT, name="size")
    types: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=_ABSENT, name="Input Strides")
    concrete: msgspec.Raw = msgspec.field(default=_ABSENT, name="Concrete Inputs")
    op: str | None = msgspec.field(default=None, name="Collective name")
    elements_in: int | None = msgspec.field(default=None, name="In msg nelems")
    elements_out: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = msgspec.field(default=None, name="dtype")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    group_name: str | None = msgspec.field(default=None, name="Process Group Name")
    group_description: str | None = msgspec.field(default=None, name="Process Group Description")
    group_ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    sequence: int | None = msgspec.field(default=None, name="Seq")
    source: int | None = msgspec.field(default=None, name="Src Rank")
    destination: int | None = msgspec.field(default=None, name="Dst Rank")


NO_ARGS = _Args()


class RawEvent(msgspec.Struct, gc=False):
    """The fields we use of one event; `ts` and `dur` in µs."""

    ph: str = ""
    name: str = ""
    cat: str | None = None
    ts: float | None = None
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: _Args | None = None


class ExactEvent(RawEvent, gc=False):
    """The same with times as the file's own digits, for times too large to be exact as a float."""

    ts: msgspec.Raw = _ABSENT  # type: ignore[assignment]
    dur: msgspec.Raw = _ABSENT  # type: ignore[assignment]


class _WithRawArgs(msgspec.Struct):
    args: dict[str, msgspec.Raw]


def decode_event(value: Any, text: str, event_type: type[RawEvent]) -> RawEvent | None:
    """One event by itself: `value` is what Python's json made of `text`. None if it is no event. Fields that have our
    types are as in the file; whatever else a tool wrote is taken as it is meant: numbers as strings, fields of odd
    types left out."""
    try:
        return msgspec.json.decode(text, type=event_type)
    except (msgspec.DecodeError, RecursionError):
        return _lenient(value, text, event_type)


def _lenient(value: Any, text: str, event_type: type[RawEvent]) -> RawEvent | None:
    if not isinstance(value, dict) or not isinstance(value.get("ph", ""), str):
        return None
    if not isinstance(value.get("cat"), (str, type(None))):
        return None
    value = dict(value)
    for key in ("ts", "dur"):
        if value.get(key) is None:
            value.pop(key, None)
        else:
            value[key] = msgspec.Raw(str(value[key]).encode()) if event_type is ExactEvent else to_float(value[key])
    args = value.get("args")
    if isinstance(args, dict) and (given := [key for key in _RAW if key in args]):
        try:
            raw = msgspec.json.decode(text, type=_WithRawArgs).args  # as the file has it
        except (msgspec.DecodeError, RecursionError):
            raw = {}
        value["args"] = {**args, **{key: raw.get(key, msgspec.Raw(json.dumps(args[key]).encode())) for key in given}}
    try:
        return msgspec.convert(value, event_type, strict=False)
    except msgspec.ValidationError:
        return _salvage(value, event_type)


def _salvage(value: dict[str, Any], kind: type[_Struct]) -> _Struct:
    """A struct of those fields that have its types."""
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        part = value.get(field.encode_name)
        try:
            kept[field.name] = msgspec.convert(part, field.type, strict=False)
        except msgspec.ValidationError:
            if field.name == "args" and isinstance(part, dict):
                kept["args"] = _salvage(part, _Args)
    return kind(**kept)


Event = TypeVar("Event")

# Between two events: `},\n  {"`. Inside an event's arguments the same can only stand in a list of
# objects or a string; then the batch does not decode and is read event by event instead.
_SEPARATOR = re.compile(rb'\}\s*,\s*(?=\{\s*["}])')
_KINETO_SEPARATOR = b'},\n  {\n    "'
_ARRAY_END = re.compile(rb"\}\s*\]")


def decode_events(decode: Callable[[bytes], list[Event]], text: bytes, ended: bool) -> tuple[list[Event], int, int]:
    """Events that `decode` makes of a JSON list, the bytes they took, and MORE, ODD or CLOSED (see Sink.take)."""
    end = _last_match(_ARRAY_END, text) if ended else None
    cut = end.start() + 1 if end else _last_separator(text)
    if cut is None:
        return [], 0, ODD if ended else MORE
    try:
        events = decode(b"[" + text[:cut] + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [], 0, ODD
    return (events, end.end(), CLOSED) if end else (events, cut + 1, MORE)


def _last_separator(text: bytes) -> int | None:
    """Offset of the last comma that seems to stand between two events."""
    if (at := text.rfind(_KINETO_SEPARATOR)) >= 0:
        return at + 1
    match = _last_match(_SEPARATOR, text)
    return None if match is None else text.index(b",", match.start())


def _last_match(pattern: re.Pattern[bytes], text: bytes) -> re.Match[bytes] | None:
    """The last match in the last 64 kB, which hold the end of any list of events and most events."""
    last = None
    for last in pattern.finditer(text, max(len(text) - (1 << 16), 0)):  # noqa: B007
        pass
    return last
