"""Writes a window's trace, whole and packed under its final name, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceops.capture.collectives import add_to_trace
from traceops.capture.environment import host
from traceops.core.capture_failure import CaptureOperation

if TYPE_CHECKING:
    from torch.profiler import profile

_EVENT_BYTES = 700  # measured: 280 to 420 on a CPU, with shapes or stacks; a GPU's kernels have more to say
_PACKED = 0.2  # of the plain size, which lies beside it for a moment; measured: 0.1
_LEAVE_FREE = 32 << 20  # for the training's own files
_PLENTY = 16 << 30  # of free bytes a rank: nobody has to count events
_TAIL_BYTES = 4096
_FULL = 1 << 16  # less is free than a file's buffer


class NoRoom(OSError):
    """The disk cannot take the trace."""

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class TraceFolder:
    """One rank's folder of traces. last_bytes: of the window before, unpacked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.last_bytes: int | None = None

    def write(
        self,
        session: profile,
        window: int,
        doing: Callable[[CaptureOperation], None],
        collectives: list[list[Any]] | None = None,
    ) -> Path:
        """The window's trace, with `collectives` added to it. `doing` is told what comes next.

        Raises OSError where it could not be written, NoRoom before it is tried where the disk is too small.
        """
        doing(CaptureOperation.ROOM)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._look_for_room(session)
        final, plain, packed = self._names(window)
        try:
            doing(CaptureOperation.EXPORT)
            with _plainly_named(plain) as name:
                session.export_chrome_trace(name)
            self.last_bytes = _whole_size(plain)
            add_to_trace(plain, collectives or [])
            doing(CaptureOperation.COMPRESS)
            _compress(plain, packed)
            packed.replace(final)
        finally:
            for path in (plain, packed, Path(f"{plain}.tmp")):  # Kineto's own, which it leaves where the disk is full
                with suppress(OSError):
                    path.unlink()
        return final

    def plain(self, window: int) -> Path:
        """Where a trace of that window can lie unpacked for a moment."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._names(window)[1]

    def pack(self, window: int, content: Iterable[bytes]) -> Path:
        """The window's trace from the bytes of an unpacked one. Raises OSError where it could not be written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        final, _plain, packed = self._names(window)
        try:
            with _packer().open(packed, "wb", compresslevel=1) as writer:
                for block in content:
                    writer.write(block)
            packed.replace(final)
        finally:
            with suppress(OSError):
                packed.unlink()
        return final

    def _names(self, window: int) -> tuple[Path, Path, Path]:
        """The final file, and where its content lies unpacked and packed until it is whole."""
        stem = f"{host()}_{os.getpid()}.window_{window}.{time.time_ns() // 1_000_000}"
        return (
            self._folder / f"{stem}.pt.trace.json.gz",
            self._folder / f".{stem}.json.part",
            self._folder / f".{stem}.gz.part",
        )

    def _look_for_room(self, session: profile) -> None:
        """Raise NoRoom where the traces of this machine's ranks, which are written at once, do not fit."""
        ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        free = shutil.disk_usage(self._folder).free
        if free >= _PLENTY * ranks:
            return
        plain = self.last_bytes
        if plain is None:
            results = session.profiler.kineto_results if session.profiler is not None else None
            plain = _EVENT_BYTES * len(results.events()) if results is not None else 0
        needed = int(plain * (1 + _PACKED)) * ranks + _LEAVE_FREE
        if free < needed:
            raise NoRoom(needed, free)


@contextmanager
def _plainly_named(path: Path) -> Iterator[str]:
    """A path to the same file that Kineto can take: it writes the path into the trace as it is, and cuts it at \\n."""
    text = str(path)
    if text.isprintable() and not set(text) & {'"', "\\\\"}:
        yield text
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _whole_size(path: Path) -> int:
    """Bytes of a plain trace. Raises OSError where it is not whole: Kineto says nothing when it cannot write."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read().rstrip()
        if b'"traceName"' in tail and tail.endswith(b"}"):
            return size
    full = shutil.disk_usage(path.parent).free < _FULL
    raise OSError(
        errno.ENOSPC if full else errno.EIO, os.strerror(errno.ENOSPC) if full else "torch wrote no whole trace"
    )


def _compress(source: Path, target: Path) -> None:
    with source.open("rb") as reader, _packer().open(target, "wb", compresslevel=1) as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)


def _packer() -> Any:
    # The other ranks wait while this one writes: isal packs several times faster than zlib. A training
    # machine that runs from a checkout may lack it.
    try:
        from isal import igzip as packer
    except ImportError:
        import gzip as packer
    return packer
