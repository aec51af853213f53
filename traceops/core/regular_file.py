"""Opens regular files only: a pipe, a device or a socket in a file's place would be waited for without end."""

from __future__ import annotations

import errno
import os
import stat
from typing import IO

LARGEST_DOCUMENT = 1 << 28  # bytes of a file that is read whole; Python objects of it take ten times as much


class NotRegularError(OSError):
    """What lies there is no regular file."""


class TooLargeError(OSError):
    """The file has more bytes than are read at once."""


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a regular file for reading, and wait for no pipe. Raises OSError with an `strerror` that says what it is."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise NotRegularError(errno.EINVAL, f"it is {_kind(mode)}, not a regular file", str(path))
        os.set_blocking(file, True)  # some file systems would give a part, or nothing, now
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_regular(path: str | os.PathLike[str], most: int = LARGEST_DOCUMENT) -> bytes:
    """The bytes of a regular file. Raises OSError as `open_regular`, and TooLargeError beyond `most` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""
    if size > most or len(data) > most:
        what = f"it has {max(size, len(data)):,} bytes, more than the {most:,} that are read"
        raise TooLargeError(errno.EFBIG, what, str(path))
    return data


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))
    return next((name for is_kind, name in kinds if is_kind(mode)), "something else")
