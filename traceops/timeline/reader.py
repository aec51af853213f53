"""Reads a trace's events as the file has them: each field's JSON untouched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from traceops.timeline.times import parse_us
from traceops.traces.event import decode_events
from traceops.traces.kineto import read_meta
from traceops.traces.scan import Scanner
from traceops.traces.source import chunks, open_binary

WholeEvent = dict[str, msgspec.Raw]


class TimelineHeader(Struct, frozen=True):
    """What placing a file needs to know of it: its zero (ns, None if it names none) and its first moment.

    `first_ns` is the time of its earliest event, the zero added; None without any.
    """

    base_ns: int | None
    first_ns: int | None
    host: str | None


def read_header(path: str) -> TimelineHeader:
    """Read a trace for its zero, which most files name behind their events.

    Raises InputError where the file cannot be opened.
    """
    first: int | None = None

    def note(batch: list[WholeEvent]) -> None:
        nonlocal first
        times = (parse_us(bytes(event["ts"])) for event in batch if "ts" in event)
        first = min((time for time in (first, *times) if time is not None), default=None)

    with open_binary(path) as file:
        scanner = read_whole_events(chunks(file), note)
    base = scanner.meta.get("baseTimeNanoseconds")
    # As the analysis reads it, or the two would disagree about when things were.
    base = base if isinstance(base, int) and 0 <= base < (1 << 62) else None
    return TimelineHeader(base, None if first is None else first + (base or 0), read_meta(scanner.meta).host)


class WholeEvents:
    """A sink whose events are dicts from key to undecoded JSON, nothing left out, handed on in batches."""

    def __init__(self, use: Callable[[list[WholeEvent]], None]) -> None:
        # numbers keep their digits; constants become text, for JSON has no such numbers
        self.decoder = json.JSONDecoder(parse_float=_verbatim, parse_int=_verbatim, parse_constant=str)
        self._use = use
        self._pending: list[WholeEvent] = []  # read one by one

    def take(self, text: bytes, ended: bool) -> tuple[int, int]:
        """As Sink says."""
        self.flush()
        events, done, state = decode_events(_decode_checked, text, ended)
        self._use(events)
        return done, state

    def add(self, value: Any, text: str) -> bool:
        """As Sink says."""
        try:
            event = {key: msgspec.Raw(msgspec.json.encode(part)) for key, part in value.items()}
        except (AttributeError, RecursionError, UnicodeEncodeError):  # no object, or none that JSON can hold
            return False
        self._pending.append(event)
        return True

    def flush(self) -> None:
        """Hand on what is left, once all has been read."""
        pending, self._pending = self._pending, []
        self._use(pending)


def read_whole_events(chunks: Iterator[bytes], use: Callable[[list[WholeEvent]], None]) -> Scanner:
    """Hand all events of a trace to `use`, in batches; the scanner tells about the rest of the file."""
    scanner, sink = Scanner(chunks), WholeEvents(use)
    scanner.peek()
    scanner.read(sink)
    sink.flush()
    return scanner


_decode = msgspec.json.Decoder(list[WholeEvent]).decode


def _decode_checked(text: bytes) -> list[WholeEvent]:
    text.decode()  # bytes that are no UTF-8 would pass through undecoded fields
    return _decode(text)


def _verbatim(digits: str) -> msgspec.Raw:
    return msgspec.Raw(digits.encode())
