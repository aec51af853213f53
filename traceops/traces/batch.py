"""Decodes all whole events at the beginning of a piece of trace JSON at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from traceops.traces.scan import CLOSED, MORE, ODD

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
    at = text.rfind(_KINETO_SEPARATOR)
    if at >= 0:
        return at + 1
    match = _last_match(_SEPARATOR, text)
    return None if match is None else text.index(b",", match.start())


def _last_match(pattern: re.Pattern[bytes], text: bytes) -> re.Match[bytes] | None:
    """The last match in the last 64 kB, which hold the end of any list of events and most events."""
    last = None
    for last in pattern.finditer(text, max(len(text) - (1 << 16), 0)):  # noqa: B007
        pass
    return last
