"""From a run's traces to one timeline file: analyse all ranks, rewrite each, add tracks, join."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from traceops.across.cross_rank import CrossRank
from traceops.across.links import busbw_gbs
from traceops.across.match import MatchedCollectives
from traceops.across.rank_times import RankTimes
from traceops.core.claims import first_phrase
from traceops.core.documents import well_formed
from traceops.core.errors import InputError, UsageError
from traceops.core.findings import Finding
from traceops.core.words import ROLES, Role
from traceops.measure.summary import RankSummary
from traceops.pipeline.analyze import own_kernels, run_pipeline
from traceops.pipeline.conclude import NoEventsError
from traceops.pipeline.mapping.executors import cores, map_in_processes
from traceops.pipeline.mapping.ranks import MapOptions, Progress
from traceops.pipeline.run_info import rank_host
from traceops.timeline.choose import FILE_NAME, around_finding, choose_ranks, choose_steps, listed, windows_of
from traceops.timeline.packets import Bar, Packets, Track, lanes_of
from traceops.timeline.pieces import CompressedPiece, PieceWriter, cannot_write, join
from traceops.timeline.processes import FINDINGS, host_uuid, named_place, rank_uuid, track_numbers
from traceops.timeline.reader import TimelineHeader, place_files, read_header
from traceops.timeline.tracks import (
    Drawn,
    Form,
    PartTask,
    RankPart,
    ShownRank,
    Slice,
    arrows,
    collective_slices,
    members_of,
    rank_tracks,
    slice_event,
    step_slices,
    stream_words,
    write_part,
)
from traceops.traces.discover import Discovery, TraceFile, Window
from traceops.traces.source import is_remote
from traceops.version import __version__
from traceops.words.catalogue import texts

# The track on top of the timeline: what traceops found, over the steps it was found in.

FINDINGS_PID = 1  # below every rank's
_SHOWN = ("title", "message", "advice", "severity", "confidence", "cause", "ranks", "steps", "impact_ms")


def finding_slices(
    run: CrossRank | None, findings: Sequence[Finding], shown: Mapping[int, ShownRank], window: tuple[int, int]
) -> Iterator[Slice]:
    """A slice for each finding, over the steps it names or else the whole `window` (ns on the timeline). One that names
    steps none of which is shown is left out."""
    for finding in findings:
        start, end = _steps_of(finding, run, shown) if finding.steps else window
        start, end = max(start, window[0]), min(end, window[1])
        if start <= end:
            args = {name: getattr(finding, name) for name in _SHOWN}
            yield Slice(well_formed(f"{finding.rule} {finding.title}"), start, end, well_formed(args))


def _steps_of(finding: Finding, run: CrossRank | None, shown: Mapping[int, ShownRank]) -> tuple[int, int]:
    """From first to last moment of a finding's steps on its ranks, as far as both are shown; else no time. A finding
    about ranks that are not shown lies over the same steps of those that are."""
    bounds: dict[bool, list[int]] = {True: [], False: []}
    for own in run.ranks if run is not None else ():
        summary, rank = own.summary, shown.get(own.summary.rank)
        if rank is None:
            continue
        placed = rank.placement.place(summary.step_edges).tolist()
        for i, number in enumerate(summary.step_numbers.tolist()):
            if number in finding.steps and (rank.steps is None or number in rank.steps):
                bounds[summary.rank in finding.ranks] += placed[i : i + 2]
    found = bounds[True] or bounds[False]
    return (min(found), max(found)) if found else (1, 0)


_SEQUENCE = 1
WORDS = texts("views", "timeline")
_Levels = list[tuple[int, float]]  # from a moment (ns) on: a value
_Bundles = Mapping[int, tuple[Slice, ...]]  # by collective: a rank's waiting in it, if any, and its transfer


class AddedPackets:
    """Writes the packets that are of no trace; `added` counts their slices."""

    def __init__(self) -> None:
        self.added = 0
        self._packets = Packets(_SEQUENCE)
        self._flows: dict[tuple[int, int], list[int]] = defaultdict(list)

    def hosts_and_ranks(self, hosts: Mapping[int, str | None], shown: Mapping[int, ShownRank]) -> Iterator[bytes]:
        """A row for the findings, one a host where there are several, and below them one a rank. Perfetto's page sorts
        the outermost rows by name, whatever order they have, so ranks have equally many digits."""
        names = list(dict.fromkeys(hosts.get(rank) for rank in shown))
        several, digits = len(names) > 1, len(str(max(shown, default=0)))
        yield self._packets.track(Track(FINDINGS, 0, "findings of traceops", -1))
        if several:
            for number, name in enumerate(names):
                title = f"host {name}" if name else "host not known"
                yield self._packets.track(Track(host_uuid(number), 0, title, number))
        for rank, own in shown.items():
            name = hosts.get(rank)
            title = f"rank {rank:0{digits}}" + (f" · {name}" if name and not several else "")
            parent = host_uuid(names.index(name)) if several else 0
            yield self._packets.track(Track(rank_uuid(own.slot), parent, title, own.slot))

    def findings(
        self, run: CrossRank | None, findings: Sequence[Finding], shown: Mapping[int, ShownRank], span: tuple[int, int]
    ) -> Iterator[bytes]:
        """A row for each finding, the worst first: rows of their own keep their words readable."""
        place = track_numbers(len(shown))
        for order, own in enumerate(finding_slices(run, findings, shown, span)):
            uuid = next(place)
            yield self._packets.track(Track(uuid, FINDINGS, own.name, order))
            yield self._slices(uuid, [self._bar(own)])

    def ranks(self, run: CrossRank, shown: Mapping[int, ShownRank]) -> Iterator[bytes]:
        """Each rank's steps, its waiting and transfer by role, counters, and arrows between ranks."""
        members = members_of(run.matching, shown)
        drawn: dict[tuple[int, int], Drawn] = {}
        bundles: dict[int, dict[int, tuple[Slice, ...]]] = {}
        for own in run.ranks:
            if (rank := own.summary.rank) in shown:
                bundles[rank] = dict(collective_slices(run.matching, own, shown[rank], members[rank]))
                for number, bundle in bundles[rank].items():
                    drawn[number, rank] = Drawn(shown[rank].slot, 0, bundle[-1])
        for flow, (source, _, target, _) in enumerate(arrows(run.matching, drawn), (len(shown) + 1 << 32) + 1):
            self._flows[source].append(flow)
            self._flows[target].append(flow)
        for own in run.ranks:
            if own.summary.rank in bundles:
                yield from self._rank(run, own, shown[own.summary.rank], bundles[own.summary.rank])

    def _rank(self, run: CrossRank, own: RankTimes, shown: ShownRank, bundles: _Bundles) -> Iterator[bytes]:
        place, parent, rank = track_numbers(shown.slot, added=True), rank_uuid(shown.slot), own.summary.rank
        steps = next(place)
        yield self._packets.track(Track(steps, parent, "steps", 0))
        yield self._slices(steps, [self._bar(step) for step in step_slices(own, shown)])
        by_role: dict[Role, dict[int, tuple[Slice, ...]]] = defaultdict(dict)
        roles = run.roles.of_collective
        for number, bundle in bundles.items():
            by_role[roles[number] if number < len(roles) else "unknown"][number] = bundle
        named = len(by_role) > 1 or run.roles.several
        for order, (role, of_role) in enumerate(sorted(by_role.items()), 1):
            words = f" · {ROLES[role]}" if named else ""
            yield from self._waiting(place, parent, order * 10, words, of_role, rank)
            if levels := bandwidth_levels(run.matching, of_role):
                uuid = next(place)
                yield self._packets.track(Track(uuid, parent, f"{WORDS['busbw']}{words}", order * 10 + 8, "GB/s"))
                yield self._packets.counter(uuid, levels)
        # How much later than the first member this rank came to each collective, ms, from when it came. Only where
        # every member waits for the last one: others do not show it.
        delays = []
        for number, bundle in bundles.items():
            met = run.matching.collectives[number]
            if met.last_rank is None or met.links:
                continue
            wait = next(wait for (who, _), wait in zip(met.members, met.wait_ns, strict=True) if who == rank)
            delays.append((bundle[0].start, (max(met.wait_ns) - wait) / 1e6))
        if delays:
            uuid = next(place)
            yield self._packets.track(Track(uuid, parent, WORDS["late"], 90, "ms"))
            yield self._packets.counter(uuid, sorted(delays))

    def _waiting(
        self, place: Iterator[int], parent: int, order: int, words: str, bundles: dict[int, tuple[Slice, ...]],
        rank: int,
    ) -> Iterator[bytes]:  # fmt: skip
        """Waiting and the transfer behind it: each pair on one row, as many rows as overlapping pairs need."""
        spans = [(bundle[0].start, bundle[-1].end) for bundle in bundles.values()]
        rows: dict[int, list[int]] = defaultdict(list)
        for number, lane in zip(bundles, lanes_of(spans, nest=False), strict=True):
            rows[lane].append(number)
        for lane, row in sorted(rows.items()):
            uuid = next(place)
            name = f"wait and transfer{words}" + (f" ({lane + 1})" if lane else "")
            yield self._packets.track(Track(uuid, parent, name, order + min(lane, 7)))
            bars = []
            for number in sorted(row, key=lambda number: bundles[number][0].start):
                *waits, transfer = bundles[number]
                bars += [self._bar(wait) for wait in waits]
                bars.append(self._bar(transfer, tuple(self._flows.get((number, rank), ()))))
            yield self._slices(uuid, bars)

    def _bar(self, own: Slice, flows: tuple[int, ...] = ()) -> Bar:
        return Bar(own.start, own.end, self._packets.body(own.name, "traceops", own.args), flows)

    def _slices(self, uuid: int, bars: Sequence[Bar]) -> bytes:
        self.added += len(bars)
        return self._packets.slices(uuid, bars)


