"""What was given: archives that are opened, and the files of a run and of its ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
import multiprocessing
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.errors import FileError, InputError, problem_of
from traceops.core.files import read_regular
from traceops.hangs.evidence import (
    HangEvidence,
    LogEvent,
    LoggedProgress,
    RankProcess,
    RankRecord,
    RankStacks,
    RecordedGroup,
    Shards,
    Stall,
    Trained,
)
from traceops.hangs.readers.flight_recorder import read_dump
from traceops.traces.archives import is_archive, stem_of, unpack
from traceops.traces.run_manifest import read_run_manifest

T = TypeVar("T")
_MOST_ARCHIVES = 64  # of a folder
_WITHOUT_PATHS = ("operations", "threads")  # fields of many objects that name no file of ours


class Given(Struct, frozen=True):
    """path: what to read. names: beginnings of paths and what messages call them; the first that fits counts. root,
    name: what messages call the whole, where it is an archive. problems: (file, what is wrong with it)."""

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
    """The files behind a path: of an archive, unpacked while the block runs, and of `archive:file` that file. called:
    what messages call it, where that is not its path."""
    archive, within = _archive_in(path)
    if archive is None:
        names = () if called is None else ((f"--from {path}", "--from FILE"), (str(path), called))
        yield Given(path, names, called, called)
        return
    with _unpacked([archive], skipped, called) as given:
        if not within:
            yield given
            return
        unpacked = Path(next(own for own, name in given.names if name.endswith(":")))
        inside = Path(os.path.normpath(unpacked / within))
        if not inside.is_relative_to(unpacked) or not inside.exists():
            raise InputError(f"{archive}:{within} does not exist: {archive.name} holds no such file")
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
        root = Path(folder)  # most archives hold one folder that holds all
        while len(inside := list(root.iterdir())) == 1 and inside[0].is_dir():
            root = inside[0]
        whole = called or str(archives[0])
        first = [(f"--from {root}", reason("hangs", "unpacked")), (f"{root} holds ", f"{whole} holds ")]
        yield Given(root, (*first, *names), whole, called or stem_of(whole), tuple(problems))


def _archive_in(path: Path) -> tuple[Path | None, str]:
    """The archive that a path names, and which of its files, '' for all; None where it names none."""
    if path.is_file():
        return (path, "") if is_archive(str(path)) else (None, "")
    text = str(path)
    for at in (at for at, char in enumerate(text) if char == ":"):
        if Path(text[:at]).is_file() and is_archive(text[:at]):
            return Path(text[:at]), text[at + 1 :]
    return None, ""


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


class Found(Struct):
    """What has been read so far."""

    dump_files: list[tuple[Path, int]] = field(default_factory=list)
    dumps: list[RankRecord] = field(default_factory=list)
    records: dict[int, RankRecord] = field(default_factory=dict)  # of the job
    groups: dict[int, dict[str, RecordedGroup]] = field(default_factory=dict)
    stacks: dict[int, list[RankStacks]] = field(default_factory=dict)
    processes: dict[int, RankProcess] = field(default_factory=dict)
    log: list[LogEvent] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    worlds: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    one_node: bool = False
    progress: list[LoggedProgress] = field(default_factory=list)
    models: dict[int, tuple[Shards | Trained, ...]] = field(default_factory=dict)
    earlier: list[tuple[LogEvent, ...]] = field(default_factory=list)
    texts: list[Path] = field(default_factory=list)  # files that may tell of the fabric
    logs: list[Path] = field(default_factory=list)
    lone: list[RankStacks] = field(default_factory=list)
    rank_files: set[int] = field(default_factory=set)  # ranks that have a text of their own
    last_lines: dict[int, LogEvent] = field(default_factory=dict)


def read_run_file(path: Path, found: Found) -> bool:
    """Read a file that `traceops run` wrote; False if it is none."""
    readers = {"hang.": _read_stall, "groups_": _read_groups, "parameters_": _read_models}
    read = next((read for prefix, read in readers.items() if path.name.startswith(prefix)), None)
    if read is None:
        return False
    try:
        document = json.loads(read_regular(path))
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"is not whole JSON ({error})") from error
    if not isinstance(document, dict):
        raise FileError(path, "is not a JSON object")
    return read(document, found)


def _read_stall(document: dict[str, Any], found: Found) -> bool:
    kind, stalled = document.get("kind"), _number(document.get("stalled_s"))
    if kind not in ("step", "init") or stalled is None:
        return False
    host, notes = _typed(document.get("host"), str), tuple(map(str, _rows(document.get("notes"))))
    limit, noticed_ns = _number(document.get("limit_s")) or 0.0, _typed(document.get("noticed_ns"), int) or 0
    found.stalls.append(Stall(kind, stalled, limit, noticed_ns, host, notes))
    kinds = {"pid": int, "state": str, "step": int, "phase": str, "exit_code": int}
    for row in _rows(document.get("ranks")):
        if isinstance(row, dict) and (rank := _typed(row.get("rank"), int)) is not None:
            known = found.processes.get(rank, RankProcess(rank))
            typed = {key: _typed(row.get(key), its) for key, its in kinds.items()}
            now = {key: value for key, value in typed.items() if value is not None}
            found.processes[rank] = replace(known, **{"host": known.host or host, "exit_code": None, **now})
    return True


def _read_groups(document: dict[str, Any], found: Found) -> bool:
    rank, groups = _typed(document.get("rank"), int), document.get("groups")
    if rank is None or not isinstance(groups, dict):
        return False
    if isinstance(document.get("world_size"), int):
        found.worlds.append(document["world_size"])
    found.groups[rank] = {
        str(name): RecordedGroup(str(name), str(group.get("description") or ""), tuple(sorted(group["ranks"])))
        for name, group in groups.items()
        if isinstance(group, dict)
        and isinstance(group.get("ranks"), list)
        and group["ranks"]
        and all(isinstance(member, int) for member in group["ranks"])
    }
    return True


def _read_models(document: dict[str, Any], found: Found) -> bool:
    rank, rows = _typed(document.get("rank"), int), document.get("collectives")
    if rank is None or not isinstance(rows, list):
        return False
    made = [_shards(row) or _trained(row) for row in rows if isinstance(row, dict)]
    found.models[rank] = tuple(model for model in made if model is not None)
    return True


def _shards(row: dict[str, Any]) -> Shards | None:
    elements, shard = _typed(row.get("elements"), int), _typed(row.get("shard"), int)
    names = tuple(name for name in _rows(row.get("names")) if isinstance(name, str))
    if not elements or not shard or not names:
        return None
    count = max(_typed(row.get("count"), int) or 0, len(names))
    return Shards(_typed(row.get("group"), str), elements, shard, names, count)


def _trained(row: dict[str, Any]) -> Trained | None:
    cap = _typed(row.get("cap_bytes"), int)
    parameters = [tuple(told) for told in _rows(row.get("parameters")) if isinstance(told, list)]
    kinds = (str, int, int)
    whole = all(len(told) == 3 and all(map(isinstance, told, kinds)) and min(told[1:]) > 0 for told in parameters)
    if not cap or not parameters or not whole:
        return None
    return Trained(_typed(row.get("group"), str), cap, tuple(parameters))


def read_run(folder: Path, found: Found) -> dict[str, Any]:
    manifest, problem = read_run_manifest(str(folder))
    if problem is not None:
        found.problems.append(problem)
    if isinstance(manifest.get("world_size"), int):
        found.worlds.append(manifest["world_size"])
    found.one_node = manifest.get("nnodes") == 1
    kinds = {"host": str, "pid": int, "exit_code": int, "error": str}
    for row in _rows(manifest.get("ranks")):
        if isinstance(row, dict) and (rank := _typed(row.get("rank"), int)) is not None:
            known = {key: _typed(row.get(key), kind) for key, kind in kinds.items()}
            found.processes[rank] = RankProcess(rank, step=_typed(row.get("steps"), int), **known)
    if manifest:
        found.files.append(str(folder / "run.json"))
    return manifest


def _typed(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    """A number that can be reckoned with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) >= 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_RANK = re.compile(r"rank[_\-.]?(\d{1,7})", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})(?:\.[A-Za-z]\w*)*$")


