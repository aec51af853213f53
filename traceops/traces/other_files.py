"""What a file is that another tool or another command reads, by its first bytes and its name."""

from __future__ import annotations

from pathlib import PurePath

from traceops.traces.packed import GIT_LFS

_SNAPSHOT = "it is a memory snapshot of torch; read it with traceops memory"
_NSYS = "it is a report of Nsight Systems; read it with nsys stats, and record torch's own with traceops run"
_DATABASE = "it is a database, as nsys exports; read it with nsys stats"
_BY_NAME = {".nsys-rep": _NSYS, ".qdrep": _NSYS, ".sqlite": _DATABASE}
_BY_HEAD = {GIT_LFS: "it is a pointer of Git LFS, not the file: git lfs pull", b"SQLite format 3": _DATABASE}
_PICKLE, _KEYS = b"\x80", (b"segments", b"device_traces")  # either comes first in torch's
_PAGE, _VIEWER = b"<", b"MemoryViz.js"
_PAGE_SAID = (
    "it is MemoryViz's page of a memory snapshot; read the snapshot itself with traceops memory "
    "(torch.cuda.memory._dump_snapshot writes it)"
)


def other_file(head: bytes, path: str) -> str | None:
    """What it is and what reads it; None for all that may be a trace, a log or a dump."""
    text = head.lstrip()
    if text[:1] == _PICKLE and any(key in text for key in _KEYS):
        return _SNAPSHOT
    if text[:1] == _PAGE and _VIEWER in text:
        return _PAGE_SAID
    by_head = next((said for begin, said in _BY_HEAD.items() if text.startswith(begin)), None)
    return by_head or (None if text[:1] in (b"{", b"[") else _BY_NAME.get(PurePath(path).suffix.lower()))
