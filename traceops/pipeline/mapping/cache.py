"""Caches summaries of traces by the traces' content, so that an unchanged trace is parsed once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from traceops.core.errors import InputError, UsageError
from traceops.core.files import cache_folder as folder_of
from traceops.core.files import make_own_folder, open_own, touch_own, write_own
from traceops.core.installation import PACKAGE
from traceops.pipeline.mapping.summary_file import read_packed, unzipped, zipped
from traceops.traces.source import filesystem, is_remote, open_binary, store_errors
from traceops.traces.summary_header import FORMAT, SUFFIX, SummaryHeader, split

# What a file holds, told without parsing it, and which code makes summaries: both equal, the summary is.


_PIECE = 1 << 20
_CHECKSUMS = ("ETag", "etag", "md5Hash", "crc32c", "content_md5", "Content-MD5", "md5")  # as fsspec's stores name them
# Whatever the map runs, by its place in the package; other modules cannot change a summary.
MAP_CODE = ("core", "traces", "compute", "measure", "pipeline/mapping/summary_file.py")


class Content(Struct, frozen=True):
    """A digest of a file's bytes, and what else changes when somebody writes to it."""

    digest: str
    state: tuple[Any, ...]


def content_of(path: str) -> Content | None:
    """What a file holds now; None for a remote one whose store tells no checksum.

    Raises InputError where it cannot be read.
    """
    if is_remote(path):
        return _remote_content(path)
    digest = hashlib.sha256()
    with open_binary(path) as file:
        state = _state(os.fstat(file.fileno()))
        while piece := file.read(_PIECE):
            digest.update(piece)
    return Content(digest.hexdigest(), state)


def is_unchanged(path: str, content: Content) -> bool:
    """Whether nobody has written to the file since `content_of`: a capture may still be at it."""
    if is_remote(path):
        return _remote_content(path) == content
    try:
        with open_binary(path) as file:  # opening asks a file server for what it has now
            return _state(os.fstat(file.fileno())) == content.state
    except InputError:
        return False


def _state(status: os.stat_result) -> tuple[Any, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _remote_content(path: str) -> Content | None:
    file_system, within = filesystem(path)
    try:
        file_system.invalidate_cache()
        info = file_system.info(within)
    except store_errors():
        return None
    told = [f"{name}={info[name]}" for name in _CHECKSUMS if info.get(name)]
    if not told or any("=W/" in one for one in told):  # a weak ETag stays when bytes change
        return None
    text = "\n".join((path, str(info.get("size")), *told))
    return Content(f"store:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}", ())


@functools.cache
def code_fingerprint(with_hta: bool = False) -> str:
    """A digest of the code that makes summaries, HTA's version with it on demand; '' where it cannot be read."""
    if with_hta:
        from importlib import metadata

        from traceops.measure.hta_bridge import installed_hta

        return f"{code_fingerprint()} {installed_hta()} pandas {metadata.version('pandas')}"
    digest = hashlib.sha256(np.__version__.encode())
    files = [
        file
        for part in MAP_CODE
        for file in ([PACKAGE / part] if part.endswith(".py") else sorted((PACKAGE / part).iterdir()))
        if file.suffix in (".py", ".so", ".pyd")
    ]
    try:
        for file in files:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()[:32]


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
