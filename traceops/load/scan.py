"""Splits trace JSON into its header, batches of whole events and its trailer, without holding the file."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from traceops.load.event import ExactEvent, RawEvent, lenient
from traceops.load.source import Damaged

# Between two events: `},\n  {"`. Inside an event's arguments the same can only stand in a list of
# objects or a string; then the batch does not decode and is read event by event instead.
_SEPARATOR = re.compile(rb'\}\s*,\s*(?=\{\s*")')
_SEPARATOR_TEXT = re.compile(_SEPARATOR.pattern.decode())
_KINETO_SEPARATOR = b'},\n  {\n    "'
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_ARRAY_END = re.compile(rb"\}\s*\]")
_BUFFER_LIMIT = 1 << 28  # no header and no event is this long: the bytes are garbage
_SKIPPED = re.compile(r"[\s,]*")
_WINDOW = 1 << 12  # longer than most events
# Half a pair of UTF-16 surrogates is no character: no file that quotes it could be written.
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_NOT_FINITE = re.compile(r"-?(?:nan|inf)\b")  # as C++ prints them; JSON has no such numbers


class Scanner:
    """Iterates over batches of events; afterwards `meta`, `damage` and `unreadable` tell about the rest.

    Set `event_type` to ExactEvent before `batches()` where the digits of `ts` and `dur` are needed.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._buffer = b""
        self._eof = False
        self._closed = False  # the array of events has ended
        self.event_type: type[RawEvent] = RawEvent
        self.meta: dict[str, Any] = {}
        self.damage: list[str] = []
        self.unreadable = 0  # events skipped because they are no valid JSON

    def peek(self) -> bytes:
        """Read the header into `meta`; return the first bytes of the list of events, b"" if there is none."""
        while not self._eof and len(self._buffer) < _BUFFER_LIMIT:
            searched = max(len(self._buffer) - 64, 0)
            self._grow()
            if codecs.BOM_UTF8.startswith(self._buffer) and not self._eof:
                continue  # a byte order mark, so far
            text = self._buffer.removeprefix(codecs.BOM_UTF8).lstrip()
            if text.startswith(b"["):  # Chrome's array form has no header
                self._buffer = text[1:]
                return self._buffer[:4096]
            if text and not text.startswith(b"{"):
                self.damage.append("this is not JSON")
                return self._give_up()
            if match := _EVENTS_KEY.search(self._buffer, searched):
                self._read_meta(text[: len(text) - len(self._buffer) + match.end()] + b"]}")
                self.meta.pop("traceEvents", None)
                self._buffer = self._buffer[match.end() :]
                while not self._eof and len(self._buffer) < 4096:
                    self._grow()
                return self._buffer[:4096]
        empty = not self._buffer.strip()
        if not empty or not self.damage:
            self.damage.append("the file is empty" if empty else 'there is no "traceEvents" list')
        return self._give_up()

    def batches(self) -> Iterator[list[RawEvent]]:
        """Yield lists of events until their array ends or the bytes do."""
        decode = msgspec.json.Decoder(list[self.event_type]).decode  # type: ignore[name-defined]
        while not self._closed:
            self._grow()
            events = self._fast_batch(decode)
            if events is None:
                events = self._event_by_event()
            if events:
                yield events
            if self._eof and not self._closed:
                self.damage.append("the JSON ends before the list of events does")
                return

    def _grow(self) -> None:
        """Append at least one chunk, and enough of them to keep copying linear in the file's size."""
        wanted = len(self._buffer) // 2
        parts = [self._buffer]
        try:
            while True:
                parts.append(next(self._chunks))
                wanted -= len(parts[-1])
                if wanted <= 0:
                    break
        except StopIteration:
            self._eof = True
        except Damaged as error:
            self.damage.append(str(error))
            self._eof = True
        self._buffer = b"".join(parts)

    def _fast_batch(self, decode: Callable[[bytes], list[RawEvent]]) -> list[RawEvent] | None:
        """Decode all whole events in the buffer at once; None where that does not work."""
        if self._eof:
            end = _last_match(_ARRAY_END, self._buffer, len(self._buffer) - (1 << 16))
            if end is None:
                return None
            batch, rest = self._buffer[: end.start() + 1], self._buffer[end.end() :]
        else:
            cut = self._last_separator()
            if cut is None:
                return [] if len(self._buffer) < _BUFFER_LIMIT else None
            batch, rest = self._buffer[:cut], self._buffer[cut + 1 :]
        try:
            events = decode(b"[" + batch + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if self._eof:
            self._close(rest)
        else:
            self._buffer = rest
        return events

    def _last_separator(self) -> int | None:
        """Offset of the last comma that seems to stand between two events."""
        at = self._buffer.rfind(_KINETO_SEPARATOR)
        if at >= 0:
            return at + 1
        match = _last_match(_SEPARATOR, self._buffer, len(self._buffer) - (1 << 16))
        return None if match is None else self._buffer.index(b",", match.start())

    def _event_by_event(self) -> list[RawEvent]:
        """Read the buffer where it does not decode as a whole: keep every event that does.

        What may go on behind the buffer's end stays in it. A damaged event is skipped only where a
        whole one follows it, or nothing more comes.
        """
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        text = _LONE_SURROGATE.sub(r"\\ufffd", utf8.decode(self._buffer, final=self._eof))
        half_character, _ = utf8.getstate()
        exact = self.event_type is ExactEvent
        decoder = json.JSONDecoder(parse_float=str if exact else None)  # digits a float would lose
        events: list[RawEvent] = []
        at = _skip(text, 0)
        while at < len(text):
            if text[at] == "]":
                self._close(text[at + 1 :].encode() + half_character)
                return events
            try:
                value, end = _decode(decoder, text, at)
            except _RanOut:
                if not self._eof and len(text) < _BUFFER_LIMIT:
                    break
                value, end = None, _next_event(decoder, text, at)
            except (ValueError, RecursionError) as error:
                found = _NOT_FINITE.match(text, at + getattr(error, "pos", 0))
                if found:
                    text = text[: found.start()] + "NaN".rjust(len(found[0])) + text[found.end() :]
                    continue
                following = _next_event(decoder, text, at)
                if following == len(text) and not self._eof and len(text) < _BUFFER_LIMIT:
                    break
                value, end = None, following
            event = lenient(value, self.event_type)
            if event is None:
                self.unreadable += 1
            else:
                events.append(event)
            at = _skip(text, end)
        self._buffer = text[at:].encode() + half_character
        return events

    def _close(self, trailer: bytes) -> None:
        """Read what follows the events: metadata in some files, nothing in others."""
        self._closed = True
        self._buffer = trailer
        while not self._eof and len(self._buffer) < _BUFFER_LIMIT:
            self._grow()
        rest = self._buffer.strip()
        if rest and rest != b"}":
            self._read_meta(b'{"":0' + rest)
            self.meta.pop("", None)
        self._buffer = b""

    def _give_up(self) -> bytes:
        self._buffer, self._eof, self._closed = b"", True, True
        return b""

    def _read_meta(self, text: bytes) -> None:
        try:
            value = json.loads(_LONE_SURROGATE.sub(r"\\ufffd", text.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            self.damage.append("the metadata around the events is not valid JSON")
            return
        self.meta.update(value)


def _skip(text: str, at: int) -> int:
    match = _SKIPPED.match(text, at)
    return at if match is None else match.end()


class _RanOut(Exception):
    """The text ends inside the value."""


def _decode(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
    """The value at `at` and the offset behind it; RanOut where the text ends first, ValueError if damaged.

    Decodes a growing window, because an error costs Python time in proportion to the whole string.
    """
    size = _WINDOW
    while True:
        window = text[at : at + size]
        try:
            value, length = decoder.raw_decode(window)
        except json.JSONDecodeError as error:
            # Twelve characters hold any escape, literal or sign that the end may have cut.
            if error.pos < len(window) - 12 and not error.msg.startswith("Unterminated string"):
                raise
            if at + size >= len(text):
                raise _RanOut from error
            size *= 16
            continue
        return value, at + length


def _next_event(decoder: json.JSONDecoder, text: str, at: int) -> int:
    """Offset of the next thing behind `at` that decodes and looks like an event, else the text's end."""
    for match in _SEPARATOR_TEXT.finditer(text, at + 1):
        try:
            value, _ = _decode(decoder, text, match.end())
        except (ValueError, RecursionError, _RanOut):
            continue
        if isinstance(value, dict) and "ph" in value:
            return match.end()
    return len(text)


def _last_match(pattern: re.Pattern[bytes], text: bytes, start: int) -> re.Match[bytes] | None:
    last = None
    for last in pattern.finditer(text, max(start, 0)):  # noqa: B007
        pass
    return last
