"""Gives one rank's processes ids of their own, and names and an order that say whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Literal

import msgspec

from traceops.timeline.reader import WholeEvent

_BLOCK_BITS = 32  # ids of a rank; with 2**21 ranks they still are exact in a double
_COUNTED_FROM = 1 << 31  # ids that are no small number are counted from here
_ID_KEYS = ("id", "bind_id")


def first_id(slot: int) -> int:
    """The smallest id of the rank in this place of the timeline."""
    return slot << _BLOCK_BITS


class Ids:
    """New ids for one rank's events: equal ones stay equal, and none is another rank's."""

    def __init__(self, slot: int) -> None:
        self._first = first_id(slot)
        self._counted: dict[bytes, int] = {}

    def rewrite(self, event: WholeEvent) -> None:
        """Replace every id in the event; a counter's is part of its name and stays."""
        if bytes(event.get("ph", b"")) == b'"C"':
            return
        for key in _ID_KEYS:
            if key in event:
                event[key] = self.new(bytes(event[key]))
        if "id2" in event:
            try:
                parts = msgspec.json.decode(event["id2"], type=WholeEvent)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return
            new = {key: self.new(bytes(part)) for key, part in parts.items()}
            event["id2"] = msgspec.Raw(msgspec.json.encode(new))

    def new(self, text: bytes) -> msgspec.Raw:
        """The id for one written as `text` in the file: a number for a number, hex text for text."""
        if text.isdigit() and len(text) <= 10 and (number := int(text)) < _COUNTED_FROM:
            return msgspec.Raw(b"%d" % (self._first + number))
        number = self._first + _COUNTED_FROM + self._counted.setdefault(text, len(self._counted))
        return msgspec.Raw(b'"0x%x"' % number if text.startswith(b'"') else b"%d" % number)


# Numbers of tracks: what is common to all ranks, each rank's, and what lies in it.

FINDINGS = 1
_HOSTS, _RANKS, _ROWS = 1 << 20, 1 << 24, 1 << 32


def host_uuid(number: int) -> int:
    """The track of a host, counted from 0."""
    return _HOSTS + number


def rank_uuid(slot: int) -> int:
    """The track that all tracks of the rank in this place of the timeline lie in."""
    return _RANKS + slot


def track_numbers(slot: int, added: bool = False) -> Iterator[int]:
    """Numbers for the tracks of one rank, which no other track has; `added` for those that traceops adds to it."""
    return count((2 * slot + 1 + added) * _ROWS + 1)


BLOCK = 1000  # process ids of a rank; the first is the rank's overview
_ABSENT = msgspec.Raw(b"null")
DEVICE_CATEGORIES = frozenset(
    cat
    for name in ("kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "memcpy", "memset")
    for cat in (name, name.capitalize())
)
_GPU_CATS = frozenset(f'"{cat}"'.encode() for cat in DEVICE_CATEGORIES)
_GPU_ORDER = 5_000_000  # where kineto sorts its devices
_OWN = (b'"process_name"', b'"process_sort_index"')


def overview_pid(slot: int) -> int:
    """The process id of the tracks traceops adds for the rank in this place of the timeline."""
    return (slot + 1) * BLOCK


def rank_title(rank: int, *parts: str | None) -> str:
    """`rank 3 · host · python`."""
    return " · ".join((f"rank {rank}", *(part for part in parts if part)))


class Processes:
    """The processes of one rank: numbers while events pass by, then their names. `slot` is the rank's place among the
    `slots` of the timeline."""

    def __init__(self, rank: int, slot: int, slots: int, host: str | None) -> None:
        self._rank, self._slot, self._slots, self._host = rank, slot, slots, host
        self._numbers: dict[bytes, msgspec.Raw] = {}
        self._gpu: set[bytes] = set()
        self._described: list[WholeEvent] = []

    def number(self, event: WholeEvent) -> msgspec.Raw:
        """The new process id of an event of the file."""
        source = bytes(event.get("pid", _ABSENT))
        if (number := self._numbers.get(source)) is None:
            number = self._numbers[source] = msgspec.Raw(b"%d" % self._next())
        if "cat" in event and bytes(event["cat"]) in _GPU_CATS:
            self._gpu.add(source)
        return number

    def describe(self, event: WholeEvent) -> None:
        """Remember a metadata event until it is known whether its process has any event."""
        self._described.append(event)

    def metadata(self) -> list[WholeEvent]:
        """The file's metadata events of processes that have events, but for name and order of processes."""
        kept = []
        for event in self._described:
            number = self._numbers.get(bytes(event.get("pid", _ABSENT)))
            if number is not None and bytes(event.get("name", _ABSENT)) not in _OWN:
                kept.append({**event, "pid": number})
        return kept

    def titles(self) -> list[dict[str, Any]]:
        """Metadata events that name the processes and order them: host first, then devices."""
        names: dict[bytes, str] = {}
        labels: dict[bytes, list[str]] = {}
        orders: dict[bytes, float] = {}
        for event in self._described:
            source = bytes(event.get("pid", _ABSENT))
            what = _text(event.get("name", _ABSENT))
            args = _decoded(event.get("args", _ABSENT))
            args = args if isinstance(args, dict) else {}
            if what == "process_name" and args.get("name"):
                names[source] = str(args["name"])
            elif what == "process_labels" and args.get("labels"):
                labels.setdefault(source, []).append(str(args["labels"]))
            elif what == "process_sort_index" and isinstance(args.get("sort_index"), (int, float)):
                orders[source] = args["sort_index"]
        result: list[dict[str, Any]] = []

        def order(source: bytes) -> float:
            default = _GPU_ORDER if source in self._gpu else _GPU_ORDER * 2 if source.startswith(b'"') else 0
            return orders.get(source, default)

        for position, source in enumerate(sorted(self._numbers, key=order), overview_pid(self._slot) + 1):
            title = self._title(source, names.get(source), labels.get(source, []))
            result += named_place("process", int(bytes(self._numbers[source])), 0, title, position)
        return result

    def _title(self, source: bytes, name: str | None, labels: list[str]) -> str:
        own = list(dict.fromkeys(label for label in labels if label != "CPU"))
        if source.startswith(b'"') and not name:
            return rank_title(self._rank, _text(source) or "other")
        if own and "CPU" not in labels:
            return rank_title(self._rank, *own)
        if not labels and source in self._gpu:
            return rank_title(self._rank, f"GPU {source.decode(errors='replace')}")
        return rank_title(self._rank, self._host, name or f"process {source.decode(errors='replace')}", *own)

    def _next(self) -> int:
        """The first free number of the rank's block, and behind all blocks when that is full."""
        position = len(self._numbers) + 1
        if position < BLOCK:
            return overview_pid(self._slot) + position
        return (self._slots + 1) * BLOCK + (position - BLOCK) * self._slots + self._slot


def named_place(kind: Literal["process", "thread"], pid: int, tid: int, title: str, place: int) -> list[dict[str, Any]]:
    """Metadata events that name a process or one of its tracks and give its place."""
    settings: dict[str, dict[str, Any]] = {"name": {"name": title}, "sort_index": {"sort_index": place}}
    return [
        {"ph": "M", "name": f"{kind}_{what}", "pid": pid, "tid": tid, "args": args} for what, args in settings.items()
    ]


def _decoded(value: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(value: msgspec.Raw | bytes) -> str:
    decoded = _decoded(msgspec.Raw(value) if isinstance(value, bytes) else value)
    return decoded if isinstance(decoded, str) else ""
