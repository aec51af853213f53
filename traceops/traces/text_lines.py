"""Lines of a text file of any size: numbered, decoded, cut to a bounded length, without terminal escapes."""

from __future__ import annotations

import codecs
import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np

from traceops.core.errors import FileError
from traceops.traces.source import CannotUnpackError, Damaged, chunks, open_binary, packing_of

# Text in UTF-16, as Windows' shells write it, as UTF-8.

_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_SAMPLE = 1 << 12  # bytes
_SHARE = 0.7  # of every second byte that is NUL in text of the West
_FEWEST = 16  # bytes


def encoding_of(head: bytes) -> str | None:
    """The encoding of a text that begins so, where it is UTF-16; None for all others, as UTF-8."""
    if (marked := _MARKS.get(head[:2])) is not None:
        return marked
    sample = head[:_SAMPLE]
    if len(sample) < _FEWEST:
        return None
    odd, even = (sample[first::2] for first in (1, 0))
    for encoding, zeros, letters in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros.count(0) >= _SHARE * len(zeros) and letters.count(0) * 20 < len(letters):
            return encoding
    return None


def as_utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Chunks of a text, in UTF-8 where they are UTF-16."""
    decoder = None
    for number, chunk in enumerate(chunks):
        if number == 0 and (encoding := encoding_of(chunk)) is not None:
            decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        if decoder is None:
            yield chunk
        elif text := decoder.decode(chunk).removeprefix("\ufeff"):
            yield text.encode(errors="replace")


# Lines of a log that a collector put into JSON: journald, Docker, Stackdriver, CloudWatch, Loki, fluent-bit.

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
    """Numbered blocks of whole lines as the program wrote them; one line of the log for each of the document. What a
    line holds of several is divided by carriage returns: they have one number."""
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


_PIECE = 4  # bytes
_STRIDE = 2  # a word is looked for at every second place, by the pieces that may stand there
_HASH = np.uint32(2_654_435_761)
_SHIFT = np.uint32(16)
_RARE, _USUAL, _COMMON, _SPACE = 1, 2, 5, 8  # how often a byte stands in logs, roughly


class WordSearch:
    """Which of many words stand in a block: by 8 bytes of each, of a short one by 4, and then the word itself."""

    def __init__(self, words: Sequence[bytes]) -> None:
        self._short: list[bytes] = []
        self._whole: dict[bytes, int] = {}  # words that are one piece: few, so that they may stand anywhere
        self._by_piece: dict[int, list[bytes]] = {}
        self._by_pair: dict[int, list[bytes]] = {}
        for word in dict.fromkeys(words):
            if len(word) >= 2 * _PIECE + _STRIDE - 1:
                _add_rarest(self._by_pair, word, 2 * _PIECE)
            elif len(word) >= _PIECE + _STRIDE - 1:
                _add_rarest(self._by_piece, word, _PIECE)
            elif len(word) == _PIECE:
                self._whole[word] = int.from_bytes(word, "little")
            else:
                self._short.append(word)
        firsts = np.array([*self._by_piece, *self._by_pair], dtype=np.uint64).astype(np.uint32)  # of a pair the first
        self._table = np.zeros(1 << 16, dtype=np.bool_)
        self._table[(firsts * _HASH) >> _SHIFT] = True

    def any_in(self, block: bytes) -> bool:
        """Whether one of the words stands in the block."""
        return next(self._all_in(block), None) is not None

    def all_in(self, block: bytes) -> list[bytes]:
        """The words that stand in the block."""
        return list(self._all_in(block))

    def _all_in(self, block: bytes) -> Iterator[bytes]:
        yield from (word for word in self._short if word in block)
        perhaps: set[bytes] = set()
        padded = block + bytes(_PIECE)  # the last pieces have something after them
        for offset in range(_PIECE):
            at = np.frombuffer(padded, dtype="<u4", count=(len(padded) - offset) // _PIECE, offset=offset)
            perhaps.update(word for word, piece in self._whole.items() if (at == piece).any())
            if offset % _STRIDE:
                continue
            places = np.flatnonzero(self._table[(at[:-1] * _HASH) >> _SHIFT])
            firsts = at[places]
            pairs = firsts | at[places + 1].astype(np.uint64) << np.uint64(8 * _PIECE)
            for words, found in ((self._by_piece, firsts), (self._by_pair, pairs)):
                perhaps.update(*(words[part] for part in words.keys() & found.tolist()))
        yield from (word for word in perhaps if word in block)


def _add_rarest(words: dict[int, list[bytes]], word: bytes, size: int) -> None:
    """File a word under the parts of `size` bytes, one of which stands at a place that is looked at."""

    def parts(begin: int) -> list[bytes]:
        return [word[at : at + size] for at in range(begin, begin + _STRIDE)]

    begin = min(range(len(word) - size - _STRIDE + 2), key=lambda begin: max(map(_weight, parts(begin))))
    for part in parts(begin):
        words.setdefault(int.from_bytes(part, "little"), []).append(word)


def _weight(part: bytes) -> int:
    """How often a part stands in logs without its word, roughly; its first piece is looked for first."""
    return 2 * sum(map(_frequency, part[:_PIECE])) + sum(map(_frequency, part[_PIECE:]))


@lru_cache(maxsize=16)
def word_search(words: tuple[bytes, ...]) -> WordSearch:
    """The search for these words, made once."""
    return WordSearch(words)


@lru_cache(maxsize=256)
def _frequency(byte: int) -> int:
    if (char := chr(byte)) == " ":
        return _SPACE
    if char.isascii() and char.islower():
        return _COMMON
    return _USUAL if char.isalnum() or char in ":=.,-_/[]()" else _RARE


LONGEST_LINE = 1 << 14
_MANY = 16  # words, from which one pass for all is faster than one for each
_ENDS = re.compile(rb"\r{0,3}\n|\r")  # progress bars end theirs with \r, and messages follow on the same line
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;:?]{0,32}[A-Za-z]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")


def blocks(path: str, longest: int = LONGEST_LINE) -> Iterator[tuple[int, bytes]]:
    """Pieces of whole lines with the number of their first line, unpacked, in UTF-8, without a collector's JSON.
    longest: bytes from which a line is too long, and is cut. Where a packed stream is damaged, the blocks end with what
    was readable. Raises InputError where the file cannot be read."""
    yield from without_envelopes((number, block) for number, _, block in pieces(path, longest))


def is_dressed(head: bytes, name: str) -> bool:
    """Whether the text of a file that begins so has to be unpacked, decoded or taken out of a collector's JSON."""
    return packing_of(head, name) is not None or encoding_of(head) is not None or form_of(head) is not None


