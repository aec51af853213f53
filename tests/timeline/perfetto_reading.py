"""Reads Perfetto's native format by the rules of protocol buffers alone, knowing nothing of how traceops writes it."""

from __future__ import annotations

import gzip
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Message = dict[int, list[Any]]


def packets_of(path: Path) -> list[Message]:
    """A file's packets, each as values by field number; messages inside are still bytes."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    return [message(packet) for packet in message(raw)[1]]


def message(raw: bytes) -> Message:
    """A message's values by field number."""
    found: Message = defaultdict(list)
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        if tag & 7 == 0:
            value, at = _varint(raw, at)
        elif tag & 7 == 1:
            value, at = raw[at : at + 8], at + 8
        else:
            assert tag & 7 == 2, "no other wire type is written"
            size, at = _varint(raw, at)
            value, at = raw[at : at + size], at + size
            assert len(value) == size
        found[tag >> 3].append(value)
    return found


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (raw[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 128:
            return value, at


@dataclass
class Row:
    """A track: slices as (start, end, name, category, args, flows), in order of begin; counter values; instants."""

    name: str
    parent: int
    order: int
    unit: str | int | None
    explicit: bool
    slices: list[tuple[int, int, str, str, dict[str, Any], tuple[int, ...]]] = field(default_factory=list)
    values: list[tuple[int, float]] = field(default_factory=list)
    instants: list[tuple[int, str]] = field(default_factory=list)


def rows_of(path: Path) -> dict[int, Row]:
    """All tracks by number; slices that overlap without nesting, or end before they begin, are an error."""
    rows: dict[int, Row] = {}
    interned: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    events = []
    for packet in packets_of(path):
        (sequence,), flags = packet[10], packet[13][0]
        assert flags in (1, 2)
        if flags == 1:
            assert not [1 for own, _ in interned if own == sequence], "a sequence begins once"
            interned[sequence, 0] = {}
        for kind, values in message(packet[12][0]).items() if packet[12] else ():
            for value in values:
                entry = message(value)
                assert entry[1][0] not in interned[sequence, kind]
                interned[sequence, kind][entry[1][0]] = entry[2][0].decode()
        if packet[60]:
            own = message(packet[60][0])
            counter = message(own[8][0]) if own[8] else {}
            unit = counter[6][0].decode() if counter.get(6) else (counter.get(3) or [None])[0]
            assert own[1][0] not in rows, "a track is described once"
            rows[own[1][0]] = Row(own[2][0].decode(), (own[5] or [0])[0], _signed(own[12][0]), unit, own[11] == [3])
        if packet[11]:
            events.append((packet[8][0], sequence, message(packet[11][0])))
    _place(rows, events, interned)
    return rows


def _place(rows: dict[int, Row], events: list[Any], interned: Any) -> None:
    opened: dict[int, list[Any]] = defaultdict(list)
    for moment, sequence, event in sorted(events, key=lambda event: event[0]):  # stable, as the reader's
        row, kind = rows[event[11][0]], event[9][0]
        if kind == 4:
            row.values.append((moment, struct.unpack("<d", event[44][0])[0]))
            continue
        if kind == 2:
            start, *rest = opened[event[11][0]].pop()
            row.slices.append((start, moment, *rest))
            continue
        name = interned[sequence, 2][event[10][0]]
        category = interned[sequence, 1][event[3][0]] if event[3] else ""
        args = {interned[sequence, 3][a[1][0]]: _value(a, interned, sequence) for a in map(message, event[4])}
        flows = tuple(struct.unpack("<Q", flow)[0] for flow in event[47])
        if kind == 3:
            row.instants.append((moment, name))
        else:
            opened[event[11][0]].append((moment, name, category, args, flows))
    assert not any(opened.values()), "a slice never ends"
    for row in rows.values():
        row.slices.sort(key=lambda own: (own[0], -own[1]))


def _value(own: Message, interned: Any, sequence: int) -> Any:
    if own[17]:
        return interned[sequence, 29][own[17][0]]
    if own[4]:
        return _signed(own[4][0])
    if own[5]:
        return struct.unpack("<d", own[5][0])[0]
    if own[2]:
        return bool(own[2][0])
    return {entry[10][0].decode(): _value(entry, interned, sequence) for entry in map(message, own[11])}


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
