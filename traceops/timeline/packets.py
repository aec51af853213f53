"""Packets of Perfetto's native format: tracks in an order that is said, slices, counters, names once. Field numbers are
those of protos/perfetto/trace/ in Perfetto's repository; they never change there."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from traceops.timeline.processes import DEVICE_CATEGORIES, rank_uuid, track_numbers

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
    """A row of the timeline: `order` is its place among the children of its parent (0: at the top). unit: of a
    counter's values: 'bytes', 'count', or words such as 'GB/s'; empty for rows of slices."""

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
    """Writes the packets of one sequence: text is written once and referred to by number. What it returns is to be
    written in that order. `sequence` is another for each piece of the file."""

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
        on, ends = number(11, uuid), data(_EVENT, _END + number(11, uuid))
        out: list[bytes] = []
        open_ends: list[int] = []
        for bar in bars:
            while open_ends and open_ends[-1] <= bar.start:
                out.append(self._packet(open_ends.pop(), ends))
            flows = b"".join(fixed64(47, flow) for flow in bar.flows)
            out.append(self._packet(bar.start, data(_EVENT, _BEGIN + on + bar.body + flows)))
            open_ends.append(bar.end)
        while open_ends:
            out.append(self._packet(open_ends.pop(), ends))
        return b"".join(out)

    def instant(self, uuid: int, moment: int, body: bytes) -> bytes:
        """A moment on a track, ns."""
        return self._packet(moment, data(_EVENT, _INSTANT + number(11, uuid) + body))

    def counter(self, uuid: int, values: Iterable[tuple[int, float]]) -> bytes:
        """Values of a counter, each from its moment (ns) on."""
        start = _COUNTER + number(11, uuid)
        return b"".join(self._packet(at, data(_EVENT, start + double(44, float(value)))) for at, value in values)

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
        if (found := numbers.get(value)) is None:
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
        if (found := self._shared.get(shared)) is None:
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


def lanes_of(spans: Sequence[tuple[int, int]], *, nest: bool) -> list[int]:
    """The lane of each span (start, end), counted from 0, on as few lanes as they need. On a lane they do not overlap;
    with `nest` one may lie whole within another."""
    found: dict[int, int] = {}
    open_ends: list[list[int]] = []  # of each lane's spans that a later one may lie in
    for at in sorted(range(len(spans)), key=lambda at: (spans[at][0], -spans[at][1])):
        start, end = spans[at]
        for ends in open_ends:
            while ends and ends[-1] <= start:
                ends.pop()
        free = (lane for lane, ends in enumerate(open_ends) if not ends or (nest and end <= ends[-1]))
        found[at] = next(free, len(open_ends))
        if found[at] == len(open_ends):
            open_ends.append([])
        open_ends[found[at]].append(end)
    return [found[at] for at in range(len(spans))]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")


_ROW = tuple[int, str]  # process and thread, as text: a file may have either as number or text
_DEEPEST = 64  # slices that one moment lies in, looked through for whose arrow it is
_MEMORY = "[memory]"
_MEMORY_KINDS = {0: "host", 1: "GPU"}  # c10::DeviceType
_MEMORY_VALUES = {"Total Allocated": "allocated", "Total Reserved": "reserved"}
_RANK = re.compile(r"^rank \d+ · ")


class _Held(Struct):
    """What one thread or stream did: slices with (flow's phase and moment apart), instants, open begins."""

    bars: list[Bar] = field(default_factory=list)
    flows: list[tuple[int, int]] = field(default_factory=list)  # moment, number
    instants: list[tuple[int, bytes]] = field(default_factory=list)
    open: list[tuple[int, bytes]] = field(default_factory=list)