def bandwidth_levels(matching: MatchedCollectives, bundles: _Bundles) -> _Levels:
    """Bus bandwidth, GB/s, over time: of each collective during its transfer only, so waiting does not lower it.
    Collectives that transfer at one time are added up. Those whose size is not known are left out."""
    changes: dict[int, float] = defaultdict(float)
    for number, bundle in bundles.items():
        rate, transfer = busbw_gbs(matching.collectives[number]), bundle[-1]
        if rate is not None and transfer.end > transfer.start:
            changes[transfer.start] += rate
            changes[transfer.end] -= rate
    level, levels = 0.0, []
    for moment in sorted(changes):
        level += changes[moment]
        levels.append((moment, level if level > 1e-9 else 0.0))
    return levels


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
    """What was written: events of the traces, events added to them, and what could not be read. `duration_ns` is from
    the first to the last event of the ranks shown."""

    path: Path
    size_bytes: int
    ranks: tuple[int, ...]
    events: int
    added: int
    duration_ns: int
    problems: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def write_timeline(
    found: Discovery, window: Window, output: Path, *, ranks: Sequence[int] | None = None,
    steps: Sequence[int] | None = None, jobs: int | None = None, progress: Progress | None = None,
    around: str | None = None, announce: Callable[[Expected], None] | None = None,
) -> Timeline:  # fmt: skip
    """Write the chosen ranks and steps (None: all) of one capture window, gzipped if named .gz.

    Chrome's JSON where the file's name ends in .json or .json.gz, else Perfetto's own packets. `around`: a finding such
    as TO-S001, which chooses the ranks and steps that are not given. `announce` is told the size before anything is
    written. All ranks are analysed, also those that are not shown: what a rank waits for may be one of those. Raises
    UsageError for ranks or steps that the run does not have, InputError where nothing can be read or the file cannot be
    written. The file is there whole or not at all."""
    _check_target(output, window)
    chosen = choose_ranks(window, ranks)
    run: CrossRank | None = None
    findings: Sequence[Finding] = ()
    with contextlib.suppress(NoEventsError):  # of ranks that cannot be analysed, the events may be shown all the same
        analysis = run_pipeline(found, window, MapOptions(jobs, progress=progress, own_kernels=own_kernels()))
        run, findings = analysis.run, analysis.report.findings
    usable = {times.summary.rank: times.summary for times in (run.ranks if run is not None else ())}
    if around is not None:
        if run is None:
            raise UsageError("no rank could be analysed, so there is no finding to show")
        place = around_finding(around, findings, run, chosen)
        chosen = choose_ranks(window, place.ranks if ranks is None else ranks)
        steps = place.steps if steps is None else steps
    summaries = [usable[rank] for rank in chosen if rank in usable]
    wanted = choose_steps(summaries, steps)
    form: Form = "json" if output.name.endswith(_JSON) else "perfetto"
    gzipped = output.name.endswith(".gz")
    if announce is not None:
        recorded = max((len(summary.step_numbers) for summary in summaries), default=0)
        files = [file for file in window.files if file.rank in chosen]
        announce(expect_size(files, None if wanted is None else len(wanted), recorded, form, gzipped))
    jobs = _worth(window.files, jobs)
    headers = dict(zip(chosen, map_in_processes(_header, list(chosen.values()), jobs), strict=True))
    placements, borrowed = place_files(headers, run.clocks.fits if run is not None else {})
    times = windows_of(chosen, usable, wanted, jobs)
    shown = {rank: ShownRank(slot, placements[rank], times.get(rank), wanted) for slot, rank in enumerate(chosen)}
    with _beside(output) as folder:
        tasks = [
            PartTask(
                path=path, rank=rank, shown=shown[rank], slots=len(shown), output=folder / str(rank), gzipped=gzipped,
                host=_host(found, usable.get(rank), headers[rank]), form=form,
                streams=stream_words(run, rank) if form == "perfetto" and run is not None else {},
            )
            for rank, path in chosen.items()
        ]  # fmt: skip
        parts = list(map_in_processes(write_part, tasks, jobs))
        return _joined(folder, output, found, tasks, parts, run, findings, tuple(_notes(run, chosen, borrowed)))


