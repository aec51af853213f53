"""Which files are traces and summaries, and of which rank and capture window, by names and what they begin with."""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec
from isal import isal_zlib
from msgspec import Struct
from msgspec.structs import replace

from traceops.core.documents import copied
from traceops.core.errors import FileError, InputError
from traceops.core.text import near_path
from traceops.traces.run_manifest import MOST_RANKS, is_step_time, told_windows
from traceops.traces.source import Damaged, chunks, filesystem, is_remote, open_binary, store_errors

SUFFIX = ".summary.msgpack.gz"
MAGIC = b"traceops summary\n"
FORMAT = 3  # raised with every change after which older files would be read wrongly
ANEW = "make it anew from its trace: traceops run --summarize, or give traceops analyze the trace itself"
_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 24
_LATEST_NS = 1 << 62
_MOST_OF_PART = 4_000_000  # bytes, unpacked: a file of somebody else's may hold anything
T = TypeVar("T")


class SummaryHeader(Struct, frozen=True):
    """What a summary says of itself before the summary.

    `trace` and `digest` (SHA-256 of the file, '' where not known) are the trace's, `rank_inside`, `world_size`
    and `started_ns` are what the trace says; `rank` and `steps` are what the summary was made with: see TraceFile.
    `code` is a fingerprint of the modules that made it; `with_hta` whether HTA itself ran.
    """

    version: str
    code: str
    trace: str
    digest: str
    rank: int
    rank_from: str
    rank_inside: int | None
    world_size: int | None
    started_ns: int
    steps: tuple[int, ...] | None
    with_hta: bool = False
    format: int = FORMAT


class _Made(Struct, frozen=True):
    """The part of a header that every format has."""

    format: int
    version: str = "unknown"


def with_header(header: SummaryHeader, body: bytes) -> bytes:
    """The bytes of a summary file before they are zipped."""
    packed = msgspec.msgpack.encode(header)
    return b"".join((MAGIC, _LENGTH.pack(len(packed)), packed, body))


def split(data: bytes) -> tuple[SummaryHeader, memoryview]:
    """The header and what follows it. Raises ValueError where this is no summary that this traceops reads."""
    if not data.startswith(MAGIC):
        raise ValueError(f"it is no summary of traceops; {ANEW}")
    start = len(MAGIC) + _LENGTH.size
    end = start + _LENGTH.unpack_from(data.ljust(start, b"\0"), len(MAGIC))[0]
    if not start < end <= min(len(data), _LONGEST):
        raise ValueError(f"it is cut off; {ANEW}")
    view = memoryview(data)
    try:
        made = msgspec.msgpack.decode(view[start:end], type=_Made)
        if made.format != FORMAT:
            raise ValueError(
                f"it is a summary of format {made.format}, by traceops {made.version}, and this traceops reads "
                f"format {FORMAT}; {ANEW}"
            )
        header = msgspec.msgpack.decode(view[start:end], type=SummaryHeader)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its header cannot be read ({error}); {ANEW}") from error
    ranks = (header.rank, header.rank_inside or 0, 0 if header.world_size is None else header.world_size - 1)
    if not all(0 <= rank < MOST_RANKS for rank in ranks) or abs(header.started_ns) >= _LATEST_NS:
        raise ValueError(f"its header has a rank or a time that cannot be; {ANEW}")
    return header, view[end:]


_SMALL_PART = 4096  # bytes, up to which setting up a level of compression takes more time than anything else


def pack_part(value: Any, level: int = 1) -> bytes:
    """A part of a summary that is read of few ranks only: packed by itself it takes little memory."""
    data = msgspec.msgpack.encode(value)
    packed: bytes = isal_zlib.compress(data, level if len(data) > _SMALL_PART else 0)
    return packed


def unpack_part(packed: bytes, kind: type[T]) -> T:
    """What `pack_part` made of a `kind`. Raises ValueError where it is anything else."""
    try:
        return msgspec.msgpack.decode(zlib.decompressobj().decompress(packed, _MOST_OF_PART), type=kind)
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(str(error)) from error


def read_header(path: str) -> SummaryHeader:
    """The header of a summary file. Raises FileError where it is none, or one of another format."""
    try:
        with open_binary(path) as file:
            return split(_beginning(chunks(file)))[0]
    except Damaged as error:
        raise FileError(path, f"{error}; {ANEW}", ": ") from error
    except ValueError as error:
        raise FileError(path, str(error), ": ") from error


