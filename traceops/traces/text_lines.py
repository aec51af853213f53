"""Lines of a text file of any size: numbered, decoded, cut to a bounded length, without terminal escapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from traceops.core.errors import FileError
from traceops.traces.encodings import as_utf8, encoding_of
from traceops.traces.envelopes import form_of, without_envelopes
from traceops.traces.packed import CannotUnpackError, packing_of
from traceops.traces.source import Damaged, chunks, open_binary

LONGEST_LINE = 1 << 14
_MANY = 16  # words, from which one pass for all is faster than one for each
_ENDS = re.compile(rb"\r{0,3}\n|\r")  # progress bars end theirs with \r, and messages follow on the same line
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;:?]{0,32}[A-Za-z]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")


def blocks(path: str, longest: int = LONGEST_LINE) -> Iterator[tuple[int, bytes]]:
    """Pieces of whole lines with the number of their first line, unpacked, in UTF-8, without a collector's JSON.

    longest: bytes from which a line is too long, and is cut.

    Where a packed stream is damaged, the blocks end with what was readable. Raises InputError where the file
    cannot be read.
    """
    yield from without_envelopes(_blocks(path, longest))


def is_dressed(head: bytes, name: str) -> bool:
    """Whether the text of a file that begins so has to be unpacked, decoded or taken out of a collector's JSON."""
    return packing_of(head, name) is not None or encoding_of(head) is not None or form_of(head) is not None


def text_head(path: str, most: int) -> bytes:
    """The first bytes of a file's text, as `blocks` has it: of at least `most` in the file if it has so many.

    Raises InputError where the file cannot be read.
    """
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
    """A file's text, unpacked, in UTF-8, without a collector's JSON, and what is wrong with what it is packed in.

    Of more than `most` bytes somewhat more are read. Raises InputError where the file cannot be read.
    """
    pieces: list[bytes] = []
    size = 0
    for _, block in blocks(path, most):
        pieces.append(block)
        size += len(block)
        if size > most:
            break
    return b"".join(pieces), damage(path) if size <= most else None


def damage(path: str) -> str | None:
    """What is wrong with a packed file, all of which is read for that; None where nothing is.

    Raises InputError where the file cannot be read.
    """
    with open_binary(path) as file:
        try:
            for _ in chunks(file, path):
                pass
        except Damaged as error:
            return str(error)
    return None


def _blocks(path: str, longest: int) -> Iterator[tuple[int, bytes]]:
    number, pending, overlong = 1, b"", False
    with open_binary(path) as file:
        try:
            for chunk in as_utf8(chunks(file, path)):
                if overlong:  # the rest of a line whose beginning was passed on
                    end = _first_end(chunk)
                    if end is None:
                        continue
                    chunk, overlong = chunk[end:], False
                block = pending + chunk
                last = max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1)) + 1
                pending = block[last:]
                if last:
                    yield number, block[:last]
                    number += block.count(b"\n", 0, last)
                if len(pending) > longest:
                    yield number, pending[:longest]
                    pending, overlong = b"", True
        except CannotUnpackError as error:
            raise FileError(path, str(error)) from error
        except Damaged:
            pass
    if pending:
        yield number, pending


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


def holds_within(path: str, needles: Sequence[bytes], most: int) -> bool:
    """Whether one of `needles` stands in the first `most` bytes of a text file (the block that passes them counts).

    Raises InputError where it cannot be read.
    """
    looked = 0
    for _, block in blocks(path):
        if holds_any(block, needles):
            return True
        looked += len(block)
        if looked > most:
            return False
    return False


def text_lines(path: str) -> Iterator[tuple[int, str]]:
    """All lines of a file."""
    for number, block in blocks(path):
        yield from lines(block, number)


def holds_any(block: bytes, needles: Sequence[bytes]) -> bool:
    """Whether any of the needles is in the block: far faster than a look at each line."""
    if len(needles) < _MANY:
        return any(needle in block for needle in needles)
    from traceops.traces.word_search import word_search

    return word_search(tuple(needles)).any_in(block)


def words_in(block: bytes, words: Sequence[bytes]) -> list[bytes]:
    """Those of the words that stand in the block."""
    from traceops.traces.word_search import word_search

    return word_search(tuple(words)).all_in(block)


def _first_end(chunk: bytes) -> int | None:
    end = _ENDS.search(chunk)
    return None if end is None else end.start()  # the end itself stays: it is counted as a line's


def _text(line: bytes) -> str:
    text = line.lstrip(b"\0")[:LONGEST_LINE].decode(errors="replace")  # after a hole in the file
    text = text.removeprefix("\ufeff")  # the mark of Windows' editors and shells
    return _ESCAPE.sub("", text) if "\x1b" in text else text
