"""Files of the cache: written for their owner, and believed only where nobody else could have written them."""

from __future__ import annotations

import errno
import functools
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from traceops.core.errors import UsageError
from traceops.core.whole_file import ANYONE, OWNER, write_whole

TRUST = "TRACEOPS_CACHE_TRUST"
_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OWN_FOLDER, _SHARED_FOLDER = 0o700, 0o1777  # sticky: who shares a folder removes nobody else's files


class Unbelieved(OSError):
    """The file is there, and somebody else owns it or can write it, or it is no file."""


def shared_with() -> frozenset[int]:
    """User ids of $TRACEOPS_CACHE_TRUST, names or numbers with commas. Raises UsageError for an unknown user."""
    return _user_ids(os.environ.get(TRUST, ""))


@contextmanager
def open_own(path: Path, folder: Path) -> Iterator[IO[bytes]]:
    """A file below `folder` for reading, if it and the folders above it, `folder` included, can be believed.

    Each belongs to this user, to root or to a user in $TRACEOPS_CACHE_TRUST, and no other can write it; a folder that
    others write to is sticky. Raises Unbelieved, or FileNotFoundError and what else opening raises.
    """
    believed = {os.geteuid(), _ROOT, *shared_with()}
    for above in _from(folder, path.parent):
        status = above.stat(follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or not _is_believed(status, believed):
            raise Unbelieved(errno.EACCES, "others can write to this folder", str(above))
    # No link, and no waiting for the writer of a FIFO.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _is_believed(status, believed):
            raise Unbelieved(errno.EACCES, "others can write this file", str(path))
        yield file


def make_own_folder(path: Path, folder: Path) -> None:
    """Make `path` and what is above it, `folder` included, for this user alone; sticky where the cache is shared.

    A folder of ours that an earlier version made writable for others is closed. Raises OSError.
    """
    shared = bool(shared_with())
    folder.parent.mkdir(parents=True, exist_ok=True)
    for each in _from(folder, path):
        try:
            each.mkdir(mode=_OWN_FOLDER)
            made = True
        except FileExistsError:
            made = False
        status = each.stat(follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            continue
        if shared and made:
            each.chmod(_SHARED_FOLDER)
        elif not shared and not _is_believed(status, {status.st_uid}):
            each.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)


def write_own(path: Path, data: bytes) -> None:
    """Write a file of the cache whole: only its owner reads it, and in a shared cache everybody. Raises OSError."""
    write_whole(path, data, mode=ANYONE & ~_OTHERS_WRITE if shared_with() else OWNER)


def touch_own(file: IO[bytes]) -> None:
    """Say that it was used just now, where that is possible."""
    with suppress(OSError):
        os.utime(file.fileno())


def _from(folder: Path, path: Path) -> list[Path]:
    """`folder`, and what lies between it and `path`, which is below it or the same."""
    between = path.relative_to(folder).parts
    return [folder.joinpath(*between[:count]) for count in range(len(between) + 1)]


def _is_believed(status: os.stat_result, believed: set[int]) -> bool:
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return status.st_uid in believed and (not status.st_mode & _OTHERS_WRITE or bool(sticky))


@functools.cache
def _user_ids(text: str) -> frozenset[int]:
    return frozenset(_user_id(name.strip()) for name in text.split(",") if name.strip())


def _user_id(name: str) -> int:
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UsageError(f"{TRUST}: this machine knows no user {name!r}; give user names or ids") from None