def rank_in_name(path: Path) -> int | None:
    """The rank a file's name tells (rank_3, _dump_9, fr_0.json), or its folder's (rank_3/dump)."""
    for name in (path.name, path.parent.name):
        if (match := _RANK.search(name)) is not None:
            return int(match[1])
    match = _LAST_NUMBER.search(path.name)
    return None if match is None else int(match[1])


def rank_of_text(path: Path, one_node: bool) -> int | None:
    """Of a log only a name with 'rank' in it says whose it is: numbers in it may be anything. Torchrun's own folders,
    attempt_0/<local rank>/stderr.log, tell it where there is one node only."""
    if one_node and path.parent.parent.name.startswith("attempt_") and path.parent.name.isdecimal():
        return int(path.parent.name)
    if path.name.startswith(("stacks", "py-spy", "pyspy", "stack")):
        return rank_in_name(path)
    match = _RANK.search(path.name)
    return int(match[1]) if match else None


_POOL_WORTH_BYTES = 16 << 20  # below this, starting processes takes longer than the work
_AT_A_TIME = 8
Dump = tuple[Path, int]
Read = tuple[RankRecord | None, str]


def read_dumps(dumps: Sequence[Dump], jobs: int | None = None) -> list[Read]:
    """Of each (path, rank) the record and what is wrong with the file, '' if nothing; None if nothing could be read.
    jobs: processes, one a core if None; 1 reads here, which a process with threads has to."""
    jobs = min(jobs or os.cpu_count() or 1, len(dumps) // _AT_A_TIME)
    if jobs > 1 and sum(path.stat().st_size for path, _ in dumps) > _POOL_WORTH_BYTES:
        context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
        try:
            with ProcessPoolExecutor(jobs, mp_context=context, initializer=gc.freeze) as pool:
                return list(pool.map(_read, dumps, chunksize=_AT_A_TIME))
        except BrokenProcessPool:  # one was killed, for memory say: here they need it one after the other
            pass
    return [_read(dump) for dump in dumps]


def _read(dump: Dump) -> Read:
    try:
        return read_dump(*dump)
    except InputError as error:
        return None, problem_of(error)
