"""Splits trace JSON into its header, whole events and its trailer, without holding the file."""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from traceops.core.text import pattern
from traceops.traces.source import Damaged, other_file

# What a sink says when it has read as many events as it can; the numbers are those of native/json.h.
MORE = 0  # the text ends inside an event, or behind one
ODD = 1  # what follows is no event that can be read quickly
CLOSED = 2  # the list of events has ended

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_SEPARATOR = pattern(r'\}\s*,\s*(?=\{\s*")')
_BUFFER_LIMIT = 1 << 25  # no header and no event is this long; Python objects of so much text may take 1 GB
# How much is done for the damaged parts of a file, in characters of failed attempts to read an event.
_THOROUGH = 1 << 26  # then not every place is tried any more
_HOPELESS = 1 << 32  # then the rest is left alone: minutes of work, for no trace that anybody wrote
_ATTEMPT = 200  # what any attempt costs besides
_SKIPPED = pattern(r"[\s,]*")
_WINDOW = 1 << 12  # longer than most events
# Half a pair of UTF-16 surrogates is no character: no file that quotes it could be written. Only who reads a string's
# escapes from its beginning can tell the halves apart: in \\ud83d the backslash is what is escaped.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_WHOLE = r"(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
_HALF = (  # a high one at the text's end may have its low one in the next
    r"u[dD](?:[c-fC-F][0-9a-fA-F]{2}"
    r"|[89abAB][0-9a-fA-F]{2}(?!\\?\Z|\\u(?:\Z|[dD](?:\Z|[c-fC-F]))))"
)
_ESCAPES = pattern(rf"\\(?:{_WHOLE}(?:\\{_WHOLE}){{0,256}}|({_HALF}))")
_UNESCAPED = re.compile(r'(?<!\\)\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')  # of a path of Windows, as torch writes its own
_NOT_FINITE = pattern(r"-?(?:nan|inf)\b")  # as C++ prints them; JSON has no such numbers
_LONGER = len("Infinity") - len("inf")
_NOT_FINITE_OR_QUOTE = pattern(rf'{_NOT_FINITE.pattern}|"|\\.')


class Sink(Protocol):
    """What becomes of the events: columns, or another file."""

    decoder: json.JSONDecoder  # how `add` wants its value decoded

    def take(self, text: bytes, ended: bool) -> tuple[int, int]:
        """Read events from the beginning of `text`: how many bytes are done with, and MORE, ODD or CLOSED.

        `ended` says that no more text follows. With CLOSED the bytes include the bracket that ends the list.
        """

    def add(self, value: Any, text: str) -> bool:
        """Take one event that `take` could not read, decoded and as text; False if it is none."""


