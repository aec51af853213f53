"""Writes files whole or not at all, one or a set of them."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ANYONE, OWNER = 0o666, 0o600  # permissions of a new file, less those that the umask takes
_PART = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.part")


def write_whole(path: Path, data: bytes, *, mode: int = ANYONE) -> None:
    """Write a file beside its place and move it there. Raises OSError where that cannot be done.

    A link at `path` is replaced and never written through. mode: of the file, less the umask.
    """
    with ExitStack() as scope, _named(path):
        part = _part(path, scope)
        _write_new(part, data, mode)
        part.replace(path)


def write_all_whole(folder: Path, contents: Mapping[str, bytes], gone: Collection[str] = ()) -> None:
    """Write files of a folder by name and remove those in `gone`: all of it is done, or the folder is as before.

    All content is on the disk before the first file is replaced. Raises OSError with the `filename` that the user
    knows. What a writer that was killed left behind of these files is removed: lock the folder before.
    """
    remove_parts(folder, {*contents, *gone})
    with ExitStack() as scope, ExitStack() as undo:  # undo comes first: it moves back what the scope removes
        parts = {name: _part(folder / name, scope) for name in contents}
        for name, part in parts.items():
            with _named(folder / name):
                _write_new(part, contents[name], ANYONE)
        for name in (*sorted(gone), *parts):
            with _named(folder / name):
                _put(parts.get(name), folder / name, undo, scope)
        undo.pop_all()  # and so nothing is undone


def remove_parts(folder: Path, names: Collection[str]) -> None:
    """Remove what writers of these files left in the folder when they were killed."""
    with os.scandir(folder) as entries:
        left = [entry.path for entry in entries if (of := _PART.fullmatch(entry.name)) and of["name"] in names]
    for path in left:
        _remove(Path(path))


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
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
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