def _beginning(pieces: Iterable[bytes]) -> bytes:
    """As many of the pieces as the header takes."""
    data = b""
    for piece in pieces:
        data += piece
        start = len(MAGIC) + _LENGTH.size
        if len(data) >= start and len(data) >= start + _LENGTH.unpack_from(data, len(MAGIC))[0]:
            break
        if len(data) > _LONGEST or not data.startswith(MAGIC[: len(data)]):
            break
    return data


class TraceFile(Struct, frozen=True):
    """A trace and where its rank number comes from: 'metadata', 'name' or 'order'.

    `steps` are the steps the capture says it recorded whole, None where nobody says: the profiler
    labels a step that was cut off like any other. `summary` is the path of a summary of it, if there is one;
    `summarized` says that there is only that: then it is what `path` names.
    """

    path: str
    rank: int
    rank_from: str
    world_size: int | None = None
    started_ns: int = 0
    steps: tuple[int, ...] | None = None
    size_bytes: int = 0
    summary: str | None = None
    summarized: bool = False


class Window(Struct, frozen=True):
    """The traces of one capture window, one a rank. job: which of the jobs that recorded there, the newest last."""

    index: int
    files: tuple[TraceFile, ...]
    job: int = 0

    @property
    def started_ns(self) -> int:
        return min((file.started_ns for file in self.files), default=0)

    def ranks_with(self, steps: int) -> int:
        """How many ranks hold so many whole steps, as far as anybody says."""
        return sum(file.steps is None or len(file.steps) >= steps for file in self.files)


_OF_WINDOW = re.compile(r"\.window_\d+(?=\.\d+\.)")  # in the names that our capture gives
_HANDLERS_NAME = re.compile(r"(?P<worker>.+)\.\d{10,20}\.pt\.trace\.json(\.gz)?$")
_EVALUATION = re.compile(r"\.(validation|test|predict)_step\.")  # Lightning's PyTorchProfiler names its windows so
_FEW = 2  # whole steps: with fewer there is no typical one


def of_evaluation(window: Window) -> bool:
    """Whether its files' names say that the model was evaluated there, or predicted."""
    return all(_EVALUATION.search(file.path) for file in window.files)


def latest_window(windows: Sequence[Window]) -> Window:
    """The last one that as many ranks hold as any: a program may end in the middle of the next. Two whole steps are
    enough, or as many as the longest window has. Windows of evaluation are the last choice."""
    windows = [own for own in windows if not of_evaluation(own)] or windows
    longest = max(_FEW if file.steps is None else len(file.steps) for own in windows for file in own.files)
    ranks = [own.ranks_with(min(_FEW, longest)) for own in windows]
    return next(own for own, n in zip(reversed(windows), reversed(ranks), strict=True) if n == max(ranks))


class Candidate(Struct, frozen=True):
    """A trace or a summary, and what it says of itself; `trace` is the path that a summary's trace had. `process`: its
    pid; what several traces have in common here is of one process, see one_process."""

    path: str
    trace: str
    rank_in_name: int | None
    rank_inside: int | None
    world_size: int | None
    window: int | None
    started_ns: int
    size_bytes: int = 0
    steps: tuple[int, ...] | None = None
    summary: str | None = None
    summarized: bool = False
    process: int | None = None
    host: str | None = None


def trace_stem(path: str) -> str:
    """A path without what traces and summaries end with: the same for a trace and the summary beside it."""
    if path.endswith(SUFFIX):
        return path.removesuffix(SUFFIX)
    for suffix in (".gz", ".json", ".trace", ".pt"):
        path = path.removesuffix(suffix)
    return path


