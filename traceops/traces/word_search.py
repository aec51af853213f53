"""Which of many words stand in a block of bytes, in one pass over it and not in one for each word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

_PIECE = 4  # bytes of each word that are looked for at first
_HASH = np.uint32(2_654_435_761)
_SHIFT = np.uint32(16)
_RARE, _USUAL, _COMMON, _SPACE = 1, 2, 5, 8  # how often a byte stands in logs, roughly


class WordSearch:
    """One piece of each word is looked for at every place; a word itself where its piece is there."""

    def __init__(self, words: Sequence[bytes]) -> None:
        self._short = [word for word in words if len(word) < _PIECE]
        self._words: dict[int, list[bytes]] = {}
        for word in words:
            if len(word) >= _PIECE:
                self._words.setdefault(int.from_bytes(_rarest(word), "little"), []).append(word)
        self._pieces = np.array(sorted(self._words), dtype=np.uint32)
        self._table = np.zeros(1 << 16, dtype=np.bool_)
        self._table[(self._pieces * _HASH) >> _SHIFT] = True

    def any_in(self, block: bytes) -> bool:
        """Whether one of the words stands in the block."""
        return next(self._all_in(block), None) is not None

    def all_in(self, block: bytes) -> list[bytes]:
        """The words that stand in the block."""
        return list(self._all_in(block))

    def _all_in(self, block: bytes) -> Iterator[bytes]:
        yield from (word for word in self._short if word in block)
        pieces: set[int] = set()
        for offset in range(_PIECE):
            count = (len(block) - offset) // _PIECE
            if count <= 0:
                continue
            at = np.frombuffer(block, dtype="<u4", count=count, offset=offset)
            likely = at[self._table[(at * _HASH) >> _SHIFT]]
            pieces.update(np.intersect1d(likely, self._pieces).tolist())
        yield from (word for piece in pieces for word in self._words[piece] if word in block)


@lru_cache(maxsize=16)
def word_search(words: tuple[bytes, ...]) -> WordSearch:
    """The search for these words, made once."""
    return WordSearch(words)


def _rarest(word: bytes) -> bytes:
    """The piece of a word that stands in the fewest blocks without the word."""
    return min((word[at : at + _PIECE] for at in range(len(word) - _PIECE + 1)), key=_weight)


def _weight(piece: bytes) -> int:
    return sum(map(_frequency, piece))


def _frequency(byte: int) -> int:
    char = chr(byte)
    if char == " ":
        return _SPACE
    if char.isascii() and char.islower():
        return _COMMON
    return _USUAL if char.isalnum() or char in ":=.,-_/[]()" else _RARE
