"""Pieces of the output, compressed apart by several processes, that make up one gzip stream."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from isal import isal_zlib
from msgspec import Struct

from traceops.core.errors import InputError

# One member, not a member a piece: some readers of gzip stop at the end of the first.
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflate, no name, no date
_LAST_BLOCK = b"\x03\x00"  # an empty block that says it is the last
_LEVEL = 1
_BUFFER = 1 << 18
_POLYNOMIAL = 0xEDB88320  # CRC-32, lowest power in the highest bit [RFC 1952]


class CannotWrite(InputError):
    """The output's file system is full or refuses."""


class CompressedPiece(Struct, frozen=True):
    """A written piece: `size` and `crc` are of the text before compression."""

    path: Path
    gzipped: bool
    size: int
    crc: int


class PieceWriter:
    """Writes one piece of text to a file; afterwards `piece` describes it. Raises CannotWrite rather than OSError,
    which inside `open_binary` would be taken for one of reading."""

    def __init__(self, path: Path, gzipped: bool) -> None:
        self._path, self._gzipped = path, gzipped
        self._size = self._crc = 0
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._deflate = isal_zlib.compressobj(_LEVEL, wbits=-15) if gzipped else None

    def __enter__(self) -> PieceWriter:
        try:
            self._file: IO[bytes] = self._path.open("wb")
        except OSError as error:
            raise cannot_write(self._path.parent.parent, error) from error
        return self

    def write(self, text: bytes) -> None:
        """Append text."""
        self._pending.append(text)
        self._pending_size += len(text)
        if self._pending_size >= _BUFFER:
            self._flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._file:
                if kind is None:
                    self._flush()
                    if self._deflate is not None:  # ends at a whole byte, and nothing behind refers to before
                        self._file.write(self._deflate.flush(isal_zlib.Z_FULL_FLUSH))
        except OSError as failure:
            raise cannot_write(self._path.parent.parent, failure) from failure

    @property
    def piece(self) -> CompressedPiece:
        """The piece, once the writer is closed."""
        return CompressedPiece(self._path, self._gzipped, self._size, self._crc)

    def _flush(self) -> None:
        text = b"".join(self._pending)
        self._pending, self._pending_size = [], 0
        self._size += len(text)
        if self._deflate is not None:
            self._crc = isal_zlib.crc32(text, self._crc)
            text = self._deflate.compress(text)
        try:
            self._file.write(text)
        except OSError as error:
            raise cannot_write(self._path.parent.parent, error) from error


def join(pieces: Sequence[CompressedPiece], target: Path) -> None:
    """Write the pieces one behind the other as one file and delete them. Raises CannotWrite."""
    gzipped = any(piece.gzipped for piece in pieces)
    size = crc = 0
    try:
        with target.open("wb") as file:
            if gzipped:
                file.write(_HEADER)
            for piece in pieces:
                with piece.path.open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
                piece.path.unlink()
                crc = crc_of_both(crc, piece.crc, piece.size)
                size += piece.size
            if gzipped:
                file.write(_LAST_BLOCK + struct.pack("<II", crc, size & 0xFFFFFFFF))
    except OSError as error:
        raise cannot_write(target.parent.parent, error) from error


def cannot_write(path: Path, error: OSError) -> CannotWrite:
    """The error to raise for one of the file system where the timeline was to go."""
    where = path.absolute() if path == Path() else path
    return CannotWrite(f"{where} cannot be written ({error.strerror or error}); choose another place with -o FILE")


def crc_of_both(first: int, second: int, second_size: int) -> int:
    """CRC-32 of two texts one behind the other, from theirs: the first's times x^(8 · bytes of the second)."""
    factor, power = 1 << 31, 1 << 30  # x^0, x^1
    exponent = 8 * second_size
    while exponent:
        if exponent & 1:
            factor = _times(factor, power)
        power = _times(power, power)
        exponent >>= 1
    return _times(first, factor) ^ second


def _times(a: int, b: int) -> int:
    """Product of two polynomials over GF(2), modulo CRC-32's."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
