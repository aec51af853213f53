"""Storage of baselines: a folder or an fsspec store, with the same few operations."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse
from urllib.request import url2pathname

from msgspec import Struct

from traceops.core.errors import FileError, InputError
from traceops.core.files import read_regular
from traceops.traces.source import filesystem, is_remote

_AT_ONCE = 64  # objects of a remote store asked for together
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oci", "oss"})  # no folders to make
PARTIAL = ".partial"  # ends the name of a file that is being written

# What stores raise beside OSError, by the module that is loaded if it can be raised at all.
_STORE_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("gcsfs.retry", "HttpError"),
    ("aiohttp", "ClientError"),
)


class Item(Struct, frozen=True):
    """A name in a folder. modified_ns: Unix ns, None where the place does not say."""

    name: str
    folder: bool
    modified_ns: int | None = None


class Place(Protocol):
    """A folder of folders of objects; names are relative to it, with '/'. All raise InputError."""

    @property
    def url(self) -> str: ...

    def items(self, folder: str = "") -> list[Item]:
        """What lies in a folder, by name; nothing where there is no such folder."""

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes | InputError]]:
        """The content of each, or what keeps it from being read; what is gone is left out."""

    def put(self, name: str, data: bytes) -> None:
        """Store under a new name: whole or not at all."""

    def remove(self, name: str) -> bool:
        """Remove an object; False where it was gone already."""


def open_place(url: str) -> Place:
    """The place behind a path or URL; a local one, and file://, needs no fsspec. Raises InputError where fsspec, or
    what it needs for this kind of store, is missing."""
    if url.startswith("file://"):
        url = url2pathname(urlparse(url).path)
    if is_remote(url):
        file_system, root = filesystem(url)
        return RemotePlace(url.rstrip("/"), file_system, root.rstrip("/"))
    return LocalPlace(Path(url).expanduser())


class LocalPlace(Struct, frozen=True):
    """A folder of this machine. No folder is ever removed, so no other process loses the one it writes into."""

    root: Path

    @property
    def url(self) -> str:
        return str(self.root)

    def items(self, folder: str = "") -> list[Item]:
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(map(_item, entries), key=lambda item: item.name)
        except (FileNotFoundError, NotADirectoryError):
            if not folder and self.root.exists():
                raise InputError(
                    f"{self.root} is not a folder; give the folder of the baselines with --store"
                ) from None
            return []
        except OSError as error:
            raise InputError(
                f"{self.root / folder} cannot be listed ({error.strerror}); choose another --store"
            ) from error

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes | InputError]]:
        for name in names:
            try:
                yield name, read_regular(self.root / name)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield name, FileError(self.root / name, error.strerror or str(error), ": ")

    def put(self, name: str, data: bytes) -> None:
        path = self.root / name
        partial = path.with_name(f".{path.name}{PARTIAL}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with partial.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise InputError(
                f"{path} cannot be written ({error.strerror or error}); choose another place with --store"
            ) from error

    def remove(self, name: str) -> bool:
        try:
            (self.root / name).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise InputError(f"{self.root / name} cannot be removed ({error.strerror or error})") from error
        return True


class RemotePlace(Struct, frozen=True):
    """An fsspec store. Objects are put in one piece, which object stores do whole or not at all."""

    url: str
    file_system: Any
    root: str

    def items(self, folder: str = "") -> list[Item]:
        path = self._path(folder)
        try:
            self.file_system.invalidate_cache(path)  # other jobs write here too
            listed = self.file_system.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except _errors() as error:
            raise InputError(f"{self.url}/{folder} cannot be listed: {error}") from error
        found = {
            str(entry["name"]).rstrip("/").rpartition("/")[2]: entry.get("type") == "directory"
            for entry in listed
            if str(entry["name"]).strip("/") != path.strip("/")  # some stores list the folder in itself
        }
        return [Item(name, is_folder) for name, is_folder in sorted(found.items())]

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes | InputError]]:
        for start in range(0, len(names), _AT_ONCE):
            paths = {self._path(name): name for name in names[start : start + _AT_ONCE]}
            try:
                contents = self.file_system.cat(list(paths), on_error="return")
            except _errors() as error:
                contents = dict.fromkeys(paths, error)
            if isinstance(contents, bytes):
                contents = dict.fromkeys(paths, contents)
            for path, name in paths.items():
                content = contents.get(path, FileNotFoundError())
                if isinstance(content, bytes):
                    yield name, content
                elif not isinstance(content, FileNotFoundError):
                    yield name, FileError(f"{self.url}/{name}", str(content) or type(content).__name__, ": ")

    def put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        try:
            try:
                self.file_system.pipe_file(path, data)
            except FileNotFoundError:
                if self.url.partition("://")[0] in _OBJECT_STORES:
                    raise
                self.file_system.makedirs(path.rpartition("/")[0], exist_ok=True)
                self.file_system.pipe_file(path, data)
        except _errors() as error:
            raise InputError(
                f"{self.url}/{name} cannot be written ({error}); choose another place with --store"
            ) from error

    def remove(self, name: str) -> bool:
        try:
            self.file_system.rm_file(self._path(name))
        except FileNotFoundError:
            return False
        except _errors() as error:
            raise InputError(f"{self.url}/{name} cannot be removed: {error}") from error
        return True

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}".rstrip("/") if name else self.root


def _item(entry: os.DirEntry[str]) -> Item:
    try:
        return Item(entry.name, entry.is_dir(), entry.stat().st_mtime_ns)
    except OSError:  # removed meanwhile, or a link to nothing
        return Item(entry.name, False)


def _errors() -> tuple[type[BaseException], ...]:
    """What an operation of a store may raise; a library that is not loaded raises nothing."""
    known: list[type[BaseException]] = [OSError]
    for module, name in _STORE_ERRORS:
        error = getattr(sys.modules.get(module), name, None)
        if isinstance(error, type) and issubclass(error, BaseException):
            known.append(error)
    return tuple(known)
