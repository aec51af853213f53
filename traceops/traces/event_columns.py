"""The sink that gathers a trace's complete events into columns: in compiled code as far as that goes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceops.traces.event import (
    LONGEST_NS,
    NO_ARGS,
    ExactEvent,
    RawEvent,
    decode_event,
    decode_events,
    floats_to_ns,
    texts_to_ns,
)
from traceops.traces.model import (
    CAT,
    CommArgs,
    Events,
    Frames,
    collective_of,
    collective_of_annotation,
    frames_of,
    is_annotation,
    kept_frames,
)
from traceops.traces.scan import ODD

if TYPE_CHECKING:
    from traceops.traces import _native

WIDE = ("index", "ts", "dur", "pid", "tid", "stream", "correlation", "external", "sequence")  # int64
NARROW = ("name", "cat", "shape", "types", "strides", "concrete")  # int32, numbers of strings
_LAYOUT = 4  # what the columns hold, as native/events.h has it

Array = NDArray[Any]


class Columns(Protocol):
    """Rows of events, added in file order; what the compiled scanner and PlainColumns have in common."""

    rows: int
    seen: int  # events of all phases
    bad_times: int  # complete events without a usable time
    with_stack: int  # whether there were Python frames

    def number(self, column: str, text: str, /) -> int:
        """The text's number in one of NARROW, a new one if it is new."""

    def extend(self, columns: dict[str, Array], /) -> None:
        """Add rows: a key for each of WIDE and NARROW, equally long."""

    def strings(self, column: str, /) -> tuple[str, ...]:
        """All texts of one of NARROW, by number."""

    def finish(self) -> dict[str, Any]:
        """A buffer for each of WIDE and NARROW; no rows can be added any more."""


class PlainColumns:
    """Columns in NumPy, for where there is no compiled scanner."""

    def __init__(self) -> None:
        self.rows = self.seen = self.bad_times = self.with_stack = 0
        self._strings: dict[str, dict[str, int]] = {column: {} for column in NARROW}
        self._parts: dict[str, list[Array]] = {column: [] for column in (*WIDE, *NARROW)}

    def number(self, column: str, text: str) -> int:
        """As Columns says."""
        numbers = self._strings[column]
        return numbers.setdefault(text, len(numbers))

    def extend(self, columns: dict[str, Array]) -> None:
        """As Columns says."""
        for column, parts in self._parts.items():
            parts.append(columns[column])
        self.rows += len(columns["ts"])

    def strings(self, column: str) -> tuple[str, ...]:
        """As Columns says."""
        return tuple(self._strings[column])

    def finish(self) -> dict[str, Array]:
        """As Columns says."""
        return {
            column: np.concatenate(parts) if parts else np.empty(0, dtype_of(column))
            for column, parts in self._parts.items()
        }


def dtype_of(column: str) -> type[np.int64] | type[np.int32]:
    """The type of a column's numbers."""
    return np.int64 if column in WIDE else np.int32


def native_columns(exact: bool) -> _native.Columns | None:
    """Columns of the compiled scanner; None where TRACEOPS_NATIVE=0 forbids it, or it was not built of this version."""
    if os.environ.get("TRACEOPS_NATIVE") == "0":
        return None
    try:
        from traceops.traces import _native
    except ImportError:
        return None
    return None if getattr(_native, "LAYOUT", 1) != _LAYOUT else _native.Columns(exact)


_NOT_ACTIVITY = frozenset({CAT, "Trace"})
_MOST_PENDING = 4096
_MOST_ID = 1 << 62


@cache
def _decoders(exact: bool) -> tuple[json.JSONDecoder, Any, Any]:
    """Of anything, of a list of events and of one event."""
    kind = ExactEvent if exact else RawEvent
    plain = json.JSONDecoder(parse_float=str if exact else None)  # digits a float would lose
    return plain, msgspec.json.Decoder(list[kind]).decode, msgspec.json.Decoder(kind).decode  # type: ignore[valid-type]


