"""Finds which files under a path are traces, of which rank and which capture window."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from traceops.errors import InputError
from traceops.load.kineto import read_meta
from traceops.load.run_manifest import MOST_RANKS, read_run_manifest, recorded_steps
from traceops.load.scan import Scanner
from traceops.load.source import chunks, filesystem, is_remote, open_binary
from traceops.load.times import first_times_us

_TRACE_SUFFIXES = (".json", ".json.gz")
_RANK = re.compile(r"(?:^|[^a-z])(?:rank|worker)[_-]?(\d+)(?=\D|$)", re.IGNORECASE)
_WINDOW = re.compile(r"(?:^|[._-])window[_-]?(\d+)(?=\D|$)", re.IGNORECASE)
PAIRS = "pairs.json"  # in the folder of a series that `traceops run --against` made
# What lies beside traces without being one.
_NEVER = frozenset(
    {
        "run.json",
        "manifest.json",
        "report.json",
        "hang.json",
        "compare.json",
        "history.json",
        PAIRS,
        "truth.json",
        "package.json",
        "settings.json",
        "timeline.json",
        "timeline.json.gz",
    }
)
_SKIP_FOLDERS = frozenset({"evidence", "logs", "node_modules", "__pycache__"})


@dataclass(frozen=True)
class TraceFile:
    """A trace and where its rank number comes from: 'metadata', 'name' or 'order'.

    `steps` are the steps the capture says it recorded whole, None where nobody says: the profiler
    labels a step that was cut off like any other.
    """

    path: str
    rank: int
    rank_from: str
    world_size: int | None = None
    started_ns: int = 0
    steps: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Window:
    """The traces of one capture window, one a rank."""

    index: int
    files: tuple[TraceFile, ...]

    @property
    def started_ns(self) -> int:
        return min((file.started_ns for file in self.files), default=0)


@dataclass(frozen=True)
class Discovery:
    """What was found: windows in time order, the run's own manifest, and files that could not be used."""

    root: str
    name: str
    windows: tuple[Window, ...]
    manifest: dict[str, Any] = field(default_factory=dict)
    problems: tuple[tuple[str, str], ...] = ()  # path, what is wrong with it
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    path: str
    rank_in_name: int | None
    rank_inside: int | None
    world_size: int | None
    window: int | None
    started_ns: int


def discover(path: str) -> Discovery:
    """Traces under a folder, or one trace file; local or remote.

    Raises InputError where there is nothing to analyse. Files that look like traces and are empty or
    no JSON become problems, not errors, as long as one good file is left.
    """
    root, paths = _list_files(path)
    if not is_remote(root) and Path(root, PAIRS).is_file():
        raise InputError(
            f"{path} holds the runs of a series, base and head in turn: traceops compare {path} compares them, "
            f"traceops analyze {Path(path, 'head_1')} analyses one"
        )
    candidates, problems = [], []
    for file in paths:
        candidate, problem = _inspect(file, root, alone=len(paths) == 1)
        if candidate is not None:
            candidates.append(candidate)
        elif problem is not None:
            problems.append((file, problem))
    if not candidates:
        if problems:
            listed = "\n".join(f"  {file}: {what}" for file, what in problems[:20])
            raise InputError(f"{path} holds no readable trace:\n{listed}")
        raise InputError(
            f"{path} holds no traces. Expected torch.profiler's *.json or *.json.gz, such as "
            "rank_0/host_123.pt.trace.json.gz; capture some with: traceops run --strategy pytorch_ddp"
        )
    manifest, manifest_problem = read_run_manifest(root)
    if manifest_problem:
        problems.append(manifest_problem)
    candidates, foreign = _without_other_runs(candidates)
    problems.extend(foreign)
    files, notes = _assign_ranks(candidates)
    recorded = recorded_steps(manifest, root)
    files = [replace(file, steps=recorded.get(file.path)) for file in files]
    windows, duplicates = _group_windows(files, {c.path: c.window for c in candidates})
    problems.extend(duplicates)
    name = PurePosixPath(root.rstrip("/")).name or "traces"
    return Discovery(root, _trace_stem(name), windows, manifest, tuple(problems), tuple(notes))


def _list_files(path: str) -> tuple[str, list[str]]:
    if is_remote(path):
        file_system, within = filesystem(path)
        protocol = path.partition("://")[0]
        try:
            if file_system.isfile(within):
                return path, [path]
            found = sorted(file_system.find(within))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: {error}") from error
        return path, [f"{protocol}://{f}" if "://" not in f else f for f in found if _may_be_trace(f)]
    try:
        root = Path(path).resolve()
        mode = root.stat().st_mode
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} cannot be opened ({error})") from error
    if stat.S_ISREG(mode):
        return str(Path(path)), [path]
    return str(root), _walk(root)


def _walk(root: Path) -> list[str]:
    """Files below a folder that may be traces; linked folders are entered, each folder once."""
    found: list[str] = []
    entered: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(f for f in folders if f not in _SKIP_FOLDERS and not f.startswith("."))
        found += [str(Path(folder, file)) for file in sorted(files) if _may_be_trace(file)]
    return found


