"""Reads a trace's bytes in chunks, unpacked, from a local file or a remote store, as far as they go."""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import PurePath
from typing import IO, Any, Literal, Protocol, TypeVar, cast

from isal import igzip_lib

from traceops.core.errors import FileError, InputError
from traceops.core.files import LARGEST_DOCUMENT, open_regular, read_regular

Packing = Literal["gzip", "xz", "bzip2", "zstd", "zip"]

CHUNK_BYTES = 1 << 18
_FIRST_BYTES = 1 << 15  # unpacked at first: who only looks what a file is needs no more
LONGEST_MAGIC = 10
GIT_LFS = b"version https://git-lfs.github.com/spec/"  # what a checkout has in the place of a large file
_GZIP_MAGIC = b"\x1f\x8b"
_XZ_MEMORY = 1 << 28  # bytes that a dictionary may take
_ZSTD_WINDOW = 1 << 27
MOST_TIMES = 200  # logs and traces pack to a tenth or a thirtieth
AT_LEAST = 1 << 23
OF_FINDER = ("__MACOSX/", ".DS_Store")

# What another tool or another command reads, by its first bytes and its name.

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


class Damaged(Exception):
    """The bytes end early or are corrupt; whatever was readable has been yielded before."""


class CannotUnpackError(Damaged):
    """The packing is known, but not read here."""


class _Unpacking(Protocol):
    """What the decompressors of isal, bz2 and lzma have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


def is_tar(head: bytes) -> bool:
    """Whether bytes, unpacked, begin a tar archive."""
    return head[257:262] == b"ustar"


def packing_of(head: bytes, name: str) -> Packing | None:
    """How a file that begins so is packed. Only a name tells an archive from a checkpoint of torch, which is one."""
    if head.startswith(_GZIP_MAGIC):
        return "gzip"
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz"
    if head.startswith(b"BZh") and head[4:10] == b"1AY&SY":
        return "bzip2"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "zstd"
    if head.startswith(b"PK\x03\x04") and name.lower().endswith(".zip"):
        return "zip"
    return None


def unpacked(file: IO[bytes], packing: Packing, first: bytes) -> Iterator[bytes]:
    """Yield the file's bytes unpacked; `first` has been read of it. A few kB can hold gigabytes, so no more is read
    than `MOST_TIMES` the packed size, and `AT_LEAST` of small files. Raises Damaged after the last byte that is read
    where the stream is cut off or corrupt, or holds more."""
    try:
        size = os.fstat(file.fileno()).st_size
    except OSError:  # of a store
        size = getattr(file, "size", None) or 0
    most = AT_LEAST + MOST_TIMES * size
    for block in _all_unpacked(file, packing, first):
        if len(block) > most:
            yield block[:most]
            raise Damaged(f"only {MOST_TIMES} times its packed size are unpacked, and it holds more: unpack it first")
        most -= len(block)
        yield block


def _all_unpacked(file: IO[bytes], packing: Packing, first: bytes) -> Iterator[bytes]:
    if packing == "gzip":
        corrupt = cast("type[Exception]", igzip_lib.error)  # its stub calls it an object
        gunzip = _of(lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), "gzip", corrupt)
        yield from _streams(file, first, packing, _GZIP_MAGIC, gunzip)
    elif packing == "xz":
        lzma = _module("lzma", "xz")
        unxz = _of(lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY), "xz", lzma.LZMAError)
        yield from _streams(file, first, packing, b"\xfd7zXZ\0", unxz)
    elif packing == "bzip2":
        yield from _streams(file, first, packing, b"BZh", _of(_module("bz2", "bzip2").BZ2Decompressor, "bzip2"))
    elif packing == "zstd":
        file.seek(0)
        reader, corrupt = _zstd_reader(file)
        errors: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, corrupt)
        try:
            while data := reader.read(CHUNK_BYTES):
                yield data
        except errors as error:
            raise Damaged(f"the zstd stream is cut off or corrupt ({error})") from error
    else:
        yield from _of_archive(file)


_Unpack = Callable[[IO[bytes], bytes], Generator[bytes, None, bytes]]


def _streams(file: IO[bytes], following: bytes, packing: str, magic: bytes, unpack: _Unpack) -> Iterator[bytes]:
    """Packed files may be concatenated, and padded with zeros."""
    while following:
        if not following.startswith(magic):
            raise Damaged(f"other bytes follow the end of the {packing} stream")
        following = (yield from unpack(file, following)).lstrip(b"\0")
        while len(following) < len(magic) and (more := file.read(CHUNK_BYTES)):
            following = (following + more).lstrip(b"\0")


def _module(name: str, packing: str) -> Any:
    """A module of the standard library that few files need, and that some builds of Python lack."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CannotUnpackError(
            f"is packed with {packing}, which this Python was built without: unpack it with {packing} -d"
        ) from error


