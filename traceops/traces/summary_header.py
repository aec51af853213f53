"""How a summary file begins: of which trace it was made, for which rank, and by which traceops."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from traceops.core.errors import FileError
from traceops.traces.run_manifest import MOST_RANKS
from traceops.traces.source import Damaged, chunks, open_binary

SUFFIX = ".summary.msgpack.gz"
MAGIC = b"traceops summary\n"
FORMAT = 2  # raised with every change after which older files would be read wrongly
ANEW = "make it anew from its trace: traceops run --summarize, or give traceops analyze the trace itself"
_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 24
_LATEST_NS = 1 << 62


class SummaryHeader(Struct, frozen=True):
    """What a summary says of itself before the summary.

    `trace` and `digest` (SHA-256 of the file, '' where not known) are the trace's, `rank_inside`, `world_size`
    and `started_ns` are what the trace says; `rank` and `steps` are what the summary was made with: see TraceFile.
    `code` is a fingerprint of the modules that made it; `with_hta` whether HTA itself ran.
    """

    version: str
    code: str
    trace: str
    digest: str
    rank: int
    rank_from: str
    rank_inside: int | None
    world_size: int | None
    started_ns: int
    steps: tuple[int, ...] | None
    with_hta: bool = False
    format: int = FORMAT


class _Made(Struct, frozen=True):
    """The part of a header that every format has."""

    format: int
    version: str = "unknown"


def with_header(header: SummaryHeader, body: bytes) -> bytes:
    """The bytes of a summary file before they are zipped."""
    packed = msgspec.msgpack.encode(header)
    return b"".join((MAGIC, _LENGTH.pack(len(packed)), packed, body))


def split(data: bytes) -> tuple[SummaryHeader, memoryview]:
    """The header and what follows it. Raises ValueError where this is no summary that this traceops reads."""
    if not data.startswith(MAGIC):
        raise ValueError(f"it is no summary of traceops; {ANEW}")
    start = len(MAGIC) + _LENGTH.size
    end = start + _LENGTH.unpack_from(data.ljust(start, b"\0"), len(MAGIC))[0]
    if not start < end <= min(len(data), _LONGEST):
        raise ValueError(f"it is cut off; {ANEW}")
    view = memoryview(data)
    try:
        made = msgspec.msgpack.decode(view[start:end], type=_Made)
        if made.format != FORMAT:
            raise ValueError(
                f"it is a summary of format {made.format}, by traceops {made.version}, and this traceops reads "
                f"format {FORMAT}; {ANEW}"
            )
        header = msgspec.msgpack.decode(view[start:end], type=SummaryHeader)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its header cannot be read ({error}); {ANEW}") from error
    ranks = (header.rank, header.rank_inside or 0, 0 if header.world_size is None else header.world_size - 1)
    if not all(0 <= rank < MOST_RANKS for rank in ranks) or abs(header.started_ns) >= _LATEST_NS:
        raise ValueError(f"its header has a rank or a time that cannot be; {ANEW}")
    return header, view[end:]


def read_header(path: str) -> SummaryHeader:
    """The header of a summary file. Raises FileError where it is none, or one of another format."""
    try:
        with open_binary(path) as file:
            return split(_beginning(chunks(file)))[0]
    except Damaged as error:
        raise FileError(path, f"{error}; {ANEW}", ": ") from error
    except ValueError as error:
        raise FileError(path, str(error), ": ") from error


def _beginning(pieces: Iterable[bytes]) -> bytes:
    """As many of the pieces as the header takes."""
    data = b""
    for piece in pieces:
        data += piece
        start = len(MAGIC) + _LENGTH.size
        if len(data) >= start and len(data) >= start + _LENGTH.unpack_from(data, len(MAGIC))[0]:
            break
        if len(data) > _LONGEST or not data.startswith(MAGIC[: len(data)]):
            break
    return data
