"""From a run's traces to one timeline file: analyse all ranks, rewrite each, add tracks, join."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from traceops.across.cross_rank import CrossRank
from traceops.core.errors import InputError, UsageError
from traceops.core.findings import Finding
from traceops.measure.summary import RankSummary
from traceops.pipeline.analyze import own_kernels, run_pipeline
from traceops.pipeline.conclude import Analysis, NoEventsError
from traceops.pipeline.mapping.executors import cores, map_in_processes
from traceops.pipeline.mapping.ranks import MapOptions, Progress
from traceops.pipeline.run_info import rank_host
from traceops.timeline.added_packets import findings_track, stream_words, write_packets
from traceops.timeline.choose import FILE_NAME, around_finding, choose_ranks, choose_steps, listed, windows_of
from traceops.timeline.part import Form, PartTask, RankPart, write_part
from traceops.timeline.pieces import CompressedPiece, PieceWriter, cannot_write, join
from traceops.timeline.reader import TimelineHeader, place_files, read_header
from traceops.timeline.tracks import ShownRank, rank_tracks, well_formed
from traceops.traces.discover import Discovery, TraceFile, Window
from traceops.traces.source import is_remote
from traceops.version import __version__

# How large a timeline will be, before it is written.


# Bytes written for a byte of the trace, by the form and whether trace and timeline are gzipped: measured over ddp4,
# fsdp2_4 and two gloo runs of tests/data, where it differs by a fifth from run to run.
_PER_BYTE: dict[tuple[Form, bool, bool], float] = {
    ("json", True, True): 1.25,
    ("json", False, True): 0.1,
    ("json", True, False): 11.0,
    ("json", False, False): 0.9,
    ("perfetto", True, True): 1.05,
    ("perfetto", False, True): 0.085,
    ("perfetto", True, False): 4.0,
    ("perfetto", False, False): 0.35,
}
LARGE_BYTES = 100_000_000  # the browser holds a multiple of it in memory


class Expected(Struct, frozen=True):
    """What will be written: about so many bytes, of so many ranks and steps (None: all)."""

    size_bytes: int
    ranks: int
    steps: int | None


def expect_size(files: Sequence[TraceFile], steps: int | None, recorded: int, form: Form, gzipped: bool) -> Expected:
    """About how large the timeline of these traces is, of whose `recorded` steps so many are shown (None: all)."""
    share = 1.0 if steps is None or not recorded else min(steps / recorded, 1.0)
    size = sum(file.size_bytes * _PER_BYTE[form, file.path.endswith(".gz"), gzipped] for file in files)
    return Expected(int(size * share), len(files), steps)


_JSON = (".json", ".json.gz")
_POOL_WORTH_BYTES = 4 << 20  # below this, starting processes takes longer than the work


class Timeline(Struct, frozen=True):
    """What was written: events of the traces, events added to them, and what could not be read.

    `duration_ns` is from the first to the last event of the ranks shown.
    """

    path: Path
    size_bytes: int
    ranks: tuple[int, ...]
    events: int
    added: int
    duration_ns: int
    problems: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def write_timeline(
    found: Discovery,
    window: Window,
    output: Path,
    *,
    ranks: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    around: str | None = None,
    announce: Callable[[Expected], None] | None = None,
) -> Timeline:
    """Write the chosen ranks and steps (None: all) of one capture window, gzipped if named .gz.

    Chrome's JSON where the file's name ends in .json or .json.gz, else Perfetto's own packets. `around`: a finding
    such as TO-S001, which chooses the ranks and steps that are not given. `announce` is told the size before
    anything is written. All ranks are analysed, also those that are not shown: what a rank waits for may be one of
    those.
    Raises UsageError for ranks or steps that the run does not have, InputError where nothing can be read or
    the file cannot be written. The file is there whole or not at all.
    """
    _check_target(output, window)
    chosen = choose_ranks(window, ranks)
    analysis = _analysis(found, window, MapOptions(jobs, progress=progress, own_kernels=own_kernels()))
    run = None if analysis is None else analysis.run
    usable = {times.summary.rank: times.summary for times in run.ranks} if run is not None else {}
    if around is not None:
        if analysis is None:
            raise UsageError("no rank could be analysed, so there is no finding to show")
        place = around_finding(around, analysis.report.findings, analysis.run, chosen)
        chosen = choose_ranks(window, place.ranks if ranks is None else ranks)
        steps = place.steps if steps is None else steps
    wanted = choose_steps([usable[rank] for rank in chosen if rank in usable], steps)
    form: Form = "json" if output.name.endswith(_JSON) else "perfetto"
    if announce is not None:
        recorded = max((len(usable[rank].step_numbers) for rank in chosen if rank in usable), default=0)
        files = [file for file in window.files if file.rank in chosen]
        shown_steps = None if wanted is None else len(wanted)
        announce(expect_size(files, shown_steps, recorded, form, output.name.endswith(".gz")))
    jobs = _worth(window.files, jobs)
    headers = dict(zip(chosen, map_in_processes(_header, list(chosen.values()), jobs), strict=True))
    placements, borrowed = place_files(headers, run.clocks.fits if run is not None else {})
    times = windows_of(chosen, usable, wanted, jobs)
    shown = {rank: ShownRank(slot, placements[rank], times.get(rank), wanted) for slot, rank in enumerate(chosen)}
    with _beside(output) as folder:
        tasks = [
            PartTask(
                path=path,
                rank=rank,
                slot=shown[rank].slot,
                slots=len(shown),
                host=_host(found, usable.get(rank), headers[rank]),
                placement=shown[rank].placement,
                windows=shown[rank].windows,
                output=folder / str(rank),
                gzipped=output.name.endswith(".gz"),
                form=form,
                streams=stream_words(run, rank) if form == "perfetto" and run is not None else {},
            )
            for rank, path in chosen.items()
        ]
        parts = list(map_in_processes(write_part, tasks, jobs))
        span = _span(found, parts)
        findings = () if analysis is None else analysis.report.findings
        own = [part.piece for part in parts if part.piece]
        if form == "perfetto":
            added, first = write_packets(folder / "added", tasks, run, findings, shown, span)
            pieces = [first, *own]
        else:
            added, last = _write_added(folder / "added", found.root, tasks, run, findings, shown, span)
            pieces = [_head(folder / "head", tasks[0].gzipped), *own, last]
        join(pieces, folder / output.name)
        os.replace(folder / output.name, output)  # noqa: PTH105
        size = output.stat().st_size
    return Timeline(
        path=output,
        size_bytes=size,
        ranks=tuple(part.rank for part in parts if part.events),
        events=sum(part.events for part in parts),
        added=added,
        duration_ns=span[1] - span[0],
        problems=(*found.problems, *((part.path, "; ".join(part.damage)) for part in parts if part.damage)),
        notes=tuple(_notes(run, chosen, borrowed)),
    )


def _analysis(found: Discovery, window: Window, options: MapOptions) -> Analysis | None:
    """What `traceops analyze` finds; nothing where no rank can be analysed, whose events may be shown all the same."""
    try:
        return run_pipeline(found, window, options)
    except NoEventsError:
        return None


def _span(found: Discovery, parts: Sequence[RankPart]) -> tuple[int, int]:
    """First and last moment of all events, ns on the timeline."""
    firsts = [part.first_ns for part in parts if part.first_ns is not None]
    lasts = [part.last_ns for part in parts if part.last_ns is not None]
    if not firsts or not lasts:
        lines = "\n".join(f"  {part.path}: {'; '.join(part.damage) or 'no events'}" for part in parts[:20])
        raise InputError(f"{found.root}: none of the traces holds an event that could be read:\n{lines}")
    return min(firsts), max(lasts)


def _write_added(
    path: Path,
    root: str,
    tasks: Sequence[PartTask],
    run: CrossRank | None,
    findings: Sequence[Finding],
    shown: Mapping[int, ShownRank],
    span: tuple[int, int],
) -> tuple[int, CompressedPiece]:
    """The last piece: the tracks traceops adds, and what follows the events; and how many events it adds."""
    added = 0
    encode = msgspec.json.Encoder().encode
    with PieceWriter(path, tasks[0].gzipped) as writer:
        for events in rank_tracks(run, shown) if run is not None else ():
            added += sum(event["ph"] != "M" for event in events)
            if events:
                writer.write(encode(events)[1:-1] + b",\n")
        top = findings_track(run, findings, shown, span)
        added += sum(event["ph"] != "M" for event in top)
        trailer = {
            "baseTimeNanoseconds": tasks[0].placement.origin_ns,
            "traceops": {
                "version": __version__,
                "ranks": [{"rank": task.rank, "trace": _within(root, task.path)} for task in tasks],
            },
        }
        writer.write(encode(top)[1:-1] + b"\n]," + encode(trailer)[1:] + b"\n")
    return added, writer.piece


def _within(root: str, path: str) -> str:
    """A trace's path in its run's folder: where that lies is nobody's business who gets the timeline."""
    within = path.removeprefix(root).lstrip("/") or PurePosixPath(path).name
    return str(well_formed(within))