def _of(new: Callable[[], _Unpacking], packing: str, *errors: type[Exception]) -> _Unpack:
    corrupt: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, *errors)

    def unpack(file: IO[bytes], pending: bytes) -> Generator[bytes, None, bytes]:
        stream, most = new(), _FIRST_BYTES
        while not stream.eof:
            if stream.needs_input and not pending and not (pending := file.read(CHUNK_BYTES)):
                raise Damaged(f"the {packing} stream is cut off")
            try:
                # In bounded pieces: a few kB can hold gigabytes, and what a corrupt piece held is lost.
                data = stream.decompress(pending, most)
            except corrupt as error:
                raise Damaged(f"the {packing} stream is corrupt ({error})") from error
            pending, most = b"", CHUNK_BYTES
            if data:
                yield data
        return stream.unused_data

    return unpack


def _zstd_reader(file: IO[bytes]) -> tuple[Any, type[Exception]]:
    """What reads the file unpacked, and its error."""
    with contextlib.suppress(ImportError):  # Python 3.14
        module = importlib.import_module("compression.zstd")
        return module.ZstdFile(file), module.ZstdError
    with contextlib.suppress(ImportError):
        module = importlib.import_module("zstandard")
        opener = module.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        return opener.stream_reader(file, read_across_frames=True), module.ZstdError
    raise CannotUnpackError("is packed with zstd: unpack it with zstd -d, or pip install zstandard")


def _of_archive(file: IO[bytes]) -> Iterator[bytes]:
    """The only file of a zip archive."""
    zipfile = _module("zipfile", "zip")
    damage: tuple[type[Exception], ...] = (
        zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError, struct.error,
        ValueError,  # of a name, a date or a length that a bad byte made
    )  # fmt: skip
    try:
        with zipfile.ZipFile(file) as archive:
            members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith(OF_FINDER)]
            if len(members) != 1:
                raise CannotUnpackError(f"is a zip archive of {len(members):,} files: unpack it and give the folder")
            with archive.open(members[0]) as member:
                while data := member.read(CHUNK_BYTES):
                    yield data
    except RuntimeError as error:  # it needs a password
        raise CannotUnpackError(f"is a zip archive that cannot be read ({error})") from error
    except damage as error:
        raise Damaged(f"the zip archive is cut off or corrupt ({error})") from error


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
    """Open a local or remote file for reading; a failure is an InputError that names it. `head_bytes`: no more than
    about as many are wanted; from a store, many more would be read ahead."""
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
    """Yield the file's bytes, unpacked where it starts like gzip, xz, bzip2 or zstd, whatever its name says. A zip
    archive of one file is unpacked where `name` ends so. Raises Damaged after the last readable byte where the packed
    stream is cut off or corrupt."""
    first = file.read(CHUNK_BYTES)
    while 0 < len(first) < LONGEST_MAGIC and (more := file.read(CHUNK_BYTES)):
        first += more
    if (packing := packing_of(first[:LONGEST_MAGIC], name)) is not None:
        yield from unpacked(file, packing, first)
        return
    while first:
        yield first
        first = file.read(CHUNK_BYTES)


Item = TypeVar("Item")

_AHEAD = 8  # of 256 kB each
_AT_ONCE = 4  # places are given back so many at a time, or the threads would wake each other for each item
_PATIENCE_S = 1.0  # with a read that nobody wants any more


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order; an exception comes where it would have come. The thread ends with the items, or
    when the iteration is given up; only a read that does not return outlasts it."""
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
