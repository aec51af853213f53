"""Writes files whole or not at all, one or a set of them, and reads none that is a pipe or a device."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import pwd
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from traceops.core.errors import InputError, UsageError

FORMATS = ("html", "csv", "json")  # that analyze, diagnose and doctor write; the first is the page
ANYONE, OWNER = 0o666, 0o600  # permissions of a new file, less those that the umask takes
_PART = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.part")


def write_whole(path: Path, data: bytes, *, mode: int = ANYONE) -> None:
    """Write a file beside its place and move it there. Raises OSError where that cannot be done. A link at `path` is
    replaced and never written through. mode: of the file, less the umask."""
    with ExitStack() as scope, _named(path):
        part = _part(path, scope)
        _write_new(part, data, mode)
        part.replace(path)


def write_all_whole(folder: Path, contents: Mapping[str, bytes], gone: Collection[str] = ()) -> None:
    """Write files of a folder by name and remove those in `gone`: all of it is done, or the folder is as before. All
    content is on the disk before the first file is replaced. Raises OSError with the `filename` that the user knows.
    What a writer that was killed left behind of these files is removed: lock the folder before."""
    # Remove what writers of these files left in the folder when they were killed
    names = {*contents, *gone}
    with os.scandir(folder) as entries:
        left = [entry.path for entry in entries if (of := _PART.fullmatch(entry.name)) and of["name"] in names]
    for path in left:
        _remove(Path(path))
    with ExitStack() as scope, ExitStack() as undo:  # undo comes first: it moves back what the scope removes
        parts = {name: _part(folder / name, scope) for name in contents}
        for name, part in parts.items():
            with _named(folder / name):
                _write_new(part, contents[name], ANYONE)
        for name in (*sorted(gone), *parts):
            with _named(folder / name):
                _put(parts.get(name), folder / name, undo, scope)
        undo.pop_all()  # and so nothing is undone


def _put(part: Path | None, path: Path, undo: ExitStack, scope: ExitStack) -> None:
    """Replace a file by its new part, or remove it where there is none; `undo` brings the old one back."""
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if os.path.lexists(path):
        old = _part(path, scope)
        if part is None or not _linked(path, old):
            path.replace(old)
        undo.callback(old.replace, path)
    else:
        undo.callback(_remove, path)
    if part is not None:
        part.replace(path)


def _linked(path: Path, old: Path) -> bool:
    """Give a file a second name, so that it is there until its successor is; False where the disk cannot."""
    try:
        os.link(path, old, follow_symlinks=False)
    except OSError:
        return False
    return True


def _part(path: Path, scope: ExitStack) -> Path:
    """A name beside `path` that nothing has; what then lies there is removed at the end."""
    part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")
    scope.callback(_remove, part)
    return part


def _write_new(part: Path, data: bytes, mode: int) -> None:
    """Make a file that was not there, and no link, and write it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, mode), "wb") as file:
        file.write(data)


def _remove(path: Path) -> None:
    with suppress(OSError):  # of a disk that is gone: the first error says more
        path.unlink()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """An OSError in here is of this file, which the user knows, and not of a part of it."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


# Files of the cache: written for their owner, and believed only where nobody else could have written them.

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
    """A file below `folder` for reading, if it and the folders above it, `folder` included, can be believed. Each
    belongs to this user, to root or to a user in $TRACEOPS_CACHE_TRUST, and no other can write it; a folder that others
    write to is sticky. Raises Unbelieved, or FileNotFoundError and what else opening raises."""
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
    """Make `path` and what is above it, `folder` included, for this user alone; sticky where the cache is shared. A
    folder of ours that an earlier version made writable for others is closed. Raises OSError."""
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
    ids = set()
    for name in filter(None, map(str.strip, text.split(","))):
        try:
            ids.add(int(name) if name.isascii() and name.isdigit() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise UsageError(f"{TRUST}: this machine knows no user {name!r}; give user names or ids") from None
    return frozenset(ids)


# The cache folder, which the user can move, empty or turn off.

FOLDER = "TRACEOPS_CACHE"
OFF = "off"


def cache_folder(kind: str) -> Path | None:
    """The folder for one kind of things, None for nowhere; it need not exist, and may not be writable. $TRACEOPS_CACHE
    ('off' for nowhere), else $XDG_CACHE_HOME/traceops, else ~/.cache/traceops."""
    if (chosen := os.environ.get(FOLDER)) == OFF:
        return None
    if chosen:
        return Path(chosen).absolute() / kind
    above = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        above = above.expanduser()
    except RuntimeError:  # nobody knows where home is
        return None
    return above / "traceops" / kind if above.is_absolute() else None


# One writer at a time in a folder, of all processes that lock it; a process that dies gives it back.

LOCK = ".traceops.lock"
_LOOKS_S = 0.05  # between two looks at a lock that another process holds
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


class Locked(InputError):
    """Another process writes to the folder."""


@contextmanager
def locked_folder(folder: Path, *, wait_s: float = 10.0) -> Iterator[None]:
    """Hold the folder, which must be there, in this process alone. Waits at most `wait_s` for another process, then
    raises Locked, which names the folder and that process. Where the disk knows no locks, nothing is locked. Raises
    OSError where the folder cannot be written to."""
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
        os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}".encode())
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