def text_head(path: str, most: int) -> bytes:
    """The first bytes of a file's text, as `blocks` has it: of at least `most` in the file if it has so many. Raises
    InputError where the file cannot be read."""
    head = b""
    with open_binary(path) as file:
        try:
            for chunk in as_utf8(chunks(file, path)):
                head += chunk
                if len(head) >= most:
                    break
        except CannotUnpackError as error:
            raise FileError(path, str(error)) from error
        except Damaged:
            pass
    return b"".join(block for _, block in without_envelopes([(1, head)]))


def whole_text(path: str, most: int) -> tuple[bytes, str | None]:
    """A file's text, unpacked, in UTF-8, without a collector's JSON, and what is wrong with what it is packed in. Of
    more than `most` bytes somewhat more are read. Raises InputError where the file cannot be read."""
    pieces: list[bytes] = []
    size = 0
    for _, block in blocks(path, most):
        pieces.append(block)
        size += len(block)
        if size > most:
            break
    return b"".join(pieces), damage(path) if size <= most else None


def damage(path: str) -> str | None:
    """What is wrong with a packed file, all of which is read for that; None where nothing is. Raises InputError where
    the file cannot be read."""
    with open_binary(path) as file:
        try:
            for _ in chunks(file, path):
                pass
        except Damaged as error:
            return str(error)
    return None


def pieces(path: str, longest: int = LONGEST_LINE) -> Iterator[tuple[int, int, bytes]]:
    """`blocks` before a collector's JSON is opened, each with where it begins in the unpacked text."""
    number, begin, pending, overlong = 1, 0, b"", False
    with open_binary(path) as file:
        try:
            for chunk in as_utf8(chunks(file, path)):
                if overlong:  # the rest of a line whose beginning was passed on
                    end = _first_end(chunk)
                    begin += len(chunk) if end is None else end
                    if end is None:
                        continue
                    chunk, overlong = chunk[end:], False
                block = pending + chunk
                last = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1
                pending = block[last:]
                if last:
                    yield number, begin, block[:last]
                    number += block.count(b"\n", 0, last)
                    begin += last
                if len(pending) > longest:
                    yield number, begin, pending[:longest]
                    begin += len(pending)
                    pending, overlong = b"", True
        except CannotUnpackError as error:
            raise FileError(path, str(error)) from error
        except Damaged:
            pass
    if pending:
        yield number, begin, pending


def lines(block: bytes, number: int) -> Iterator[tuple[int, str]]:
    """The lines of a block, each with its number, from `number`; only a newline counts as one."""
    if b"\r" not in block:  # most are so, and this is fast
        own = block.split(b"\n")
        if not own[-1]:
            own.pop()
        yield from ((own_number, _text(line)) for own_number, line in enumerate(own, number))
        return
    start = 0
    for end in _ENDS.finditer(block):
        if end.start() > start:
            yield number, _text(block[start : end.start()])
        elif end.group() != b"\r":  # before a bar nothing stands
            yield number, ""
        number += end.group().endswith(b"\n")
        start = end.end()
    if start < len(block):
        yield number, _text(block[start:])


def text_lines(path: str) -> Iterator[tuple[int, str]]:
    """All lines of a file."""
    for number, block in blocks(path):
        yield from lines(block, number)


def holds_any(block: bytes, needles: Sequence[bytes]) -> bool:
    """Whether any of the needles is in the block: far faster than a look at each line."""
    if len(needles) < _MANY:
        return any(needle in block for needle in needles)

    return word_search(tuple(needles)).any_in(block)


def words_in(block: bytes, words: Sequence[bytes]) -> list[bytes]:
    """Those of the words that stand in the block."""

    return word_search(tuple(words)).all_in(block)


def _first_end(chunk: bytes) -> int | None:
    end = _ENDS.search(chunk)
    return None if end is None else end.start()  # the end itself stays: it is counted as a line's


def _text(line: bytes) -> str:
    text = line.lstrip(b"\0")[:LONGEST_LINE].decode(errors="replace")  # after a hole in the file
    text = text.removeprefix("\ufeff")  # the mark of Windows' editors and shells
    return _ESCAPE.sub("", text) if "\x1b" in text else text
