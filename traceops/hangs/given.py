"""What a diagnosis is asked of, as files to read: an archive unpacked, and its files named as they are called there."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from traceops.core.errors import InputError
from traceops.hangs.evidence import HangEvidence
from traceops.traces.archives import is_archive, stem_of, unpack

T = TypeVar("T")
_MOST_ARCHIVES = 64  # of a folder
_WITHOUT_PATHS = ("operations", "threads")  # fields of many objects that name no file of ours


class Given(Struct, frozen=True):
    """path: what to read. names: beginnings of paths and what messages call them; the first that fits counts.

    root, name: what messages call the whole, where it is an archive. problems: (file, what is wrong with it).
    """

    path: Path
    names: tuple[tuple[str, str], ...] = ()
    root: str | None = None
    name: str | None = None
    problems: tuple[tuple[str, str], ...] = ()

    def named(self, evidence: HangEvidence) -> HangEvidence:
        """The evidence with each file called as people know it."""
        if not self.names:
            return evidence
        told = with_texts(evidence, self.said)
        return replace(
            told, root=self.root or told.root, name=self.name or told.name, problems=(*self.problems, *told.problems)
        )

    def said(self, text: str) -> str:
        """A text with the files in it called as people know them."""
        for path, name in self.names:
            text = text.replace(path, name)
        return text

    def error(self, error: InputError) -> InputError:
        """The same error, of files as people know them."""
        listed = "".join(f"\n  {file}: {what}" for file, what in self.problems[:20])
        return InputError(f"{self.said(str(error))}{listed}") if self.names else error


@contextlib.contextmanager
def opened(path: Path, skipped: tuple[str, ...], called: str | None = None) -> Iterator[Given]:
    """The files behind a path: of an archive, unpacked while the block runs, and of `archive:file` that file.

    called: what messages call it, where that is not its path.
    """
    archive, within = _archive_in(path)
    if archive is None:
        names = () if called is None else ((f"--from {path}", "--from FILE"), (str(path), called))
        yield Given(path, names, called, called)
        return
    with _unpacked([archive], skipped, called) as given:
        if not within:
            yield given
            return
        inside = _inside(given, within, archive)
        if inside.is_file() and is_archive(str(inside)):  # in so many others that it was not unpacked with them
            with _unpacked([inside], skipped, str(path)) as given:
                yield given
            return
        yield replace(given, path=inside, root=None, name=None)


@contextlib.contextmanager
def opened_archives(folder: Path, skipped: tuple[str, ...]) -> Iterator[Given | None]:
    """The archives that lie in a folder, unpacked while the block runs; None where it has none, or is none."""
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    archives = [one for one in inside if one.is_file() and is_archive(str(one))]
    if not archives:
        yield None
        return
    with _unpacked(archives[:_MOST_ARCHIVES], skipped) as given:
        name = folder.resolve().name
        yield replace(given, root=str(folder), name=name, names=(*given.names, (str(given.path), str(folder))))


@contextlib.contextmanager
def _unpacked(archives: Sequence[Path], skipped: tuple[str, ...], called: str | None = None) -> Iterator[Given]:
    with tempfile.TemporaryDirectory(prefix="traceops-") as folder:
        names: list[tuple[str, str]] = []
        problems: list[tuple[str, str]] = []
        for number, archive in enumerate(archives):
            own = Path(folder, f"{number}", stem_of(str(archive)))
            own.mkdir(parents=True)
            done = unpack(str(archive), own, skipped)
            names += [(f"{own}{os.sep}", f"{called or archive}:"), (str(own), called or str(archive))]
            problems += [(f"{called or archive}:{member}".rstrip(":"), what) for member, what in done.problems]
        root = _root(own) if len(archives) == 1 else Path(folder)
        whole = called or str(archives[0])
        first = [(f"--from {root}", "--from FOLDER, once it is unpacked"), (f"{root} holds ", f"{whole} holds ")]
        yield Given(root, (*first, *names), whole, called or stem_of(whole), tuple(problems))


def _root(folder: Path) -> Path:
    """The folder in which the files begin: most archives hold one folder that holds all."""
    while len(inside := list(folder.iterdir())) == 1 and inside[0].is_dir():
        folder = inside[0]
    return folder


def _archive_in(path: Path) -> tuple[Path | None, str]:
    """The archive that a path names, and which of its files, '' for all; None where it names none."""
    if path.is_file():
        return (path, "") if is_archive(str(path)) else (None, "")
    text = str(path)
    for at in (at for at, char in enumerate(text) if char == ":"):
        if Path(text[:at]).is_file() and is_archive(text[:at]):
            return Path(text[:at]), text[at + 1 :]
    return None, ""


def _inside(given: Given, within: str, archive: Path) -> Path:
    unpacked = Path(next(own for own, name in given.names if name.endswith(":")))
    found = Path(os.path.normpath(unpacked / within))
    if not found.is_relative_to(unpacked) or not found.exists():
        raise InputError(f"{archive}:{within} does not exist: {archive.name} holds no such file")
    return found


def with_texts(value: T, change: Callable[[str], str]) -> T:
    """The same with every text in it changed; itself where nothing is."""
    return cast(T, _changed(value, change))


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, (str, Path)):
        made = change(str(value))
        return value if made == str(value) else type(value)(made)
    if isinstance(value, msgspec.Struct):
        fields = _fields(value, value.__struct_fields__, change)
        return msgspec.structs.replace(value, **fields) if fields else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = _fields(value, tuple(field.name for field in dataclasses.fields(value)), change)
        return dataclasses.replace(value, **fields) if fields else value
    if isinstance(value, Mapping):
        return {_changed(key, change): _changed(item, change) for key, item in value.items()}
    if type(value) in (tuple, list, set, frozenset):
        return type(value)(_changed(item, change) for item in value)
    return value


def _fields(value: Any, names: Sequence[str], change: Callable[[str], str]) -> dict[str, Any]:
    made = {name: (old := getattr(value, name), _changed(old, change)) for name in names if name not in _WITHOUT_PATHS}
    return {name: new for name, (old, new) in made.items() if new is not old and new != old}