def _joined(
    folder: Path, output: Path, found: Discovery, tasks: Sequence[PartTask], parts: Sequence[RankPart],
    run: CrossRank | None, findings: Sequence[Finding], notes: tuple[str, ...],
) -> Timeline:  # fmt: skip
    """Join the parts of the ranks and what traceops adds, in a file that appears whole."""
    own, span = [part.piece for part in parts if part.piece], _span(found, parts)
    shown = {task.rank: task.shown for task in tasks}
    if tasks[0].form == "perfetto":
        # The first piece of the native format lists the tracks, with those that traceops adds.
        packets = AddedPackets()
        with PieceWriter(folder / "added", tasks[0].gzipped) as writer:
            tracks = packets.hosts_and_ranks({task.rank: task.host for task in tasks}, shown)
            of_ranks = packets.ranks(run, shown) if run is not None else ()
            for piece in chain(tracks, packets.findings(run, findings, shown, span), of_ranks):
                writer.write(piece)
        added, pieces = packets.added, [writer.piece, *own]
    else:
        added, last = _write_added(folder / "added", found.root, tasks, run, findings, shown, span)
        with PieceWriter(folder / "head", tasks[0].gzipped) as writer:
            writer.write(b'{"traceEvents":[\n')  # first, for some readers stop at a key they do not know
        pieces = [writer.piece, *own, last]
    join(pieces, folder / output.name)
    os.replace(folder / output.name, output)  # noqa: PTH105
    return Timeline(
        path=output, size_bytes=output.stat().st_size, ranks=tuple(part.rank for part in parts if part.events),
        events=sum(part.events for part in parts), added=added, duration_ns=span[1] - span[0],
        problems=(*found.problems, *((part.path, "; ".join(part.damage)) for part in parts if part.damage)),
        notes=notes,
    )  # fmt: skip