class EventColumns:
    """Columns of one trace; `exact` where its times are too large to be exact as a float."""

    def __init__(self, exact: bool) -> None:
        self.decoder = _decoders(exact)[0]
        self._native = native_columns(exact)
        self._columns: Columns = self._native or PlainColumns()
        self._event_type = ExactEvent if exact else RawEvent
        self._to_ns = texts_to_ns if exact else floats_to_ns
        _, self._decode, self._decode_one = _decoders(exact)
        self._numbers = {column: _Numbers(self._columns, column) for column in NARROW}
        self._pending: list[RawEvent] = []  # read one by one
        self._comm: dict[int, CommArgs] = {}
        self._frames: list[bytes | RawEvent] = []

    @property
    def bad_times(self) -> int:
        """Complete events left out because their time is no time."""
        return self._columns.bad_times

    @property
    def with_stack(self) -> bool:
        """Whether the profiler recorded Python frames."""
        return bool(self._columns.with_stack)

    def take(self, text: bytes, ended: bool) -> tuple[int, int]:
        """As Sink says."""
        self._flush()
        done = 0
        if self._native is not None:
            done, state = self._native.take(text)
            kept = self._native.collectives()
            self._frames += [json_text for row, json_text in kept if row < 0]
            rows = [row for row, _ in kept if row >= 0]
            for row, event in zip(rows, self._wholes([json_text for row, json_text in kept if row >= 0]), strict=True):
                if event is not None and (said := collective_of(event)) is not None:
                    self._comm[row] = said
            if state != ODD:
                return done, state
        events, length, state = decode_events(self._decode, text[done:], ended)
        if events:
            self._extend(events)
        return done + length, state

    def add(self, value: Any, text: str) -> bool:
        """As Sink says."""
        if (event := decode_event(value, text, self._event_type)) is not None:
            self._pending.append(event)
            if len(self._pending) >= _MOST_PENDING:
                self._flush()
        return event is not None

    def finish(self, base_ns: int) -> Events:
        """All rows; `base_ns` is the zero of the file's clock, ns since the epoch."""
        self._flush()
        names, cats, shapes, types, strides, concrete = (self._columns.strings(column) for column in NARROW)
        columns: dict[str, Any] = {
            name: np.frombuffer(buffer, dtype_of(name)) for name, buffer in self._columns.finish().items()
        }
        columns["ts"] += base_ns
        notes = np.array([is_annotation(name) for name in names], dtype=np.bool_)
        noted = (notes.take(columns["name"]) & (columns["shape"] >= 0)).nonzero()[0]
        for row in noted.tolist():
            if row not in self._comm:
                name, shape = names[columns["name"][row]], shapes[columns["shape"][row]]
                self._comm[row] = collective_of_annotation(name, shape)
        return Events(
            **columns,
            names=names,
            cats=cats,
            shapes=shapes,
            type_lists=types,
            stride_lists=strides,
            concrete_lists=concrete,
            comm=dict(sorted(self._comm.items())),
        )

    def frames(self, base_ns: int) -> Frames:
        """Python frames of modules, and those that last long; `base_ns` as in `finish`, behind which this stands."""
        found = iter(self._wholes([one for one in self._frames if isinstance(one, bytes)]))
        frames = [next(found) if isinstance(one, bytes) else one for one in self._frames]
        return frames_of([one for one in frames if one is not None], self._to_ns, _ids, base_ns)

    def _wholes(self, texts: Sequence[bytes]) -> Sequence[RawEvent | None]:
        """`_whole` of each; all at once takes a fraction of the time."""
        if not texts:
            return ()
        try:
            events: Sequence[RawEvent | None] = self._decode(b"[" + b",".join(texts) + b"]")
        except (msgspec.DecodeError, RecursionError):
            events = [self._whole(text) for text in texts]
        return events

    def _whole(self, text: bytes) -> RawEvent | None:
        """An event that is right JSON, decoded with all we know of its arguments."""
        try:
            one: RawEvent = self._decode_one(text)
            return one
        except (msgspec.DecodeError, RecursionError):
            return decode_event(self.decoder.decode(text.decode()), text.decode(), self._event_type)

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            self._extend(pending)

    def _extend(self, batch: list[RawEvent]) -> None:
        """Add the complete events of a batch that have a usable time."""
        columns = self._columns
        kept = [
            (number, event)
            for number, event in enumerate(batch, columns.seen)
            if event.ph == "X" and event.cat is not None and event.cat not in _NOT_ACTIVITY
        ]
        if frames := [event for event in batch if event.cat == CAT]:
            columns.with_stack = 1
            self._frames += kept_frames(frames, self._to_ns)
        columns.seen += len(batch)
        ts, ts_valid = self._to_ns([event.ts for _, event in kept])
        dur, dur_valid = self._to_ns([event.dur for _, event in kept])
        valid = ts_valid & dur_valid & (dur >= 0) & (dur < LONGEST_NS)
        if not valid.all():
            # Without a duration it is no damage, just no activity (HTA drops these as well).
            columns.bad_times += sum(not ok and _is_given(e.dur) for ok, (_, e) in zip(valid, kept, strict=True))
            kept = [pair for pair, ok in zip(kept, valid, strict=True) if ok]
            ts, dur = ts[valid], dur[valid]
        if not kept:
            return
        events = [event for _, event in kept]
        names, cats, shapes, *_ = (self._numbers[column] for column in NARROW)
        for row, event in enumerate(events, columns.rows):
            if (said := collective_of(event)) is not None:
                self._comm[row] = said
        args = [event.args or NO_ARGS for event in events]
        numbers: dict[str, Any] = {
            "index": [number for number, _ in kept],
            "pid": _ids([e.pid for e in events]),
            "tid": _ids([e.tid for e in events]),
            "name": [names[e.name] for e in events],
            "cat": [cats[e.cat or ""] for e in events],
            "shape": [shapes[bytes(dims)] if (dims := a.dims or a.grid or a.size or a.call_size) else -1 for a in args],
        }
        for column, field in (("stream",) * 2, ("correlation",) * 2, ("external",) * 2, ("sequence", "order")):
            numbers[column] = _ids([-1 if (one := getattr(a, field)) is None else one for a in args])
        for column in ("types", "strides", "concrete"):
            known = self._numbers[column]
            numbers[column] = [known[bytes(one)] if (one := getattr(a, column)) else -1 for a in args]
        arrays = {column: np.array(values, dtype_of(column)) for column, values in numbers.items()}
        columns.extend({**arrays, "ts": ts, "dur": dur})


class _Numbers(dict[Any, int]):
    """Numbers of texts in one column, looked up without a call where they are known."""

    def __init__(self, columns: Columns, column: str) -> None:
        self._columns, self._column = columns, column

    def __missing__(self, text: str | bytes) -> int:
        decoded = text if isinstance(text, str) else text.decode("utf-8", "replace")
        number = self[text] = self._columns.number(self._column, decoded)
        return number


def _is_given(time: Any) -> bool:
    return time is not None and (isinstance(time, float) or bytes(time) not in (b"", b"null"))


def _ids(values: list[Any]) -> NDArray[np.int64]:
    """Process, thread, stream and correlation ids; -1 for what is no number, or none that fits."""
    try:
        numbers = np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([_id_or_missing(value) for value in values], dtype=np.int64)
    return np.where(np.abs(numbers) < _MOST_ID, numbers, -1)


def _id_or_missing(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return -1
    return number if -_MOST_ID < number < _MOST_ID else -1
