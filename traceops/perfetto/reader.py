"""Reads a trace's events as the file has them: each field's JSON untouched."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from traceops.load.kineto import read_meta
from traceops.load.scan import (
    _BUFFER_LIMIT,
    _LONE_SURROGATE,
    _NOT_FINITE,
    Scanner,
    _decode,
    _next_event,
    _RanOut,
    _skip,
)
from traceops.load.source import chunks, open_binary
from traceops.perfetto.times import parse_us

WholeEvent = dict[str, msgspec.Raw]


@dataclass(frozen=True)
class Header:
    """What placing a file needs to know of it: its zero (ns, None if it names none) and its first moment.

    `first_ns` is the time of its earliest event, the zero added; None without any.
    """

    base_ns: int | None
    first_ns: int | None
    host: str | None


def read_header(path: str) -> Header:
    """Read a trace for its zero, which most files name behind their events.

    Raises InputError where the file cannot be opened.
    """
    first: int | None = None
    with open_binary(path) as file:
        scanner = WholeEventScanner(chunks(file))
        for batch in scanner.whole_events():
            times = (parse_us(bytes(event["ts"])) for event in batch if "ts" in event)
            earliest = min((time for time in times if time is not None), default=None)
            if earliest is not None:
                first = earliest if first is None else min(first, earliest)
    base = scanner.meta.get("baseTimeNanoseconds")
    # As the analysis reads it, or the two would disagree about when things were.
    base = base if isinstance(base, int) and 0 <= base < (1 << 62) else None
    return Header(base, None if first is None else first + (base or 0), read_meta(scanner.meta).host)


class WholeEventScanner(Scanner):
    """A scanner whose events are dicts from key to undecoded JSON, nothing left out."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__(pieces)
        self.event_type = WholeEvent  # type: ignore[assignment]

    def whole_events(self) -> Iterator[list[WholeEvent]]:
        """Batches of events until their list ends or the bytes do."""
        self.peek()
        yield from self.batches()  # type: ignore[misc]

    def _fast_batch(self, decode: Callable[[bytes], list[Any]]) -> list[Any] | None:
        def checked(text: bytes) -> list[Any]:
            text.decode()  # bytes that are no UTF-8 would pass through undecoded fields
            return decode(text)

        return super()._fast_batch(checked)

    def _event_by_event(self) -> list[Any]:
        """As the scanner does it, but numbers keep their digits and no field is dropped."""
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        text = _LONE_SURROGATE.sub(r"\\ufffd", utf8.decode(self._buffer, final=self._eof))
        half_character, _ = utf8.getstate()
        decoder = json.JSONDecoder(parse_float=_verbatim, parse_int=_verbatim, parse_constant=str)
        events: list[WholeEvent] = []
        at = _skip(text, 0)
        while at < len(text):
            if text[at] == "]":
                self._close(text[at + 1 :].encode() + half_character)
                return events
            more_may_come = not self._eof and len(text) < _BUFFER_LIMIT
            value: Any = None
            try:
                value, end = _decode(decoder, text, at)
            except _RanOut:
                if more_may_come:
                    break
                end = _next_event(decoder, text, at)
            except (ValueError, RecursionError) as error:
                found = _NOT_FINITE.match(text, at + getattr(error, "pos", 0))
                if found:  # as C++ prints it; parse_constant makes it text, for JSON has no such number
                    name = "NaN" if "nan" in found[0] else "Infinity"
                    text = f"{text[: found.start()]}{'-' * (found[0] == '-inf')}{name}{text[found.end() :]}"
                    continue
                end = _next_event(decoder, text, at)
                if end == len(text) and more_may_come:
                    break
            event = _undecoded(value)
            if event is None:
                self.unreadable += 1
            else:
                events.append(event)
            at = _skip(text, end)
        self._buffer = text[at:].encode() + half_character
        return events


def _verbatim(digits: str) -> msgspec.Raw:
    return msgspec.Raw(digits.encode())


def _undecoded(value: Any) -> WholeEvent | None:
    if not isinstance(value, dict):
        return None
    try:
        return {key: msgspec.Raw(msgspec.json.encode(part)) for key, part in value.items()}
    except (RecursionError, UnicodeEncodeError):
        return None