class RankPackets:
    """A sink for one rank's rewritten events. `untold` counts those that the format has no place for."""

    def __init__(self, slot: int, streams: Mapping[int, str]) -> None:
        self.untold = 0
        self._slot, self._streams = slot, streams
        self._packets = Packets(slot + 2)  # 1 is the sequence of what is common to all ranks
        self._rows: dict[_ROW, _Held] = defaultdict(_Held)
        self._counters: dict[tuple[int, str, str], list[tuple[int, float]]] = defaultdict(list)
        self._flows: dict[tuple[str, str, str], int] = {}
        self._asynchronous: dict[tuple[int, str, str], list[tuple[int, bytes]]] = defaultdict(list)
        self._names: dict[_ROW, str] = {}
        self._orders: dict[_ROW, float] = {}
        self._processes: dict[int, str] = {}
        self._places: dict[int, int] = {}
        self._devices: set[int] = set()

    def take(self, events: Sequence[dict[str, Any]]) -> None:
        """Keep the events, whose times are µs since the timeline's zero."""
        for event in events:
            if (phase := event.get("ph")) == "M":
                self._describe(event)
                continue
            start = round(float(event.get("ts", 0)) * 1000)
            row = int(event["pid"]), str(event.get("tid", ""))
            name, category = str(event.get("name", "")), str(event.get("cat", ""))
            if category in DEVICE_CATEGORIES:
                self._devices.add(row[0])
            args = event.get("args")
            args = args if isinstance(args, dict) else {} if args is None else {"args": args}
            if phase == "X":
                end = start + round(float(event.get("dur") or 0) * 1000)
                self._rows[row].bars.append(Bar(start, end, self._packets.body(name, category, args)))
            elif phase in ("i", "I", "R", "n"):
                if name != _MEMORY or not self._memory(row[0], start, args):
                    self._rows[row].instants.append((start, self._packets.body(name, category, args)))
            elif phase in ("s", "t", "f"):
                known = category, name, str(event.get("id"))
                self._rows[row].flows.append((start, self._flows.setdefault(known, len(self._flows) + 1)))
            elif phase == "C":
                self._count(row[0], start, name, args)
            else:
                self._pair(phase, row, start, event, (name, category, args))

    def write(self) -> Iterator[bytes]:
        """Tracks first, then what is on them."""
        packets, place = self._packets, track_numbers(self._slot)
        used = {row[0] for row in self._rows} | {pid for pid, _, _ in self._counters}
        for pid in sorted(used, key=lambda pid: (self._places.get(pid, 0), pid)):
            title = _RANK.sub("", self._processes.get(pid, "")) or f"process {pid}"
            parent = next(place)
            yield packets.track(Track(parent, rank_uuid(self._slot), title, 100 + self._places.get(pid, 0) % 1000))
            own = sorted(row for row in self._rows if row[0] == pid)
            own.sort(key=lambda row: (self._orders.get(row, 0.0), int(row[1]) if row[1].lstrip("-").isdigit() else 0))
            for order, row in enumerate(own):
                yield from self._row(row, parent, order * 100, place)
            for (_, name, unit), values in sorted(self._counters.items()):
                if _ == pid:
                    uuid = next(place)
                    yield packets.track(Track(uuid, parent, name, (len(own) + 1) * 100, unit))
                    yield packets.counter(uuid, sorted(values, key=lambda value: value[0]))

    def _row(self, row: _ROW, parent: int, order: int, place: Iterator[int]) -> Iterator[bytes]:
        held, packets = self._rows[row], self._packets
        for moment, body in held.open:  # begun and never ended
            held.bars.append(Bar(moment, max((bar.end for bar in held.bars), default=moment), body))
        if not held.bars and not held.instants:
            return
        name = self._title(row)
        rows: dict[int, list[Bar]] = {} if held.bars else {0: []}
        # the slices with the arrows that begin or end at them: at the innermost slice that the moment lies in
        bars = sorted(held.bars, key=lambda bar: (bar.start, -bar.end))
        starts = [bar.start for bar in bars]
        at: dict[int, list[int]] = defaultdict(list)
        for moment, flow in held.flows:
            last = bisect_right(starts, moment) - 1
            inside = (i for i in range(last, max(last - _DEEPEST, -1), -1) if bars[i].end >= moment)
            if (found := next(inside, None)) is not None:
                at[found].append((self._slot + 1 << 32) + flow)
        for i, flows in at.items():
            bars[i] = Bar(bars[i].start, bars[i].end, bars[i].body, tuple(flows))
        for bar, lane in zip(bars, lanes_of([(bar.start, bar.end) for bar in bars], nest=True), strict=True):
            rows.setdefault(lane, []).append(bar)
        for lane, bars in sorted(rows.items()):
            uuid = next(place)
            yield packets.track(Track(uuid, parent, name + (f" ({lane + 1})" if lane else ""), order + min(lane, 99)))
            yield packets.slices(uuid, bars)
            if lane == 0:
                for moment, body in held.instants:
                    yield packets.instant(uuid, moment, body)

    def _title(self, row: _ROW) -> str:
        device = row[0] in self._devices
        numbered = f"{'stream' if device else 'thread'} {row[1]}" if row[1].lstrip("-").isdigit() else row[1]
        name = self._names.get(row, numbered).strip()
        words = self._streams.get(int(row[1])) if device and row[1].isdigit() else None
        return f"{name} · {words}" if words else name

    def _describe(self, event: Mapping[str, Any]) -> None:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        name, pid = event.get("name"), int(event["pid"])
        row = pid, str(event.get("tid", ""))
        if name == "process_name":
            self._processes[pid] = str(args.get("name", ""))
        elif name == "process_sort_index":
            self._places[pid] = int(args.get("sort_index", 0))
        elif name == "thread_name" and args.get("name"):
            self._names[row] = str(args["name"])
        elif name == "thread_sort_index" and isinstance(args.get("sort_index"), (int, float)):
            self._orders[row] = float(args["sort_index"])

    def _memory(self, pid: int, moment: int, args: Mapping[str, Any]) -> bool:
        """What the profiler notes at each allocation, as counters."""
        kind = _MEMORY_KINDS.get(args.get("Device Type", -1), "device")
        where = kind if kind == "host" else f"{kind} {args.get('Device Id', '')}".strip()
        known = False
        for source, what in _MEMORY_VALUES.items():
            value = args.get(source)
            if isinstance(value, (int, float)):
                known = True
                self._counters[pid, f"memory {what} · {where}", "bytes"].append((moment, float(value)))
        return known

    def _count(self, pid: int, moment: int, name: str, args: Mapping[str, Any]) -> None:
        for what, value in args.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                title = name if len(args) == 1 else f"{name} · {what}"
                self._counters[pid, title, "count"].append((moment, float(value)))

    def _pair(
        self, phase: Any, row: _ROW, moment: int, event: Mapping[str, Any], what: tuple[str, str, dict[str, Any]]
    ) -> None:
        """Begins and ends that are events of their own. what: name, category and arguments."""
        opened = self._rows[row].open if phase in ("B", "E") else None
        if opened is None and phase in ("b", "e", "S", "F"):
            identity = event.get("id", event.get("id2", ""))
            row = row[0], f"{what[1] or what[0]} · asynchronous"
            opened = self._asynchronous[row[0], what[1], str(identity)]
        if opened is None:
            self.untold += 1
        elif phase in ("B", "b", "S"):
            opened.append((moment, self._packets.body(*what)))
        elif opened:
            begun, body = opened.pop()
            self._rows[row].bars.append(Bar(begun, max(moment, begun), body))
        else:
            self.untold += 1
