"""Lines of a log that a collector put into JSON: journald, Docker, Stackdriver, CloudWatch, Loki, fluent-bit."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

# Where the collectors put the line itself; the first that is there counts.
_KEYS = ("MESSAGE", "log", "textPayload", "line", "@message", "_raw", "message", "msg")
# Where structlog, OpenTelemetry and loguru put what a record says, by a key that tells them from a data set: such a
# record is opened only for its traceback, because its other keys hold steps and levels.
_OF_LOGGERS = (
    ("event", ("level", "timestamp", "ts")), ("Body", ("SeverityText",)), ("body", ("severityText",)),
    ("text", ("record",)),
)  # fmt: skip
_AROUND = ("jsonPayload", "_source", "result", "event")  # objects that hold the line
# Of a program's own logger.
_TRACES = ("exc_info", "exception", "stack_trace", "stacktrace", "traceback", "exception.stacktrace")
_LEVELS = ("level", "levelname", "severity")
_OWN_KEYS = ("message", "msg")
# A line of a document that was printed with a key a line.
_PRETTY = re.compile(
    rb'^[ \t]{1,40}"(?:textPayload|message|MESSAGE|log|line|@message|_raw)": ?("(?:[^"\\]|\\.)*"),?\s*$'
)
_KEYS_BESIDE = (
    b'"insertId"', b'"ingestionTime"', b'"logName"', b'"eventId"', b'"@timestamp"', b'"textPayload"', b'"MESSAGE"',
)  # fmt: skip
_PRETTY_HEAD = re.compile(rb"^\s{0,40}[\[{]")
_SYNTAX = re.compile(rb'^\s{0,40}(?:[\]}\[{]|"[^"\\]{1,80}": ?(?:[\[{]|"|-?\d|true|false|null))')
_OF_TRACEBACK = (b"Traceback (most recent call last)", rb"File \"")
_LOOKED_AT = 20  # lines

Form = Literal["lines", "pretty"]


def form_of(block: bytes) -> Form | None:
    """How a log whose first block this is was put into JSON; None for all other texts."""
    if _PRETTY_HEAD.match(block[:80]) is None:
        return None
    first = [line for line in block.split(b"\n", _LOOKED_AT)[:_LOOKED_AT] if line.strip()]
    if any(_said(line, structured=True) is not None or _is_of_logger(_record(line)) for line in first):
        return "lines"
    lines = block.split(b"\n", 20 * _LOOKED_AT)
    of_collector = any(key in block for key in _KEYS_BESIDE)  # any document may hold a message
    return "pretty" if of_collector and any(_PRETTY.match(line) for line in lines) else None


def without_envelopes(blocks: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Numbered blocks of whole lines as the program wrote them; one line of the log for each of the document.

    What a line holds of several is divided by carriage returns: they have one number.
    """
    form: Form | None = None
    structured = False
    for order, (number, block) in enumerate(blocks):
        if order == 0:
            form = form_of(block)
        if form is None:
            yield number, block
            continue
        # A program's own logger has a level beside each message, which says more than the message; unless it is torn.
        structured = structured or any(words in block for words in _OF_TRACEBACK)
        if form == "pretty":
            yield from _plain(number, block)
        else:
            yield number, b"\n".join(_opened(line, structured) for line in block.split(b"\n"))


def _opened(line: bytes, structured: bool) -> bytes:
    said = _said(line, structured)
    return line if said is None else _as_line(said)


def _plain(number: int, block: bytes) -> Iterator[tuple[int, bytes]]:
    """The messages of a document with a key a line; its other lines are left out."""
    for own, line in enumerate(block.split(b"\n"), number):
        if (match := _PRETTY.match(line)) is not None:
            with contextlib.suppress(msgspec.DecodeError):
                yield own, _as_line(str(_decoded(match[1]))) + b"\n"
        elif _SYNTAX.match(line) is None and line.strip():
            yield own, line + b"\n"


def _said(line: bytes, structured: bool) -> str | None:
    """What a record holds of the program's text; None where the line is no such record."""
    record = _record(line)
    if _is_of_logger(record):
        return _traceback(record)
    for name in _AROUND:
        if isinstance(inner := record.get(name), dict) and (said := _message(inner)) is not None:
            return said
    if not structured and any(isinstance(record.get(name), str) for name in _LEVELS):
        return None if any(name in record for name in _OWN_KEYS) else _message(record)
    return _message(record)


def _decoded(text: bytes) -> Any:
    """Raises msgspec.DecodeError. Programs write bytes of other encodings into JSON too: those are replaced."""
    try:
        return msgspec.json.decode(text)
    except UnicodeDecodeError:
        return msgspec.json.decode(text.decode("utf-8", "replace"))


def _record(line: bytes) -> dict[str, Any]:
    """A line that is an object of JSON; empty for all others."""
    if line.lstrip()[:1] != b"{":
        return {}
    try:
        record = _decoded(line)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_of_logger(record: dict[str, Any]) -> bool:
    return any(
        isinstance(record.get(key), str) and any(map(record.__contains__, beside)) for key, beside in _OF_LOGGERS
    )


def _traceback(record: dict[str, Any]) -> str | None:
    """What a logger's record says with its traceback; None without one."""
    attributes = record.get("Attributes", record.get("attributes"))
    fields = {**attributes, **record} if isinstance(attributes, dict) else record
    said = [fields.get(key) for key in (*(key for key, _ in _OF_LOGGERS), *_TRACES)]
    text = "\n".join(one for one in said if isinstance(one, str))
    return text if "Traceback (most recent call last)" in text else None


def _message(record: dict[str, Any]) -> str | None:
    for name in _KEYS:
        said = record.get(name)
        if name == "MESSAGE" and isinstance(said, list):  # journald, of what is no plain text
            said = bytes(one for one in said if isinstance(one, int) and 0 <= one < 256).decode(errors="replace")
        if isinstance(said, str):
            traces = [record[key] for key in _TRACES if isinstance(record.get(key), str)]
            return "\n".join((said, *traces))
    return None


def _as_line(said: str) -> bytes:
    return said.rstrip("\r\n").replace("\r\n", "\n").replace("\n", "\r").encode(errors="replace")
