"""Reads a trace's bytes in chunks, unzipped, from a local file or a remote store, as far as they go."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any, TypeVar

from traceops.core.errors import FileError, InputError
from traceops.core.regular_file import LARGEST_DOCUMENT, open_regular, read_regular
from traceops.traces.packed import CHUNK_BYTES, LONGEST_MAGIC, packing_of, unpacked
from traceops.traces.packed import Damaged as Damaged

# What reads a store of this kind: our extra, and what pip is asked for without it.
_NEEDED = {"s3": ("s3", ("fsspec", "s3fs")), "gs": ("gcs", ("fsspec", "gcsfs")), "gcs": ("gcs", ("fsspec", "gcsfs"))}
# Of what fsspec's stores are built on, as far as it is loaded.
_STORE_ERRORS = (
    ("asyncio", "TimeoutError"),  # Python's own TimeoutError from 3.11 on
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
)


def is_remote(path: str) -> bool:
    """Whether the path names a store (``s3://…``) rather than a local file."""
    return "://" in path


def filesystem(path: str) -> tuple[Any, str]:
    """The fsspec file system behind a remote path, and the path within it."""
    try:
        import fsspec
    except ImportError as error:
        extra, packages = _NEEDED.get(path.partition("://")[0].lower(), ("remote", ("fsspec", "aiohttp")))
        raise InputError(
            f"{path} is remote, which needs fsspec: pip install {' '.join(packages)} (traceops's extra [{extra}])"
        ) from error
    try:
        file_system, within = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise FileError(path, str(error), ": ") from error
    return file_system, within


def store_errors() -> tuple[type[Exception], ...]:
    """What reading from a file or a store may raise: stores have their own errors beside OSError."""
    own = (getattr(sys.modules.get(module), name, None) for module, name in _STORE_ERRORS)
    return (OSError, *(error for error in own if error is not None))


@contextlib.contextmanager
def open_binary(path: str, head_bytes: int | None = None) -> Iterator[IO[bytes]]:
    """Open a local or remote file for reading; a failure is an InputError that names it.

    `head_bytes`: no more than about as many are wanted; from a store, many more would be read ahead.
    """
    try:
        if is_remote(path):
            file_system, within = filesystem(path)
            options = {"block_size": head_bytes} if head_bytes else {}
            with file_system.open(within, "rb", **options) as remote:
                yield remote
        else:
            with open_regular(path) as local:
                yield local
    except store_errors() as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise FileError(path, said, ": ") from error


def read_whole(path: str, most: int = LARGEST_DOCUMENT) -> bytes:
    """The bytes of a local or remote file of at most `most` bytes. Raises InputError naming the file."""
    if not is_remote(path):
        try:
            return read_regular(path, most)
        except OSError as error:
            raise FileError(path, error.strerror or str(error), ": ") from error
    with open_binary(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise FileError(path, f"it has more than the {most:,} bytes that are read", ": ")
    return data


def chunks(file: IO[bytes], name: str = "") -> Iterator[bytes]:
    """Yield the file's bytes, unpacked where it starts like gzip, xz, bzip2 or zstd, whatever its name says.

    A zip archive of one file is unpacked where `name` ends so.

    Raises Damaged after the last readable byte where the packed stream is cut off or corrupt.
    """
    first = file.read(CHUNK_BYTES)
    while 0 < len(first) < LONGEST_MAGIC and (more := file.read(CHUNK_BYTES)):
        first += more
    packing = packing_of(first[:LONGEST_MAGIC], name)
    if packing is not None:
        yield from unpacked(file, packing, first)
        return
    while first:
        yield first
        first = file.read(CHUNK_BYTES)


# Runs an iterator a few items ahead in a thread, so that reading and unzipping overlap with what is made of them.


Item = TypeVar("Item")

_AHEAD = 8  # of 256 kB each
_AT_ONCE = 4  # places are given back so many at a time, or the threads would wake each other for each item
_PATIENCE_S = 1.0  # with a read that nobody wants any more


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order; an exception comes where it would have come.

    The thread ends with the items, or when the iteration is given up; only a read that does not return outlasts it.
    """
    waiting: queue.SimpleQueue[tuple[Item] | BaseException | None] = queue.SimpleQueue()
    places: queue.SimpleQueue[None] = queue.SimpleQueue()
    given_up = threading.Event()

    def give_back(count: int) -> None:
        for _ in range(count):
            places.put(None)

    def read() -> None:
        end: BaseException | None = None
        try:
            for item in items:
                waiting.put((item,))
                places.get()
                if given_up.is_set():
                    return
        except BaseException as error:  # it is raised again where it is waited for
            end = error
        waiting.put(end)

    give_back(_AHEAD)
    thread = threading.Thread(target=read, name="traceops read ahead", daemon=True)
    thread.start()
    taken = 0
    try:
        while (got := waiting.get()) is not None:
            if isinstance(got, BaseException):
                raise got
            yield got[0]
            taken += 1
            if taken == _AT_ONCE:
                give_back(taken)
                taken = 0
    finally:
        given_up.set()
        give_back(1)  # it may wait for a place
        thread.join(_PATIENCE_S)
