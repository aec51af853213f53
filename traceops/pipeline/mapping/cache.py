"""Caches summaries of traces by the traces' content, so that an unchanged trace is parsed once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from pathlib import Path

from traceops.core.cache_folder import cache_folder as folder_of
from traceops.core.errors import InputError, UsageError
from traceops.core.own_files import make_own_folder, open_own, touch_own, write_own
from traceops.pipeline.mapping.summary_file import read_packed, unzipped, zipped
from traceops.traces.summary_header import FORMAT, SUFFIX, SummaryHeader, split

SIZE = "TRACEOPS_CACHE_SIZE"
_MOST_BYTES = 2 << 30
_SHARDS = 16  # folders; each is kept within its part of the size
_LEFT_BEHIND_S = 3600.0  # a part this old is of a process that was killed
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def cache_folder() -> Path | None:
    """Where summaries are kept; None for nowhere."""
    return folder_of("summaries")


def most_bytes() -> int:
    """How large the cache may grow: $TRACEOPS_CACHE_SIZE such as 500M or 4G, else 2 GiB. Raises UsageError."""
    text = os.environ.get(SIZE)
    if not text:
        return _MOST_BYTES
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)B?", text.strip().upper())
    if match is None:
        raise UsageError(f"{SIZE} is a size such as 500M or 4G, not {text!r}")
    return int(match[1]) * _UNITS[match[2]]


def read_same(path: str, header: SummaryHeader) -> bytes | None:
    """The unzipped summary in a file, if it is of the same bytes, by the same code, for the same rank; else None."""
    try:
        return _if_same(read_packed(path), header)
    except InputError:
        return None


def _if_same(data: bytes, header: SummaryHeader) -> bytes | None:
    try:
        own, _ = split(data)
    except ValueError:
        return None
    return data if header.digest and header.code and _depends_on(own) == _depends_on(header) else None


def load(folder: Path, header: SummaryHeader) -> bytes | None:
    """The summary that is kept for this header, unzipped; None where there is none, or a damaged one.

    One that others could have written is none. Raises UsageError where $TRACEOPS_CACHE_TRUST cannot be read.
    """
    path = _place(folder, header)
    try:
        with open_own(path, folder) as file:
            data = _if_same(unzipped(file, str(path)), header)
            if data is not None:
                touch_own(file)  # the least recently used go first
            return data
    except (OSError, InputError):
        return None


def store(folder: Path, header: SummaryHeader, data: bytes) -> None:
    """Keep a summary; where the folder cannot be written to, nothing is kept."""
    path = _place(folder, header)
    try:
        make_own_folder(path.parent, folder)
        write_own(path, zipped(data))
        if path.name.startswith("0"):  # one in sixteen; the others need not look
            trim(path.parent, most_bytes() // _SHARDS)
    except OSError:
        return


def trim(folder: Path, most: int) -> None:
    """Remove the least recently used files of a folder until it holds no more than `most` bytes."""
    entries = []
    with os.scandir(folder) as found:
        for entry in found:
            with contextlib.suppress(OSError):  # others trim it as well
                status = entry.stat(follow_symlinks=False)
                if not entry.name.endswith(".part"):
                    entries.append((status.st_mtime_ns, status.st_size, entry.path))
                elif status.st_mtime < time.time() - _LEFT_BEHIND_S:
                    Path(entry.path).unlink()
    left = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if left <= most:
            break
        with contextlib.suppress(OSError):
            Path(path).unlink()
        left -= size


def _place(folder: Path, header: SummaryHeader) -> Path:
    key = hashlib.sha256(repr(_depends_on(header)).encode()).hexdigest()
    return folder / key[0] / f"{key[1:]}{SUFFIX}"


def _depends_on(header: SummaryHeader) -> tuple[object, ...]:
    return (FORMAT, header.version, header.code, header.digest, header.rank, header.steps, header.with_hta)
