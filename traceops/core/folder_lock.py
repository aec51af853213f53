"""One writer at a time in a folder, of all processes that lock it; a process that dies gives it back."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from traceops.core.errors import InputError

LOCK = ".traceops.lock"
_LOOKS_S = 0.05  # between two looks at a lock that another process holds
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


class Locked(InputError):
    """Another process writes to the folder."""


@contextmanager
def locked_folder(folder: Path, *, wait_s: float = 10.0) -> Iterator[None]:
    """Hold the folder, which must be there, in this process alone.

    Waits at most `wait_s` for another process, then raises Locked, which names the folder and that process. Where
    the disk knows no locks, nothing is locked. Raises OSError where the folder cannot be written to.
    """
    path = folder / LOCK
    until = time.monotonic() + wait_s
    while (descriptor := _taken(path)) is None:
        if time.monotonic() >= until:
            raise Locked(f"{folder} is being written by {_holder(path)}; wait for it, or choose another folder")
        time.sleep(_LOOKS_S)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is held: whoever opened it meanwhile sees that it is gone
        os.close(descriptor)


def _taken(path: Path) -> int | None:
    """The file, open and locked; None where another process holds it, or has just given it back."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        error.filename = str(path.parent)  # which the user knows
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            os.close(descriptor)
            return None  # else: this disk has no locks
    if not _is_at(descriptor, path):
        os.close(descriptor)
        return None
    with suppress(OSError):  # a full disk: then nobody learns who holds it
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still what the name stands for: another process removes it as it gives it back."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        with path.open("rb") as file:
            said = file.read(200).decode("ascii", "replace")
    except OSError:
        said = ""
    return said if said.isprintable() and said else "another process"
