"""Packets of Perfetto's native format: tracks in an order that is said, slices, counters, names once.

Field numbers are those of protos/perfetto/trace/ in Perfetto's repository; they never change there."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

# The few wire types of protocol buffers that a Perfetto trace needs [protobuf.dev, encoding].


_VARINT, _FIXED64, _BYTES = 0, 1, 2
_WRAP = 1 << 64
_double = struct.Struct("<d").pack
_fixed64 = struct.Struct("<Q").pack


def varint(value: int) -> bytes:
    """An integer as base 128, lowest first; negative ones as two's complement of 64 bits, as int64 asks."""
    if 0 <= value < 128:
        return _SHORT[value]
    value %= _WRAP
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT = tuple(bytes((value,)) for value in range(128))


def key(field: int, wire: int) -> bytes:
    """What stands before a field's value."""
    return varint(field << 3 | wire)


def number(field: int, value: int) -> bytes:
    """A field of an integer, bool or enum type."""
    return key(field, _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field of type fixed64."""
    return key(field, _FIXED64) + _fixed64(value % _WRAP)


def double(field: int, value: float) -> bytes:
    """A field of type double."""
    return key(field, _FIXED64) + _double(value)


def data(field: int, value: bytes) -> bytes:
    """A field of bytes, or of a message that was encoded."""
    return key(field, _BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field of text; halves of surrogate pairs, which UTF-8 does not have, become question marks."""
    return data(field, value.encode("utf-8", "replace"))


_PACKET, _EVENT = 1, 11  # in Trace and TracePacket
_BEGIN, _END, _INSTANT, _COUNTER = (number(9, kind) for kind in (1, 2, 3, 4))
_EXPLICIT = number(11, 3)  # children in the order of their ranks
_NO_MERGE = number(15, 2)  # tracks of one name stay apart
_CLEARED, _NEEDS = number(13, 1), number(13, 2)
_UNITS = {"count": 2, "bytes": 3}
_INTERNED = {"category": 1, "name": 2, "annotation": 3, "string": 29}
_LONGEST_SHARED = 1 << 17  # annotations kept ready to be written again


class Track(Struct, frozen=True):
    """A row of the timeline: `order` is its place among the children of its parent (0: at the top).

    unit: of a counter's values: 'bytes', 'count', or words such as 'GB/s'; empty for rows of slices.
    """

    uuid: int
    parent: int
    name: str
    order: int
    unit: str = ""
    description: str = ""


class Bar(Struct, frozen=True):
    """A slice on its way to a track, ns; `body` is what its begin says besides time and track."""

    start: int
    end: int
    body: bytes
    flows: tuple[int, ...] = ()


class Packets:
    """Writes the packets of one sequence: text is written once and referred to by number.

    What it returns is to be written in that order. `sequence` is another for each piece of the file.
    """

    def __init__(self, sequence: int) -> None:
        self._sequence = number(10, sequence)
        self._numbers: dict[str, dict[str, int]] = {kind: {} for kind in _INTERNED}
        self._new: list[bytes] = []
        self._shared: dict[tuple[str, type, Any], bytes] = {}
        self._first = True

    def track(self, track: Track) -> bytes:
        """The packet that describes a track."""
        body = [number(1, track.uuid), text(2, track.name), _EXPLICIT, _NO_MERGE, number(12, track.order)]
        if track.parent:
            body.append(number(5, track.parent))
        if track.description:
            body.append(text(14, track.description))
        if track.unit:
            unit = _UNITS.get(track.unit)
            body.append(data(8, text(6, track.unit) if unit is None else number(3, unit)))
        return self._packet(None, data(60, b"".join(body)))

    def body(self, name: str, category: str, args: Mapping[str, Any]) -> bytes:
        """What a slice or an instant says: name, category and arguments."""
        parts = [number(10, self._number("name", name))]
        if category:
            parts.append(number(3, self._number("category", category)))
        parts += (self._annotation(name, value) for name, value in args.items())
        return b"".join(parts)

    def slices(self, uuid: int, bars: Sequence[Bar]) -> bytes:
        """Begins and ends of slices that nest or do not touch, sorted by begin, the longer first."""
        on, ends = number(11, uuid), self._event(_END + number(11, uuid))
        out: list[bytes] = []
        open_ends: list[int] = []
        for bar in bars:
            while open_ends and open_ends[-1] <= bar.start:
                out.append(self._packet(open_ends.pop(), ends))
            flows = b"".join(fixed64(47, flow) for flow in bar.flows)
            out.append(self._packet(bar.start, self._event(_BEGIN + on + bar.body + flows)))
            open_ends.append(bar.end)
        while open_ends:
            out.append(self._packet(open_ends.pop(), ends))
        return b"".join(out)

    def instant(self, uuid: int, moment: int, body: bytes) -> bytes:
        """A moment on a track, ns."""
        return self._packet(moment, self._event(_INSTANT + number(11, uuid) + body))

    def counter(self, uuid: int, values: Iterable[tuple[int, float]]) -> bytes:
        """Values of a counter, each from its moment (ns) on."""
        start = _COUNTER + number(11, uuid)
        return b"".join(self._packet(at, self._event(start + double(44, float(value)))) for at, value in values)

    def _event(self, body: bytes) -> bytes:
        return data(_EVENT, body)

    def _packet(self, moment: int | None, body: bytes) -> bytes:
        parts = [] if moment is None else [number(8, moment)]
        parts += [self._sequence, _CLEARED if self._first else _NEEDS]
        self._first = False
        if self._new:
            parts.append(data(12, b"".join(self._new)))
            self._new = []
        parts.append(body)
        whole = b"".join(parts)
        return key(_PACKET, 2) + varint(len(whole)) + whole

    def _number(self, kind: str, value: str) -> int:
        numbers = self._numbers[kind]
        found = numbers.get(value)
        if found is None:
            found = numbers[value] = len(numbers) + 1
            self._new.append(data(_INTERNED[kind], number(1, found) + text(2, value)))
        return found

    def _annotation(self, name: str, value: Any) -> bytes:
        if isinstance(value, (list, tuple)):  # shapes, strides: one line says more than a tree
            value = _json(value)
        if isinstance(value, dict):
            parts = b"".join(data(11, self._entry(key, part)) for key, part in value.items())
            return data(4, number(1, self._number("annotation", name)) + parts)
        shared = name, type(value), value
        found = self._shared.get(shared)
        if found is None:
            found = data(4, number(1, self._number("annotation", name)) + self._value(value))
            if len(self._shared) < _LONGEST_SHARED:
                self._shared[shared] = found
        return found

    def _entry(self, name: str, value: Any) -> bytes:
        """A member of an object; what lies deeper is text."""
        return text(10, str(name)) + self._value(_json(value) if isinstance(value, (list, dict)) else value)

    def _value(self, value: Any) -> bytes:
        if isinstance(value, bool):
            return number(2, int(value))
        if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            return number(4, value)
        if isinstance(value, (int, float)):
            return double(5, float(value)) if abs(value) < 1e300 else text(6, str(value))
        return number(17, self._number("string", "" if value is None else str(value)))


def lanes(bars: Iterable[Bar]) -> list[list[Bar]]:
    """Bars on as few rows as they need, so that on each they nest or do not touch, in the order of `slices`."""
    rows: list[list[Bar]] = []
    open_ends: list[list[int]] = []  # of each row's bars that a later one may lie in
    for bar in sorted(bars, key=lambda bar: (bar.start, -bar.end)):
        for ends in open_ends:
            while ends and ends[-1] <= bar.start:
                ends.pop()
        free = (at for at, ends in enumerate(open_ends) if not ends or bar.end <= ends[-1])
        if (at := next(free, len(rows))) == len(rows):
            rows.append([])
            open_ends.append([])
        rows[at].append(bar)
        open_ends[at].append(bar.end)
    return rows


@functools.cache
def _encoder() -> msgspec.json.Encoder:
    return msgspec.json.Encoder()


def _json(value: Any) -> str:
    return _encoder().encode(value).decode("utf-8", "replace")
