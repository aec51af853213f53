"""A rank's summary as a file: packed, zipped, and read back whole or not at all."""

from __future__ import annotations

import io
from typing import IO, Any

from isal import isal_zlib

from traceops.core.errors import FileError
from traceops.measure.summary import RankSummary
from traceops.pipeline.mapping.codec import decode, encode
from traceops.pipeline.mapping.summary_check import check_summary
from traceops.traces.model import CommArgs, Group
from traceops.traces.source import Damaged, chunks, open_binary
from traceops.traces.summary_header import ANEW, SummaryHeader, split, with_header

_SHARED = frozenset({CommArgs, Group})  # ranks say the same of the same collective
_LARGEST = 1 << 28  # of the unzipped summary; real ones have less than a hundredth
_GZIP_WBITS = 31
_LEVEL = 1


def pack(header: SummaryHeader, summary: RankSummary) -> bytes:
    """A summary as bytes, not yet zipped."""
    return with_header(header, encode(summary))


def unpack(data: bytes, seen: dict[Any, Any]) -> tuple[SummaryHeader, RankSummary]:
    """What `pack` made. Summaries unpacked with the same `seen` share what is equal in them.

    Raises ValueError, which says what to do, where the bytes are anything else.
    """
    header, body = split(data)
    try:
        summary = decode(body, RankSummary, seen, _SHARED)
        check_summary(summary)
    except ValueError as error:
        raise ValueError(f"it cannot be read as a summary ({error}); {ANEW}") from error
    return header, summary


def zipped(data: bytes) -> bytes:
    """The bytes of a summary file."""
    packed: bytes = isal_zlib.compress(data, _LEVEL, _GZIP_WBITS)
    return packed


def read_packed(path: str) -> bytes:
    """The unzipped bytes of a summary file, local or remote. Raises FileError."""
    with open_binary(path) as file:
        return unzipped(file, path)


def unzipped(file: IO[bytes], path: str) -> bytes:
    """The unzipped bytes of an open summary file. Raises FileError naming it by `path`."""
    data = io.BytesIO()
    try:
        for piece in chunks(file):
            data.write(piece)
            if data.tell() > _LARGEST:
                raise FileError(path, f"it is larger than any summary; {ANEW}", ": ")
    except Damaged as error:
        raise FileError(path, f"{error}; {ANEW}", ": ") from error
    return data.getvalue()