class Scanner:
    """Hands the events of a trace to a sink; `meta`, `damage` and `unreadable` tell about the rest."""

    def __init__(self, chunks: Iterator[bytes], name: str = "") -> None:
        self._chunks = chunks
        self._name = name  # of the file, where it tells what no trace is
        self._buffer = b""
        self._eof = False
        self._closed = False  # the list of events has ended
        self.meta: dict[str, Any] = {}
        self.damage: list[str] = []
        self.unreadable = 0  # events skipped because they are no valid JSON
        self.cut_off = False  # the list of events goes on behind what could be read
        self._patience = _THOROUGH
        self._given_up = False  # the buffer goes on where an event too long for it was given up

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
                self.damage.append(other_file(text, self._name) or "this is not JSON")
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

    def read(self, sink: Sink) -> None:
        """Hand over all events, until their list ends or the bytes do."""
        while not self._closed:
            consumed, state = (0, ODD) if self._given_up else sink.take(self._buffer, self._eof)
            self._buffer = self._buffer[consumed:]
            if state == CLOSED:
                self._close(self._buffer)
            elif state == ODD or (self._buffer and (self._eof or len(self._buffer) >= _BUFFER_LIMIT)):
                self._event_by_event(sink)
            if not self._closed and self._eof:
                self.damage.append("the JSON ends before the list of events does")
                self.cut_off = True
                return
            self._grow()

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

    def _event_by_event(self, sink: Sink) -> None:
        """Read the buffer where the sink cannot: hand over every event that is one.

        What may go on behind the buffer's end stays in it. A damaged event is skipped only where a
        whole one follows it, or nothing more comes.
        """
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        text = _whole_characters(utf8.decode(self._buffer, final=self._eof))
        half_character, _ = utf8.getstate()
        at = _skip(text, 0)
        more_may_come = not self._eof and len(self._buffer) < _BUFFER_LIMIT
        while at < len(text):
            if text[at] == "]" and not self._given_up:
                self._close(text[at + 1 :].encode() + half_character)
                return
            try:
                if self._given_up:
                    raise _Unreadable(0)  # whatever this looks like, it is still the middle of it
                value, source, length = _decode(sink.decoder, text, at)
            except _Unreadable as error:
                waits = more_may_come and error.cut
                end = len(text) if waits else self._next_event(sink.decoder, text, at, error.looked_at)
                if end == len(text) and more_may_come:
                    break
                self.unreadable += not self._given_up
                self._given_up = end == len(text)
            else:
                end = at + length
                self._given_up = False
                if not sink.add(value, source):
                    self.unreadable += 1
                    self._patience -= _ATTEMPT
            if self._patience < -_HOPELESS:
                self.damage.append("nearly all of a long stretch is damaged, and what follows was not read")
                self.cut_off = True
                self._give_up()
                return
            at = _skip(text, end)
        self._buffer = text[at:].encode() + half_character

    def _next_event(self, decoder: json.JSONDecoder, text: str, at: int, looked_at: int) -> int:
        """Offset of the next thing behind `at` that decodes and looks like an event, else the text's end.

        Where attempts reach far and fail, as in lists that are opened over and over, they would take time
        without end. Once they have, each skips part of what the last one (`looked_at` characters) has seen.
        """
        while True:
            self._patience -= looked_at + _ATTEMPT
            match = _SEPARATOR.search(text, at + (1 if self._patience > 0 else 1 + looked_at // 4))
            if match is None:
                return len(text)
            at = match.end()
            try:
                value, _, looked_at = _decode(decoder, text, at)
            except _Unreadable as error:
                looked_at = error.looked_at
                continue
            if isinstance(value, dict) and "ph" in value:
                return at

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
        read = _whole_characters(text.decode("utf-8", "replace"))
        for said in (read, _UNESCAPED.sub(r"\\\\", read)):
            with suppress(ValueError, RecursionError):
                self.meta.update(json.loads(said))
                return
        self.damage.append("the metadata around the events is not valid JSON")


def _whole_characters(text: str) -> str:
    """JSON whose escapes of half a surrogate pair are those of U+FFFD; one that the text's end cut stays."""
    if _SURROGATE.search(text) is None:
        return text
    return _ESCAPES.sub(lambda match: match[0] if match[1] is None else r"\ufffd", text)


def _skip(text: str, at: int) -> int:
    match = _SKIPPED.match(text, at)
    return at if match is None else match.end()


class _Unreadable(Exception):
    """What stands at an offset is no value, as `looked_at` characters show; `cut` where more text may change that."""

    def __init__(self, looked_at: int, cut: bool = False) -> None:
        self.looked_at, self.cut = looked_at, cut


def _decode(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, str, int]:
    """The value at `at`, its text as Python reads it, and how long that is in `text`; raises _Unreadable. Decodes a
    growing window, because an error costs Python time in proportion to the whole string."""
    size = _WINDOW
    while True:
        window = text[at : at + size]
        try:
            return _decode_start(decoder, window)
        except json.JSONDecodeError as error:
            # Twelve characters hold any escape, literal or sign that the end may have cut.
            if error.pos < len(window) - 12 and not error.msg.startswith("Unterminated string"):
                raise _Unreadable(error.pos + 1) from error
            if at + size >= len(text):
                raise _Unreadable(len(window), cut=True) from error
            size *= 16
        except (ValueError, RecursionError) as error:  # a number of too many digits, lists in too many lists
            raise _Unreadable(len(window)) from error


def _decode_start(decoder: json.JSONDecoder, text: str) -> tuple[Any, str, int]:
    longer: list[int] = []  # where there is more text now
    reach = 64
    while True:
        try:
            value, length = decoder.raw_decode(text)
        except json.JSONDecodeError as error:
            at = error.pos
            if _NOT_FINITE.match(text, at) is None:
                error.pos -= _LONGER * bisect_left(longer, at)
                raise
            # Ever more of what follows: one number at a time would take time in the square of their number.
            spelled, inside = _spell_constants(text[at : at + reach])
            text = text[:at] + spelled + text[at + reach :]
            longer += [at + offset for offset in inside]
            reach *= 2
        else:
            return value, text[:length], length - _LONGER * bisect_left(longer, length)


def _spell_constants(text: str) -> tuple[str, list[int]]:
    """`nan` and `inf` as Python spells them, except in strings, and where the new text is longer for it."""
    in_string = False
    longer: list[int] = []

    def spell(match: re.Match[str]) -> str:
        nonlocal in_string
        found = match[0]
        in_string ^= found == '"'
        if in_string or found[0] in '"\\':
            return found
        if found.endswith("nan"):
            return "NaN".rjust(len(found))
        longer.append(match.start() + _LONGER * len(longer))
        return found.replace("inf", "Infinity")

    return _NOT_FINITE_OR_QUOTE.sub(spell, text), longer