def _head(path: Path, gzipped: bool) -> CompressedPiece:
    with PieceWriter(path, gzipped) as writer:
        writer.write(b'{"traceEvents":[\n')  # first, for some readers stop at a key they do not know
    return writer.piece


@contextlib.contextmanager
def _beside(output: Path) -> Iterator[Path]:
    """A folder beside the output for its pieces, removed afterwards; after an error so is what was made for it."""
    made = [folder for folder in (output.parent, *output.parent.parents) if not folder.exists()]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        pieces = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}."))
    except OSError as error:
        raise cannot_write(output.parent, error) from error
    try:
        yield pieces
    except BaseException as error:
        shutil.rmtree(pieces, ignore_errors=True)
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()
        if isinstance(error, OSError):
            raise cannot_write(output, error) from error
        raise
    shutil.rmtree(pieces, ignore_errors=True)


def _check_target(output: Path, window: Window) -> None:
    if output.is_dir():
        raise UsageError(f"{output} is a folder; -o takes the name of a file, such as {output / FILE_NAME}")
    sources = {Path(file.path).resolve() for file in window.files if not is_remote(file.path)}
    if output.resolve() in sources:
        raise UsageError(f"{output} is one of the traces; choose another name with -o FILE")


def _worth(files: Sequence[TraceFile], jobs: int | None) -> int:
    """How many processes pay for files of this size."""
    large = any(is_remote(f.path) for f in files) or sum(f.size_bytes for f in files) >= _POOL_WORTH_BYTES
    return jobs or cores() if large else 1


def _header(path: str) -> TimelineHeader:
    try:
        return read_header(path)
    except InputError:  # writing its part will say so
        return TimelineHeader(None, None, None)


def _host(found: Discovery, summary: RankSummary | None, header: TimelineHeader) -> str | None:
    host = rank_host(found, summary) if summary is not None else header.host
    return None if host is None else str(well_formed(host))


def _notes(run: CrossRank | None, chosen: Mapping[int, str], borrowed: Sequence[int]) -> Iterator[str]:
    if borrowed:
        yield (
            f"{listed('rank', borrowed)}: the trace does not say when its time began (it may be cut off); "
            "the other ranks' beginning is used"
        )
    if run is None or len(chosen) < 2:
        return
    apart = [rank for rank in run.clocks.unaligned if rank in chosen]
    if apart:
        yield (
            f"{listed('rank', apart)}: shares too few collectives with the others to compare their clocks, "
            "so its times are as the trace has them"
        )
    if run.clocks.residual_p95_ns is not None:
        yield (
            f"clocks aligned on {run.clocks.anchors} collectives, whose ends then lie within "
            f"{run.clocks.residual_p95_ns / 1e3:.0f} µs (95 %)"
        )