def without_other_runs(candidates: list[Candidate]) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Leave out traces whose world size differs from that of most files: they are of another run."""
    counts = Counter(c.world_size for c in candidates if c.world_size is not None)
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


def assign_ranks(candidates: list[Candidate]) -> tuple[list[TraceFile], list[str], list[tuple[str, str]]]:
    """Rank of each file: what the trace says inside, unless names tell ranks apart that the insides do not. Where
    neither does, files of one process have one rank, as torch's tensorboard_trace_handler names them. Also notes, and
    (path, what) of files whose name says another rank than a process of several wrote into it."""
    inside = {c.rank_inside for c in candidates}
    named = {c.rank_in_name for c in candidates}
    trust_names = None not in named and len(named) > len(inside - {None})
    files, notes = [], []
    taken = {c.rank_inside if not trust_names else c.rank_in_name for c in candidates} - {None}
    of_worker: dict[tuple[str, str], int] = {}
    for candidate in candidates:
        first, second = (
            ((candidate.rank_in_name, "name"), (candidate.rank_inside, "metadata"))
            if trust_names
            else ((candidate.rank_inside, "metadata"), (candidate.rank_in_name, "name"))
        )
        rank, source = first if first[0] is not None else second
        if (worker := _worker(candidate.trace)) is None and candidate.process is not None:
            worker = str(PurePosixPath(candidate.trace).parent), f"pid {candidate.process}"
        if rank is None and worker in of_worker:  # another window of the same process
            rank, source = of_worker[worker], "order"
        elif rank is None:
            rank, source = next(n for n in range(len(candidates) + len(taken) + 1) if n not in taken), "order"
            notes.append(f"{candidate.trace} says nowhere which rank it is; taken as rank {rank}")
            if worker is not None:
                of_worker[worker] = rank
        taken.add(rank)
        files.append(copied(TraceFile, candidate, rank=rank, rank_from=source))
    doubts = [
        (
            candidate.path,
            f"is named as rank {candidate.rank_in_name} and holds rank {candidate.rank_inside}. It is taken as rank "
            f"{file.rank}; give each file the name of the rank in it",
        )
        for candidate, file in zip(candidates, files, strict=True)
        if candidate.rank_in_name is not None
        and candidate.rank_inside not in (None, candidate.rank_in_name)
        and (candidate.world_size or 1) > 1
    ]
    disagree = [c.path for c in candidates if trust_names and c.rank_inside not in (None, c.rank_in_name)]
    if disagree:
        notes.append(f"the rank inside {len(disagree)} traces differs from the one in their names; names are used")
    return files, notes, doubts


def _worker(path: str) -> tuple[str, str] | None:
    """Folder and worker (host and pid) of a name that tensorboard_trace_handler gives: worker.time.pt.trace.json."""
    match = _HANDLERS_NAME.match(path.rpartition("/")[2])
    return (str(PurePosixPath(path).parent), match["worker"]) if match else None


def host_in_name(path: str, pid: int | None) -> str | None:
    """The host of a trace whose name is tensorboard_trace_handler's own, HOST_PID.time.pt.trace.json, or ours. pid: of
    the host's events in it. A name that the program chose (`worker_name`) has no such number at its end."""
    worker = _worker(_OF_WINDOW.sub("", path))
    host = worker[1].removesuffix(f"_{pid}") if worker is not None and pid is not None else ""
    return host if worker is not None and host and host != worker[1] else None


def join_beside(candidates: list[Candidate]) -> list[Candidate]:
    """Each trace with the summary that lies beside it under its name, and the summaries that lie alone."""
    traces = {trace_stem(c.path) for c in candidates if not c.summarized}
    summaries = {trace_stem(c.path): c.path for c in candidates if c.summarized}
    return [
        c if c.summarized else replace(c, summary=summaries.get(trace_stem(c.path)))
        for c in candidates
        if not (c.summarized and trace_stem(c.path) in traces)
    ]


def join_elsewhere(files: list[TraceFile]) -> list[TraceFile]:
    """The same for a summary that lies anywhere else, known by its rank and when its capture began."""
    traces = {(f.rank, f.started_ns) for f in files if not f.summarized}
    summaries = {(f.rank, f.started_ns): f.path for f in files if f.summarized}
    return [
        f if f.summarized or f.summary else replace(f, summary=summaries.get((f.rank, f.started_ns)))
        for f in files
        if not (f.summarized and (f.rank, f.started_ns) in traces)
    ]


