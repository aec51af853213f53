"""The files of a zip or tar archive, unpacked into a folder: so many and no more, and none outside it."""

from __future__ import annotations

import contextlib
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from msgspec import Struct, field

from traceops.core.errors import InputError
from traceops.traces import source

MOST_BYTES = 4 << 30
MOST_FILES = 20_000
_DEEPEST = 2  # archives within archives
_LONGEST_HEADER = 1 << 20  # bytes of a tar's long names and other words on a member
_HEAD = 512
# Python's readers let some of what a bad byte does to a name, a number or a length through as it came.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, EOFError, tarfile.TarError, source.Damaged,
    ValueError, IndexError, struct.error,
)  # fmt: skip
_OF_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


class Unpacked(Struct):
    """What came of it: problems are (member, what is wrong with it), '' for the archive itself."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    bytes_left: int = MOST_BYTES
    files_left: int = MOST_FILES


def is_archive(path: str) -> bool:
    """Whether a local file is a tar archive, packed or not, or a zip archive of several files. A file that cannot be
    read is none."""
    try:
        with source.open_binary(path) as file:
            head = file.read(_HEAD)
            if source.packing_of(head[: source.LONGEST_MAGIC], path) == "zip":
                return len(_members_of_zip(file)) > 1
            file.seek(0)
            return source.is_tar(_first(source.chunks(file, path)))
    except (InputError, source.Damaged):
        return False


def unpack(path: str, folder: Path, skipped: tuple[str, ...], most: Unpacked | None = None) -> Unpacked:
    """Unpack an archive, and those in it, into an empty folder; names with an end of `skipped` are left out. Of a
    damaged archive or member what is readable is kept. Raises InputError where the archive cannot be opened."""
    done = most or Unpacked()
    _unpack(path, folder, skipped, done, _DEEPEST)
    return done


def _unpack(path: str, folder: Path, skipped: tuple[str, ...], done: Unpacked, deepest: int) -> None:
    inner: dict[Path, str] = {}
    with source.open_binary(path) as file:
        head = file.read(source.LONGEST_MAGIC)
        file.seek(0)
        members = _of_zip(file) if source.packing_of(head, path) == "zip" else _of_tar(file, path)
        for name, member in _checked(members, done):
            if name.lower().endswith(skipped) and not name.lower().endswith((".tar.gz", ".tgz")):
                continue
            target = folder.joinpath(*_parts(name))
            if _written(name, member, target, done) and deepest > 1 and is_archive(str(target)):
                inner[target] = name
    for target, name in inner.items():
        own = Unpacked(bytes_left=done.bytes_left, files_left=done.files_left)
        packed = target.rename(_free(target))
        with contextlib.suppress(InputError):
            _unpack(str(packed), target, skipped, own, deepest - 1)
        packed.unlink()
        done.bytes_left, done.files_left = own.bytes_left, own.files_left
        done.problems += [(f"{name}/{of}".rstrip("/"), what) for of, what in own.problems]


def _free(path: Path) -> Path:
    """A path beside it that nothing has."""
    while path.exists():
        path = path.with_name(f".{path.name}")
    return path


def _parts(name: str) -> list[str]:
    """The folders and the name of a member; empty where they lead out of the archive."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    return [] if ".." in parts or any("\0" in part for part in parts) else parts


def _checked(members: Iterator[tuple[str, IO[bytes] | str]], done: Unpacked) -> Iterator[tuple[str, IO[bytes]]]:
    """Members that may be written; what is wrong with the others is told."""
    try:
        for name, member in members:
            if done.files_left <= 0 or done.bytes_left <= 0:
                most = f"{MOST_FILES:,} files" if done.files_left <= 0 else f"{MOST_BYTES >> 30} GiB"
                done.problems.append((name, f"it and what follows it are left out: no more than {most} are unpacked"))
                return
            if not _parts(name):
                done.problems.append((name, "its name leads out of the archive: it is left out"))
            elif isinstance(member, str):
                done.problems.append((name, member))
            else:
                done.files_left -= 1
                yield name, member
    except _DAMAGE as error:
        done.problems.append(("", f"the archive is cut off or corrupt ({error}): what comes before that is used"))


def _written(name: str, member: IO[bytes], target: Path, done: Unpacked) -> bool:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_file():
            done.problems.append((name, "it is there more than once: only the last one is used"))
        with target.open("wb") as file:
            while data := member.read(source.CHUNK_BYTES):
                file.write(data[: max(done.bytes_left, 0)])
                done.bytes_left -= len(data)
                if done.bytes_left <= 0:
                    what = f"its end is left out: no more than {MOST_BYTES >> 30} GiB are unpacked"
                    done.problems.append((name, what))
                    break
    except RuntimeError as error:  # it needs a password
        done.problems.append((name, f"it cannot be read ({error})"))
        return False
    except _DAMAGE as error:
        done.problems.append((name, f"it is cut off or corrupt ({error}): what comes before that is used"))
    except OSError as error:  # a name that is too long, or that of a folder
        done.problems.append((name, f"it cannot be unpacked ({error.strerror or error})"))
        return False
    return True


def _members_of_zip(file: IO[bytes]) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(file) as archive:
            return [
                one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith(source.OF_FINDER)
            ]
    except (*_DAMAGE, OSError, RuntimeError):
        return []


def _of_zip(file: IO[bytes]) -> Iterator[tuple[str, IO[bytes] | str]]:
    with zipfile.ZipFile(file) as archive:
        for one in _members_of_zip(file):
            try:
                with archive.open(one) as member:
                    yield one.filename, member
            except RuntimeError as error:
                yield one.filename, f"it cannot be read ({error})"
            except _DAMAGE as error:
                yield one.filename, f"it is corrupt ({error})"


class _TarInfo(tarfile.TarInfo):
    """A header whose long name or other words take no more memory than a name may."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _TarInfo:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _OF_HEADERS and not 0 <= info.size <= _LONGEST_HEADER:
            raise tarfile.HeaderError("a header of it is too long")
        return info


class _Chunks(io.RawIOBase):
    """Chunks as a file, for tarfile; damage ends it, and is kept."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = b""
        self.damage: source.Damaged | None = None

    def read(self, size: int = -1) -> bytes:
        while len(self._left) < size:
            try:
                self._left += next(self._pieces)
            except StopIteration:
                break
            except source.Damaged as error:
                self.damage = error
                break
        found, self._left = self._left[:size], self._left[size:]
        return found


def _of_tar(file: IO[bytes], path: str) -> Iterator[tuple[str, IO[bytes] | str]]:
    reader = _Chunks(source.chunks(file, path))
    with tarfile.open(fileobj=reader, mode="r|", tarinfo=_TarInfo, errorlevel=1) as archive:
        for one in archive:
            member = archive.extractfile(one) if one.isreg() else None
            if member is not None and not one.name.startswith(source.OF_FINDER):
                yield one.name, member
    if reader.damage is not None:
        raise reader.damage


def _first(pieces: Iterator[bytes]) -> bytes:
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= _HEAD:
            break
    return head


def stem_of(path: str) -> str:
    """The name of an archive without its ends."""
    name = Path(path).name
    for end in (".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst", ".tgz", ".txz", ".tar", ".zip"):
        if name.lower().endswith(end):
            return name[: -len(end)] or name
    return name
