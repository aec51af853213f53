"""Where the blocks of a text lie, and which of the words that readers look for stand in each: found in one pass.

Each reader of a log looks for a few words of its own. The first that asks has the file searched for the words of all,
and then each reads only blocks that hold some of its words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

from traceops.traces.source import CHUNK_BYTES, open_binary
from traceops.traces.text_lines import LONGEST_LINE, WordSearch, blocks, is_dressed, pieces

_ALL: list[Words] = []
_LAST = 16  # blocks at the end of a text that are always among those of it


class Words:
    """Words, one of which stands in each block that a reader has to see."""

    def __init__(self, *words: bytes) -> None:
        self.words = tuple(dict.fromkeys(words))
        self.bit = 1 << len(_ALL)
        _ALL.append(self)


class _Place(NamedTuple):
    """Of a block: its first line, where it begins in the text, its bytes and newlines, the bits of the Words in it."""

    number: int
    begin: int
    size: int
    newlines: int
    holds: int


class Block:
    """A block of whole lines, whose bytes are read when they are asked for."""

    __slots__ = ("_data", "_file", "_path", "place")

    def __init__(self, place: _Place, data: bytes | None, file: IO[bytes] | None = None, path: str = "") -> None:
        self.place, self._data, self._file, self._path = place, data, file, path

    @property
    def number(self) -> int:
        """Of its first line."""
        return self.place.number

    @property
    def begin(self) -> int:
        """Where it begins in the text, in bytes."""
        return self.place.begin

    @property
    def behind(self) -> int:
        """The number of the line after its last newline."""
        return self.place.number + self.place.newlines

    def holds(self, words: Words) -> bool:
        """Whether one of the words stands in it."""
        return bool(self.place.holds & words.bit)

    def data(self) -> bytes:
        """Its bytes. Raises OSError or InputError where the file cannot be read any more."""
        if self._data is None and (self._file is None or self._file.closed):
            with open_binary(self._path) as file:
                self._data = self._read(file)
        elif self._data is None and self._file is not None:
            self._data = self._read(self._file)
        return self._data or b""

    def _read(self, file: IO[bytes]) -> bytes:
        file.seek(self.place.begin)
        return file.read(self.place.size)


class _Index(NamedTuple):
    """is_plain: places are those of the file's own bytes."""

    is_plain: bool
    places: tuple[_Place, ...]


def indexed(path: str) -> Iterator[Block]:
    """All blocks of a text, as `blocks` has them. Raises InputError where the file cannot be read."""
    index = _index_of(path)
    if not index.is_plain:
        for place, (_, data) in zip(index.places, blocks(path), strict=False):
            yield Block(place, data)
    elif index.places:
        with open_binary(path) as file:
            for place in index.places:
                yield Block(place, None, file, path)


def blocks_with(path: str, words: Words) -> Iterator[tuple[int, bytes]]:
    """The blocks in which one of the words stands, with the number of their first line. Raises InputError as above."""
    if any(place.holds & words.bit for place in _index_of(path).places):
        yield from ((block.place.number, block.data()) for block in indexed(path) if block.holds(words))


def holds(path: str, words: Words, most: int | None = None) -> bool:
    """Whether one of the words stands in a text, or in its first `most` bytes (the block that passes them counts)."""
    return any(place.holds & words.bit for place in _index_of(path).places if most is None or place.begin <= most)


def edge_blocks(path: str, first: int, last: int) -> Iterator[Block]:
    """So many blocks at a text's beginning, and at its end. Raises InputError where the file cannot be read."""
    total = len(_index_of(path).places)
    return (block for at, block in enumerate(indexed(path)) if at < first or at >= total - last)


def spread_blocks(path: str, most: int) -> Iterator[Block]:
    """All blocks of a text, or about `most` of them at even distances. Raises InputError as above."""
    total = len(_index_of(path).places)
    apart = -(-total // most)
    return (block for at, block in enumerate(indexed(path)) if at % max(apart, 1) == 0 or at >= total - _LAST)


def backwards(path: str) -> Iterator[Block]:
    """The blocks of a text from its end on; of a packed one the last few. Raises InputError as above."""
    index = _index_of(path)
    if not index.is_plain:
        yield from reversed(deque(indexed(path), maxlen=_LAST))
        return
    with open_binary(path) as file:
        yield from (Block(place, None, file, path) for place in reversed(index.places))


def _index_of(path: str) -> _Index:
    try:
        status = Path(path).stat()
        stamp = status.st_ino, status.st_size, status.st_mtime_ns
    except OSError:
        stamp = 0, 0, 0  # a remote file, or none
    return _index(path, stamp, len(_ALL))


@lru_cache(maxsize=16)
def _search(known: int) -> tuple[WordSearch, dict[bytes, int]]:
    bits: dict[bytes, int] = {}
    for one in _ALL[:known]:
        for word in one.words:
            bits[word] = bits.get(word, 0) | one.bit
    return WordSearch(tuple(bits)), bits


@lru_cache(maxsize=256)
def _index(path: str, stamp: tuple[int, int, int], known: int) -> _Index:
    search, bits = _search(known)
    places: list[_Place] = []
    with open_binary(path) as file:
        is_plain = not is_dressed(file.read(CHUNK_BYTES), path)
    for number, begin, block in pieces(path, LONGEST_LINE) if is_plain else _dressed(path):
        holds = 0
        for word in search.all_in(block):
            holds |= bits[word]
        places.append(_Place(number, begin, len(block), block.count(b"\n"), holds))
    return _Index(is_plain, tuple(places))


def _dressed(path: str) -> Iterator[tuple[int, int, bytes]]:
    begin = 0
    for number, block in blocks(path):
        yield number, begin, block
        begin += len(block)
