"""What a file holds, told without parsing it, and which code makes summaries: both equal, the summary is."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceops.core.bundled import PACKAGE
from traceops.core.errors import InputError
from traceops.traces.source import filesystem, is_remote, open_binary, store_errors

_PIECE = 1 << 20
_CHECKSUMS = ("ETag", "etag", "md5Hash", "crc32c", "content_md5", "Content-MD5", "md5")  # as fsspec's stores name them
# Whatever the map runs, by its place in the package; other modules cannot change a summary.
MAP_CODE = ("core", "traces", "measure", "pipeline/mapping/codec.py")


@dataclass(frozen=True)
class Content:
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