def group_windows(
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
                problems.append((windows[number][rank].path, f"is a second trace of rank {rank}; {file.path} is used"))
            windows[number][rank] = file
    return tuple(Window(n, tuple(f for _, f in sorted(w.items()))) for n, w in sorted(windows.items())), problems


def chosen_window(windows: Sequence[Window], manifest: Mapping[str, Any]) -> Window:
    """The latest one that as many ranks hold as any, of the newest job. The launcher asks for a second window where the
    first looks slower than the steps since. If it took no less, by what happened to come just then, it shows the run no
    better. manifest: run.json, {} where there is none."""
    windows = of_newest_job(windows)
    latest = latest_window(windows)
    earlier = windows[: windows.index(latest)]
    if not earlier or not any(one.get("why") for _, one in _records(manifest, latest.index)):
        return latest
    first = latest_window(earlier)
    before, now = (_step_ms(manifest, window.index) for window in (first, latest))
    return first if before is not None and now is not None and now >= before else latest


def of_newest_job(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Its windows. Other jobs may have recorded into the same folder."""
    return tuple(own for own in windows if own.job == windows[-1].job)


def _records(manifest: Mapping[str, Any], index: int) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each rank of run.json that recorded the window with this index, and what is said of it there."""
    return (both for both in told_windows(manifest) if both[1].get("index") == index)


def _step_ms(manifest: Mapping[str, Any], index: int) -> float | None:
    """The mean of a window's recorded steps over all ranks."""
    found = []
    for entry, one in _records(manifest, index):
        steps, numbers, times = (one.get("steps"), entry.get("profiled_steps"), entry.get("profiled_step_ms"))
        if isinstance(steps, list) and isinstance(numbers, list) and isinstance(times, list):
            of_step = dict(zip(map(str, numbers), times, strict=False))
            known: list[Any] = [of_step.get(str(number)) for number in steps]
            found += [ms for ms in known if is_step_time(ms)]
    return sum(found) / len(found) if found else None


PAIRS = "pairs.json"  # in the folder of a series that `traceops run --against` made
_ENDINGS = (".json", ".json.gz", SUFFIX)
# What lies beside traces without being one.
_NEVER = frozenset({
    "run.json", "manifest.json", "report.json", "hang.json", "compare.json", "history.json", PAIRS, "runs.json",
    "scale.json", "sweep.json", "trials.json", "truth.json", "package.json", "settings.json", "timeline.json",
    "timeline.json.gz",
})  # fmt: skip
SKIP_FOLDERS = frozenset({"evidence", "logs", "node_modules", "__pycache__"})


def list_files(path: str) -> tuple[str, dict[str, int]]:
    """The folder, or the file itself, and the paths below it with their bytes (0 where not known), in order. Raises
    InputError where there is no such path."""
    if is_remote(path):
        return path, _remote_files(path)
    try:
        root = Path(path).resolve()
        mode = root.stat().st_mode
    except FileNotFoundError:
        raise InputError(f"{path} does not exist{near_path(path)}") from None
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path} cannot be opened ({error})") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{path} is a pipe, a socket or a device: give a file or a folder")
    if not os.access(root, os.R_OK if stat.S_ISREG(mode) else os.R_OK | os.X_OK):
        raise InputError(f"{path} may not be read; ask the owner for permission")
    if stat.S_ISREG(mode):
        file = str(Path(path).absolute())  # a worker may have another working folder
        return file, {file: root.stat().st_size}
    return str(root), {file: _size(file) for file in _walk(root)}


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:  # a link to nothing: whoever opens it will say so
        return 0


def _remote_files(path: str) -> dict[str, int]:
    file_system, within = filesystem(path)
    try:
        # A page that lists a folder is a file too, as far as a web server knows: there the name decides.
        if path.endswith(_ENDINGS) or not file_system.isdir(within):
            if not file_system.isfile(within):
                raise InputError(f"{path} does not exist")
            return {path: int(file_system.info(within).get("size") or 0)}
        found: dict[str, dict[str, Any]] = file_system.find(within, detail=True)
    except (ValueError, *store_errors()) as error:  # type: ignore[misc] # a list that grows with what is loaded
        raise InputError(f"{path}: {error}") from error
    protocol = path.partition("://")[0]
    return {
        f"{protocol}://{file}" if "://" not in file else file: int(info.get("size") or 0)
        for file, info in sorted(found.items())
        if may_be_trace(file) and not SKIP_FOLDERS & set(PurePosixPath(file.removeprefix(within)).parts)
    }


def leads_out(path: str, root: str) -> bool:
    """Whether a path below the folder is a link to elsewhere: what lies there was not given."""
    return path != root and Path(path).is_symlink() and not Path(path).resolve().is_relative_to(root)


def _walk(root: Path) -> list[str]:
    """Files below a folder that may be traces; linked folders of it are entered, each folder once. Links out of it are
    among the files, for whoever opens them says so, and are not entered."""
    found: list[str] = []
    entered: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(f for f in folders if f not in SKIP_FOLDERS and not f.startswith("."))
        out = [f for f in folders if leads_out(str(Path(folder, f)), str(root))]
        found += [str(Path(folder, link)) for link in out]
        folders[:] = [f for f in folders if f not in out]
        found += [str(Path(folder, file)) for file in sorted(files) if may_be_trace(file)]
    return found


def may_be_trace(path: str) -> bool:
    """Whether a file of this name is looked into."""
    name = PurePosixPath(path).name
    return name.endswith(_ENDINGS) and name not in _NEVER and not name.startswith(".")
