"""Slices on tracks: spread so that on each they nest or do not touch, as the viewer demands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from traceops.timeline.times import format_us


@dataclass(frozen=True)
class Slice:
    """A slice to draw, ns since the timeline's zero."""

    name: str
    start: int
    end: int
    args: dict[str, Any] = field(default_factory=dict)


def spread(bundles: Sequence[tuple[Slice, ...]], nest: bool = False) -> list[int]:
    """The lane of each bundle of adjacent slices, counted from 0, on as few lanes as they need.

    On a lane bundles do not overlap. With `nest` one may lie whole within another, which only bundles of
    one slice can.
    """
    lanes: dict[int, int] = {}
    open_ends: list[list[int]] = []  # of each lane's bundles that a later one may lie in
    spans = [(own[0].start, own[-1].end) for own in bundles]
    for at in sorted(range(len(bundles)), key=lambda at: (spans[at][0], -spans[at][1])):
        start, end = spans[at]
        for ends in open_ends:
            while ends and ends[-1] <= start:
                ends.pop()
        free = (n for n, ends in enumerate(open_ends) if not ends or (nest and end <= ends[-1]))
        lanes[at] = next(free, len(open_ends))
        if lanes[at] == len(open_ends):
            open_ends.append([])
        open_ends[lanes[at]].append(end)
    return [lanes[at] for at in range(len(bundles))]


def slice_event(own: Slice, pid: int, tid: int) -> dict[str, Any]:
    """The slice as a complete event."""
    return {
        "ph": "X",
        "cat": "traceops",
        "name": own.name,
        "pid": pid,
        "tid": tid,
        "ts": raw_us(own.start),
        "dur": raw_us(own.end - own.start),
        "args": own.args,
    }


def track_events(pid: int, tid: int, title: str) -> list[dict[str, Any]]:
    """Metadata events that name a track and give its place."""
    return [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": title}},
        {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}},
    ]


def raw_us(ns: int) -> msgspec.Raw:
    """Nanoseconds as JSON's decimal µs."""
    return msgspec.Raw(format_us(ns))


def well_formed(value: Any) -> Any:
    """The same without halves of surrogate pairs, which file names and metadata may hold and JSON may not."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {str(key): well_formed(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [well_formed(part) for part in value]
    return value
