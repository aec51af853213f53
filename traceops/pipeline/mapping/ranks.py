"""The map over ranks: a summary of each trace, from its file, from one made before, or from the cache."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, TextIO

from msgspec import Struct
from msgspec.structs import replace

from traceops.compute.attainable import kept_fingerprint
from traceops.core.errors import ODD_VALUE, InputError, odd_value_text, problem_of
from traceops.core.files import shared_with, write_whole
from traceops.core.units import clock_text
from traceops.measure.summary import RankSummary, by_hta, summarize
from traceops.pipeline.mapping import summary_file
from traceops.pipeline.mapping.executors import cores, map_files
from traceops.traces.discover import TraceFile
from traceops.traces.kineto import load_trace
from traceops.traces.source import is_remote
from traceops.traces.windows import SUFFIX, SummaryHeader, trace_stem
from traceops.version import __version__

# The line that says how far the reading of traces is: ranks, MB, MB/s, time left.

_MOMENT_S = 0.5  # what takes no longer needs no line
_BETWEEN_S = 0.1
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """A line on a terminal that is written over, nothing elsewhere; call it with how far the map is."""

    def __init__(self, file: TextIO, enabled: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._shown = enabled and file.isatty() and os.environ.get("TERM") != "dumb"
        self._began = self._last = clock()
        self._written = False

    def __enter__(self) -> ProgressLine:
        return self

    def __call__(self, done: Done) -> None:
        now = self._clock()
        if self._shown and now - self._began >= _MOMENT_S and now - self._last >= _BETWEEN_S:
            self._file.write(_CLEAR + progress_text(done, now - self._began))
            self._file.flush()
            self._last, self._written = now, True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._written:
            self._file.write(_CLEAR)
            self._file.flush()


def progress_text(done: Done, seconds: float) -> str:
    """How far the map is after so many seconds, in less than 80 characters."""
    text = f"reading traces  {done.ranks}/{done.all_ranks} ranks"
    if done.bytes:
        text += f"  {done.bytes / 1e6:,.0f} MB  {done.bytes / 1e6 / max(seconds, 1e-9):,.0f} MB/s"
    share = done.bytes / done.all_bytes if done.all_bytes else done.ranks / done.all_ranks
    if 0 < share < 1:
        text += f"  {clock_text(seconds * (1 / share - 1))} left"
    return text


_POOL_WORTH_BYTES = 2 << 20  # below this, starting processes takes longer than the work
_FORESEEN = (OSError, MemoryError, *ODD_VALUE)  # a file that vanished, or whose store broke off, in the middle


class Done(Struct, frozen=True):
    """How far the map is: ranks, and bytes of the files as they are stored."""

    ranks: int
    all_ranks: int
    bytes: int
    all_bytes: int


Progress = Callable[[Done], None]


class Outcome(Struct, frozen=True):
    """What a worker sends back: a packed summary, or what is wrong with the file. fits: its parts were compared when it
    was measured."""

    packed: bytes = b""
    fits: bool = False
    problem: str = ""
    missing_on: str = ""  # the host where there is no such file


class MapOptions(Struct, frozen=True):
    """How the map is done.

    `jobs`: ranks at a time, one a core or worker if None. `executor` is one of concurrent.futures,
    `dask://HOST:PORT`, or `mpi`; None for processes of this machine, where they pay. `cache`: traces that are
    known from before are not parsed again. `with_hta`, `own_kernels`, `gpu`, `searched`: see `summarize`; what only HTA
    has is of the first rank. `meanwhile` is called once workers have begun, if there are any.
    """

    jobs: int | None = None
    executor: str | Executor | None = None
    cache: bool = True
    with_hta: bool = False
    progress: Progress | None = None
    meanwhile: Callable[[], None] | None = None
    own_kernels: tuple[str, ...] = ()
    gpu: str = ""
    searched: int = sys.maxsize


def summarize_all(files: Sequence[TraceFile], options: MapOptions) -> tuple[list[RankSummary], list[tuple[str, str]]]:
    """Summaries in rank order, and the files that failed with what is wrong with them. Raises UsageError for an
    executor or a size of the cache that makes no sense, and where HTA is asked for and is not installed."""
    if options.with_hta:
        from traceops.measure.hta_bridge import preload

        preload()
    if options.cache:
        summary_file.most_bytes()
        shared_with()
        summary_file.code_fingerprint(options.with_hta)  # once, for all processes forked from this one
    results = _Results(files, options.progress)
    here, away = ([], files) if options.executor is not None else _divide(files, options.jobs or cores())
    ahead = options.executor is None and min(len(away) or 1, options.jobs or cores()) < cores()
    only = replace(options, executor=None, progress=None, meanwhile=None)  # what a worker is sent
    do = partial(_outcome, options=only, ahead=ahead, first=min((file.rank for file in files), default=0))
    if away:
        map_files(do, away, results, options.jobs, options.executor, options.meanwhile)
    for file in here:
        results.take(file, do(file), elsewhere=False)
    return results.in_order()


def write_summary(file: TraceFile) -> Path:
    """Summarise a local trace and write that beside it, as NAME.summary.msgpack.gz; returns its path. Raises InputError
    where the trace cannot be read or analysed, or the summary cannot be written."""
    target = Path(trace_stem(file.path) + SUFFIX)
    content = summary_file.content_of(file.path)
    try:
        packed = _packed(_header(file, content, MapOptions()), summarize(file))
    except _FORESEEN as error:
        raise InputError(f"{file.path}: {_said(error)}") from error
    if content is None or not summary_file.is_unchanged(file.path, content):
        raise InputError(f"{file.path}: it is still being written; summarise it when it is complete")
    try:
        write_whole(target, summary_file.zipped(packed))
    except OSError as error:
        raise InputError(f"{target} cannot be written ({error.strerror}); make room there") from error
    return target


def _divide(files: Sequence[TraceFile], jobs: int) -> tuple[Sequence[TraceFile], Sequence[TraceFile]]:
    """The files for this process, and those that are worth starting others for."""
    large = [file for file in files if is_remote(file.path) or not file.summarized]
    small = [file for file in files if not is_remote(file.path) and file.summarized]
    remote = any(is_remote(file.path) for file in large)
    if min(jobs, len(large)) > 1 and (remote or sum(f.size_bytes for f in large) >= _POOL_WORTH_BYTES):
        return small, large
    return files, []


def _outcome(file: TraceFile, options: MapOptions, *, ahead: bool, first: int = 0) -> Outcome:
    """In a worker, or here: the summary of a file; no file hides the others. first: the lowest rank."""
    if file.rank != first:
        options = replace(options, searched=0)
    try:
        return _found(file, options, ahead)
    except InputError as error:
        missing = not is_remote(file.path) and not Path(file.path).exists()
        return Outcome(problem=problem_of(error), missing_on=os.uname().nodename if missing else "")
    except _FORESEEN as error:
        return Outcome(problem=_said(error))


def _said(error: Exception) -> str:
    """What is wrong with a file that cannot be summarised."""
    if isinstance(error, OSError):
        return str(error.strerror or error)
    if isinstance(error, MemoryError):
        return "there was not enough memory to read it; try --jobs 1"
    return odd_value_text(error)


def _found(file: TraceFile, options: MapOptions, ahead: bool) -> Outcome:
    """The summary of a file: itself if it is one, one made before, or else a new one."""
    if file.summarized:
        return Outcome(summary_file.read_packed(file.path))
    folder = summary_file.cache_folder() if options.cache else None
    content = summary_file.content_of(file.path) if folder or file.summary else None
    place = folder if content is not None else None
    header = _header(file, content, options)
    if known := _known(file, place, header):
        return Outcome(known)
    if options.with_hta and (measured := _known(file, place, _header(file, content, replace(options, with_hta=False)))):
        summary = by_hta(summary_file.unpack(measured, {})[1], load_trace(file.path, ahead), options.searched)
    else:
        summary = summarize(file, options.with_hta, ahead, options.own_kernels, options.gpu, options.searched)
    if misfit := summary_file.why_unfit(summary):
        return Outcome(problem=misfit)
    packed = _packed(header, summary)
    if place is not None and content is not None:
        elsewhere_too = packed.count(os.fsencode(PurePosixPath(file.path).name)) > 2
        if not elsewhere_too and summary_file.is_unchanged(
            file.path, content
        ):  # then it is right for any file with these bytes
            summary_file.store(place, header, packed)
    return Outcome(packed, fits=True)


def _known(file: TraceFile, folder: Path | None, header: SummaryHeader) -> bytes | None:
    """The summary that lies beside the trace or is kept, unzipped; None where neither is of these bytes."""
    if file.summary and (known := summary_file.read_same(file.summary, header)):
        return known
    return None if folder is None else summary_file.load(folder, header)


def _header(file: TraceFile, content: summary_file.Content | None, options: MapOptions) -> SummaryHeader:
    if (
        code := "" if content is None else summary_file.code_fingerprint(options.with_hta)
    ):  # nothing asks for it without a digest
        code += f" and rates {rates}" if (rates := kept_fingerprint()) else ""
        code += f" and GPU {options.gpu!r}" if options.gpu else ""
        code += f" and kernels {options.own_kernels!r}" if options.own_kernels else ""
        code += f" and searched to {options.searched}" if options.with_hta and options.searched else ""
    return SummaryHeader(
        version=__version__,
        code=code,
        trace=file.path,
        digest=content.digest if content else "",
        rank=file.rank,
        rank_from=file.rank_from,
        rank_inside=None,
        world_size=file.world_size,
        started_ns=file.started_ns,
        steps=file.steps,
        with_hta=options.with_hta,
    )


def _packed(header: SummaryHeader, summary: RankSummary) -> bytes:
    return summary_file.pack(replace(header, rank_inside=summary.meta.rank), summary)


class _Results:
    """Summaries and problems as they come; equal parts of summaries are kept once."""

    def __init__(self, files: Sequence[TraceFile], progress: Progress | None) -> None:
        self._files, self._progress = files, progress
        self._all_bytes = sum(file.size_bytes for file in files)
        self._summaries: list[RankSummary] = []
        self._failed: list[tuple[str, str]] = []
        self._bytes = 0
        self._seen: dict[Any, Any] = {}

    def take(self, file: TraceFile, result: Outcome, elsewhere: bool) -> None:
        if result.problem:
            if elsewhere and result.missing_on and Path(file.path).exists():
                self.fail(
                    file,
                    f"its worker on {result.missing_on} has no such file; put the traces where all workers "
                    "see them, in a shared folder or a store such as s3://",
                )
            else:
                self.fail(file, result.problem)
            return
        try:
            header, summary = summary_file.unpack(result.packed, self._seen, fits=result.fits and not elsewhere)
        except ValueError as error:
            self.fail(file, str(error))
            return
        if not file.summarized and header.version != __version__:
            self.fail(file, f"its worker has traceops {header.version}, not {__version__}; install the same there")
            return
        path = summary.path if file.summarized else file.path
        self._summaries.append(replace(summary, rank=file.rank, path=path))
        self._advance(file)

    def fail(self, file: TraceFile, what: str) -> None:
        self._failed.append((file.path, what))
        self._advance(file)

    def tick(self) -> None:
        if self._progress is not None:
            ranks = len(self._summaries) + len(self._failed)
            self._progress(Done(ranks, len(self._files), self._bytes, self._all_bytes))

    def in_order(self) -> tuple[list[RankSummary], list[tuple[str, str]]]:
        return sorted(self._summaries, key=lambda summary: summary.rank), sorted(self._failed)

    def _advance(self, file: TraceFile) -> None:
        self._bytes += file.size_bytes
        self.tick()