def _span(found: Discovery, parts: Sequence[RankPart]) -> tuple[int, int]:
    """First and last moment of all events, ns on the timeline."""
    firsts = [part.first_ns for part in parts if part.first_ns is not None]
    lasts = [part.last_ns for part in parts if part.last_ns is not None]
    if not firsts or not lasts:
        lines = "\n".join(f"  {part.path}: {'; '.join(part.damage) or 'no events'}" for part in parts[:20])
        raise InputError(f"{found.root}: none of the traces holds an event that could be read:\n{lines}")
    return min(firsts), max(lasts)


def _write_added(
    path: Path, root: str, tasks: Sequence[PartTask], run: CrossRank | None, findings: Sequence[Finding],
    shown: Mapping[int, ShownRank], span: tuple[int, int],
) -> tuple[int, CompressedPiece]:  # fmt: skip
    """The last piece: the tracks traceops adds, and what follows the events; and how many events it adds."""
    added = 0
    encode = msgspec.json.Encoder().encode
    with PieceWriter(path, tasks[0].gzipped) as writer:
        for events in rank_tracks(run, shown) if run is not None else ():
            added += sum(event["ph"] != "M" for event in events)
            if events:
                writer.write(encode(events)[1:-1] + b",\n")
        # Events of a process of its own, with `finding_slices` in it
        slices = list(finding_slices(run, findings, shown, span))
        events = named_place("process", FINDINGS_PID, 0, "traceops findings", 0)
        lanes = lanes_of([(own.start, own.end) for own in slices], nest=True)
        for lane in range(1, max(lanes, default=0) + 2):
            title = "findings" + (f" {lane}" if lane > 1 else "")
            events += named_place("thread", FINDINGS_PID, lane, title, lane)
        top = events + [slice_event(own, FINDINGS_PID, lane + 1) for own, lane in zip(slices, lanes, strict=True)]
        added += sum(event["ph"] != "M" for event in top)
        trailer = {
            "baseTimeNanoseconds": tasks[0].shown.placement.origin_ns,
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
        yield f"{listed('rank', borrowed)}: {WORDS['no_base']}"
    if run is None or len(chosen) < 2:
        return
    if apart := [rank for rank in run.clocks.unaligned if rank in chosen]:
        yield f"{listed('rank', apart)}: {WORDS['not_aligned']}"
    if (residual := run.clocks.residual_p95_ns) is not None:
        yield first_phrase("views", "timeline", "times", count=run.clocks.anchors, within=f"{residual / 1e3:.0f}")