def _may_be_trace(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.endswith(_TRACE_SUFFIXES) and name not in _NEVER and not name.startswith(".")


def _inspect(path: str, root: str, alone: bool) -> tuple[_Candidate | None, str | None]:
    """Read a file's first bytes: a trace, something else (None, None), or a trace that is no use."""
    within = PurePosixPath(path).name if alone else path.removeprefix(root)
    rank_in_name = _rank_in_name(within)
    looks_like_trace = alone or rank_in_name is not None or ".trace." in PurePosixPath(path).name
    if not is_remote(path) and not Path(path).is_file():
        return None, "it is no regular file, or a link to nothing" if looks_like_trace else None
    try:
        with open_binary(path) as file:
            scanner = Scanner(chunks(file))
            head = scanner.peek()
    except InputError as error:
        return None, str(error).removeprefix(f"{path}: ")
    if not head:
        what = "; ".join(scanner.damage) or "the file is empty"
        return None, what if looks_like_trace else None
    if not looks_like_trace and b'"ph"' not in head:
        return None, None
    meta = read_meta(scanner.meta)
    base = scanner.meta.get("baseTimeNanoseconds")
    started = int(next(iter(first_times_us(head)), 0.0) * 1000) + (base if isinstance(base, int) else 0)
    match = _WINDOW.search(PurePosixPath(path).name)
    window = int(match.group(1)) if match else None
    return _Candidate(path, rank_in_name, meta.rank, meta.world_size, window, started), None


def _rank_in_name(within: str) -> int | None:
    """The rank in the file's name, or else in the name of the nearest folder that has one."""
    for part in reversed(PurePosixPath(within).parts):
        matches = _RANK.findall(part)
        if matches and len(matches[-1]) < 10 and int(matches[-1]) < MOST_RANKS:
            return int(matches[-1])
    return None


def _trace_stem(name: str) -> str:
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name or "trace"


def _without_other_runs(candidates: list[_Candidate]) -> tuple[list[_Candidate], list[tuple[str, str]]]:
    """Leave out traces whose world size differs from that of most files: they are of another run."""
    counts: dict[int, int] = defaultdict(int)
    for candidate in candidates:
        if candidate.world_size is not None:
            counts[candidate.world_size] += 1
    if len(counts) < 2:
        return candidates, []
    world = max(counts, key=lambda size: (counts[size], size))
    kept = [c for c in candidates if c.world_size in (None, world)]
    left = [
        (c.path, f"is of a run with {c.world_size} ranks, the others are of one with {world}; left out")
        for c in candidates
        if c.world_size not in (None, world)
    ]
    return kept, left


def _assign_ranks(candidates: list[_Candidate]) -> tuple[list[TraceFile], list[str]]:
    """Rank of each file: what the trace says inside, unless names tell ranks apart that the insides do not."""
    inside = {c.rank_inside for c in candidates}
    named = {c.rank_in_name for c in candidates}
    trust_names = None not in named and len(named) > len(inside - {None})
    files, notes = [], []
    taken = {c.rank_inside if not trust_names else c.rank_in_name for c in candidates} - {None}
    for candidate in candidates:
        first, second = (
            ((candidate.rank_in_name, "name"), (candidate.rank_inside, "metadata"))
            if trust_names
            else ((candidate.rank_inside, "metadata"), (candidate.rank_in_name, "name"))
        )
        rank, source = first if first[0] is not None else second
        if rank is None:
            rank, source = next(n for n in range(len(candidates) + len(taken) + 1) if n not in taken), "order"
            notes.append(f"{candidate.path} says nowhere which rank it is; taken as rank {rank}")
        taken.add(rank)
        files.append(TraceFile(candidate.path, rank, source, candidate.world_size, candidate.started_ns))
    disagree = [c.path for c in candidates if trust_names and c.rank_inside not in (None, c.rank_in_name)]
    if disagree:
        notes.append(
            f"the rank inside {len(disagree)} traces differs from the one in their names; names are used"
        )
    return files, notes


def _group_windows(
    files: list[TraceFile], window_in_name: dict[str, int | None]
) -> tuple[tuple[Window, ...], list[tuple[str, str]]]:
    """Sort each rank's files into windows; a second file of a rank that fits no window is a duplicate."""
    by_rank: dict[int, list[TraceFile]] = defaultdict(list)
    for file in sorted(files, key=lambda f: (f.started_ns, f.path)):
        by_rank[file.rank].append(file)
    numbered = all(window_in_name[file.path] is not None for file in files)
    counts = {len(own) for own in by_rank.values()}
    if not numbered and len(counts) > 1:  # not every rank has as many: no windows, but doubles
        problems = [
            (file.path, f"is a second trace of rank {rank}; {own[-1].path} is used")
            for rank, own in by_rank.items()
            for file in own[:-1]
        ]
        return (Window(0, tuple(own[-1] for _, own in sorted(by_rank.items()))),), sorted(problems)
    windows: dict[int, dict[int, TraceFile]] = defaultdict(dict)
    problems = []
    for rank, own in sorted(by_rank.items()):
        for position, file in enumerate(own):
            number = window_in_name[file.path] if numbered else position
            assert number is not None
            if rank in windows[number]:
                problems.append(
                    (windows[number][rank].path, f"is a second trace of rank {rank}; {file.path} is used")
                )
            windows[number][rank] = file
    return tuple(
        Window(n, tuple(f for _, f in sorted(w.items()))) for n, w in sorted(windows.items())
    ), problems
