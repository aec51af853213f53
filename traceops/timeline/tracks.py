"""The tracks traceops adds for each rank: its steps, its waiting and transfer, and who waited for whom."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct, field

from traceops.across.cross_rank import CrossRank
from traceops.across.links import collective_bytes
from traceops.across.match import MatchedCollectives
from traceops.across.rank_times import RankTimes
from traceops.across.roles import ROLE_ORDER
from traceops.core.documents import well_formed
from traceops.core.errors import InputError, problem_of
from traceops.core.units import events_text, size_text
from traceops.core.words import ROLES, Role
from traceops.measure.steps import NO_STEP
from traceops.timeline.keep import StepFilter, Timed, overlaps
from traceops.timeline.packets import RankPackets, lanes_of
from traceops.timeline.pieces import CannotWrite, CompressedPiece, PieceWriter
from traceops.timeline.processes import Ids, Processes, first_id, named_place, overview_pid, rank_title
from traceops.timeline.reader import LONGEST_NS, Placement, WholeEvent, format_us, parse_us, read_whole_events
from traceops.traces.source import chunks, open_binary
from traceops.words.catalogue import texts


class Slice(Struct, frozen=True):
    """A slice to draw, ns since the timeline's zero."""

    name: str
    start: int
    end: int
    args: dict[str, Any] = field(default_factory=dict)


def slice_event(own: Slice, pid: int, tid: int) -> dict[str, Any]:
    """The slice as a complete event."""
    about = {"ph": "X", "cat": "traceops", "name": own.name, "pid": pid, "tid": tid}
    return {**about, "ts": raw_us(own.start), "dur": raw_us(own.end - own.start), "args": own.args}


def raw_us(ns: int) -> msgspec.Raw:
    """Nanoseconds as JSON's decimal µs."""
    return msgspec.Raw(format_us(ns))


_STEPS_TID = 1
_COMM_TID = 2  # and the following, as many as overlapping collectives need
_ARROW_FROM_NS = 100_000  # shorter waits are drawn, but no arrow says for whom

Event = dict[str, Any]


class ShownRank(Struct, frozen=True):
    """A rank that is on the timeline: its place among the ranks and in time. Of its time only `windows` are shown (ns,
    its own clock), which are those of `steps`; None for all."""

    slot: int
    placement: Placement
    windows: tuple[tuple[int, int], ...] | None = None
    steps: frozenset[int] | None = None


class Drawn(Struct, frozen=True):
    """Where one rank's transfer of a collective lies."""

    slot: int
    tid: int
    transfer: Slice


def rank_tracks(run: CrossRank, shown: Mapping[int, ShownRank]) -> Iterator[list[Event]]:
    """Events of each rank's tracks, and last the arrows between them."""
    members = members_of(run.matching, shown)
    drawn: dict[tuple[int, int], Drawn] = {}  # (number of the collective, rank)
    for own in run.ranks:
        if (rank := own.summary.rank) not in shown:
            continue
        pid = overview_pid(shown[rank].slot)
        events = named_place("process", pid, 0, rank_title(rank, "overview"), pid)
        events += named_place("thread", pid, _STEPS_TID, "steps", _STEPS_TID)
        events += [slice_event(step, pid, _STEPS_TID) for step in step_slices(own, shown[rank])]
        bundles = dict(collective_slices(run.matching, own, shown[rank], members[rank]))
        lanes = lanes_of([(bundle[0].start, bundle[-1].end) for bundle in bundles.values()], nest=False)
        for lane in range(max(lanes, default=-1) + 1):
            title = "wait and transfer" + (f" {lane + 1}" if lane else "")
            events += named_place("thread", pid, _COMM_TID + lane, title, _COMM_TID + lane)
        for (number, bundle), lane in zip(bundles.items(), lanes, strict=True):
            events += [slice_event(part, pid, _COMM_TID + lane) for part in bundle]
            drawn[number, rank] = Drawn(shown[rank].slot, _COMM_TID + lane, bundle[-1])
        yield events
    yield list(_arrow_events(run.matching, drawn, first_id(len(shown))))


def step_slices(own: RankTimes, shown: ShownRank) -> Iterator[Slice]:
    """The rank's steps, with the ledger of each."""
    placed = shown.placement.place(own.summary.step_edges).tolist()
    for i, number in enumerate(own.summary.step_numbers.tolist()):
        if placed[i + 1] <= placed[i] or (shown.steps is not None and number not in shown.steps):
            continue
        args: dict[str, Any] = {"duration_ms": int(own.duration[i]) / 1e6}
        args |= {f"{name}_ms": int(ns[i]) / 1e6 for name, ns in own.buckets.items()}
        name = texts("views", "timeline")["whole_trace"] if number == NO_STEP else f"step {number}"
        yield Slice(name, placed[i], placed[i + 1], args)


def members_of(matching: MatchedCollectives, shown: Iterable[int]) -> dict[int, list[tuple[int, int, int]]]:
    """For each rank that is shown: number of the collective, position in its communication, waiting in ns."""
    members: dict[int, list[tuple[int, int, int]]] = {rank: [] for rank in shown}
    for number, collective in enumerate(matching.collectives):
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            if rank in members:
                members[rank].append((number, position, wait))
    return members


def collective_slices(
    matching: MatchedCollectives, own: RankTimes, shown: ShownRank, members: list[tuple[int, int, int]]
) -> Iterator[tuple[int, tuple[Slice, ...]]]:
    """The rank's waiting in each collective, where it waited, and the transfer behind it."""
    number, position, wait = np.array(members, dtype=np.int64).reshape(-1, 3).T
    start, end = own.summary.comm.start[position], own.summary.comm.end[position]
    moments = [shown.placement.place(t).tolist() for t in (start, start + wait, end)]
    for i, (begin, turn, finish) in enumerate(zip(*moments, strict=True)):
        if shown.windows is not None and not overlaps(shown.windows, int(start[i]), int(end[i])):
            continue
        collective = matching.collectives[number[i]]
        args = {
            "group": well_formed(collective.description) or f"{len(collective.group)} ranks",
            "ranks": list(collective.group),
            "op": well_formed(collective.op),
            "bytes": collective_bytes(collective),
            "last_rank": collective.last_rank,
            "wait_ms": int(wait[i]) / 1e6,
            "transfer_ms": collective.transfer_ns / 1e6,
        }
        nbytes = collective_bytes(collective)
        size = "" if nbytes is None else f" {size_text(nbytes, 1)}"
        transfer = Slice(f"transfer {well_formed(collective.op)}{size}", turn, finish, args)
        if turn > begin:
            last = collective.last_rank
            name = "wait" if last in (None, own.summary.rank) else f"wait for rank {last}"
            yield int(number[i]), (Slice(name, begin, turn, args), transfer)
        else:
            yield int(number[i]), (transfer,)


def arrows(
    matching: MatchedCollectives, drawn: Mapping[tuple[int, int], Drawn]
) -> Iterator[tuple[tuple[int, int], int, tuple[int, int], int]]:
    """From the transfer of the rank that came last to that of the rank that waited longest for it. Each as key in
    `drawn` (number of the collective, rank) and moment, ns, of both ends."""
    for number, collective in enumerate(matching.collectives):
        wait = max(collective.wait_ns)
        waiter = collective.members[collective.wait_ns.index(wait)][0]
        first, second = ((number, -1 if collective.last_rank is None else collective.last_rank), (number, waiter))
        source, target = drawn.get(first), drawn.get(second)
        if wait < _ARROW_FROM_NS or source is None or target is None:
            continue
        start = source.transfer.start
        landing = max(target.transfer.start, start)  # clocks agree to some µs only: no arrow back in time
        if landing < target.transfer.end:
            yield first, start, second, landing


def _arrow_events(matching: MatchedCollectives, drawn: Mapping[tuple[int, int], Drawn], first: int) -> Iterator[Event]:
    for flow, (source, start, target, landing) in enumerate(arrows(matching, drawn), first + 1):
        about = {"cat": "traceops", "name": "waited for", "id": flow}
        for phase, at, moment in (("s", drawn[source], start), ("f", drawn[target], landing)):
            event = {"ph": phase, **about, "pid": overview_pid(at.slot), "tid": at.tid, "ts": raw_us(moment)}
            yield event if phase == "s" else {**event, "bp": "e"}


def stream_words(run: CrossRank, rank: int) -> dict[int, str]:
    """What the device's streams of a rank carry: 'compute', or communication with its roles where these are told."""
    times = run.times_of(rank)
    own = None if times is None else times.summary
    if own is None or not own.on_gpu:
        return {}
    roles: dict[int, set[Role]] = defaultdict(set)
    for stream, role in zip(own.comm.stream.tolist(), run.roles.of_event.get(rank, ()), strict=False):
        roles[stream].add(role)
    words = {own.compute_stream: "compute"}
    for stream, found in roles.items():
        told = [ROLES[role] for role in ROLE_ORDER if role in found and role != "unknown"]
        words[stream] = ", ".join(["communication", *told])
    return words


Form = Literal["json", "perfetto"]

_ABSENT = msgspec.Raw(b"null")
_NOTES_PID = msgspec.Raw(b'"profiler"')
_MAY_STRETCH = 0.05  # how far beyond its events the profiler's notes on itself may reach, as a share


class PartTask(Struct, frozen=True):
    """What to write of one rank, as it is `shown` among the `slots` of the timeline. `form` is Chrome's JSON or
    Perfetto's own packets."""

    path: str
    rank: int
    shown: ShownRank
    slots: int
    host: str | None
    output: Path
    gzipped: bool
    form: Form = "json"
    streams: Mapping[int, str] = field(default_factory=dict)  # what runs on them


class RankPart(Struct, frozen=True):
    """A rank's piece of the timeline; `piece` is None where nothing could be read. `first_ns` and `last_ns` bound its
    events, ns since the timeline's zero; `damage` says what was lost."""

    rank: int
    path: str
    piece: CompressedPiece | None
    events: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    damage: tuple[str, ...] = ()


def _decoded(events: list[Any], encoded: bytes, rewriter: _Rewriter) -> list[Any]:
    """The events as Python has them, without those that hold a number which nothing can hold, such as 1e999."""
    try:
        decoded: list[Any] = msgspec.json.decode(encoded)
    except msgspec.DecodeError:
        decoded = []
        for event in events:
            try:
                decoded.append(msgspec.json.decode(msgspec.json.encode(event)))
            except msgspec.DecodeError:
                rewriter.untimed += 1
    return decoded


def write_part(task: PartTask) -> RankPart:
    """Write one rank's events. A file that cannot be opened is damage, no error."""
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects that are all freed by reference count
    rewriter = _Rewriter(task)
    packets = RankPackets(task.shown.slot, task.streams) if task.form == "perfetto" else None
    encode = msgspec.json.Encoder().encode

    def write(events: list[Any]) -> None:
        if not events:
            return
        encoded = encode(events)
        if packets is None:
            writer.write(encoded[1:-1] + b",\n")
        else:
            packets.take(_decoded(events, encoded, rewriter))

    try:
        with open_binary(task.path) as file, PieceWriter(task.output, task.gzipped) as writer:
            scanner = read_whole_events(chunks(file), lambda batch: write(rewriter.rewrite(batch)))
            write(rewriter.rest())
            if rewriter.events:
                write(rewriter.processes.titles())
            for piece in packets.write() if packets is not None else ():
                writer.write(piece)
    except CannotWrite:
        raise
    except InputError as error:
        task.output.unlink(missing_ok=True)
        return RankPart(task.rank, task.path, None, damage=(problem_of(error),))
    finally:
        if collecting:
            gc.enable()
    counts = {"not readable": scanner.unreadable, "without a valid time": rewriter.untimed}
    if packets is not None:
        counts[texts("views", "timeline")["unknown_kinds"]] = packets.untold
    damage = [*dict.fromkeys(scanner.damage), *(f"{events_text(n)} {what}" for what, n in counts.items() if n)]
    return RankPart(
        task.rank, task.path, writer.piece, rewriter.events, rewriter.first_ns, rewriter.last_ns, tuple(damage)
    )


class _Rewriter:
    """Turns events of one file into events of the timeline."""

    def __init__(self, task: PartTask) -> None:
        self.processes = Processes(task.rank, task.shown.slot, task.slots, task.host)
        self.events = self.untimed = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._placement = task.shown.placement
        self._ids = Ids(task.shown.slot)
        self._filter = StepFilter(task.shown.windows) if task.shown.windows is not None else None
        self._notes: list[Timed] = []

    def rewrite(self, batch: list[WholeEvent]) -> list[WholeEvent]:
        """The batch's events to write now."""
        base, chosen = self._placement.base_ns, self._filter
        kept: list[Timed] = []
        for event in batch:
            if (phase := bytes(event.get("ph", _ABSENT))) == b'"M"':
                self.processes.describe(event)
                continue
            ns = parse_us(bytes(event.get("ts", _ABSENT)))
            duration = _duration(event) if phase == b'"X"' else 0
            if ns is None or duration is None:
                self.untimed += 1
                continue
            timed = event, ns + base, duration
            if _is_note(event):
                event["pid"] = _NOTES_PID  # one process for them, where the profiler has three
                self._notes.append(timed)
            elif chosen is None or chosen.keeps(timed, phase):
                kept.append(timed)
        return self._place(kept)

    def rest(self) -> list[WholeEvent]:
        """What could be decided only when all events had passed."""
        written = self._place(self._filter.held() if self._filter is not None else [])
        written += self._place(self._notes_within())
        for event in self.processes.metadata():
            if (ns := parse_us(bytes(event.get("ts", _ABSENT)))) is not None:
                moment = self._placement.place_one(ns + self._placement.base_ns)
                event["ts"] = raw_us(moment)
            written.append(event)
            self.events += 1
        return written

    def _place(self, timed: list[Timed]) -> list[WholeEvent]:
        """The events with time, process and ids as they are on the timeline."""
        if not timed:
            return []
        starts = np.array([start for _, start, _ in timed], dtype=np.int64)
        durations = np.array([duration for _, _, duration in timed], dtype=np.int64)
        placed = self._placement.place(starts)
        if self._placement.clock is not None:
            # Durations on the common clock, where it runs at another pace: else slices would no longer nest.
            corrected = self._placement.place(starts + durations) - placed
            for at in np.flatnonzero(corrected != durations).tolist():
                timed[at][0]["dur"] = raw_us(int(corrected[at]))
        first, last = int(placed.min()), int((placed + durations).max())
        self.first_ns = first if self.first_ns is None else min(self.first_ns, first)
        self.last_ns = last if self.last_ns is None else max(self.last_ns, last)
        number = self.processes.number
        for (event, _, _), start in zip(timed, placed.tolist(), strict=True):
            event["ts"] = raw_us(start)
            event["pid"] = number(event)
            if "id" in event or "bind_id" in event or "id2" in event:
                self._ids.rewrite(event)
        self.events += len(timed)
        return [event for event, _, _ in timed]

    def _notes_within(self) -> list[Timed]:
        """The profiler's notes on itself, unless the timeline grew longer by them."""
        if self.first_ns is None or self.last_ns is None:
            return self._notes if self._filter is None else []
        slack = int(_MAY_STRETCH * (self.last_ns - self.first_ns))
        first, last = self.first_ns - slack, self.last_ns + slack
        place = self._placement.place_one
        return [
            (event, start, duration)
            for event, start, duration in self._notes
            if first <= place(start) and place(start + duration) <= last
        ]


def _duration(event: WholeEvent) -> int | None:
    """A slice's duration in ns, 0 where the file has none, None where it is no possible one."""
    if (text := bytes(event.get("dur", _ABSENT))) == b"null":
        return 0
    ns = parse_us(text)
    return ns if ns is not None and 0 <= ns < LONGEST_NS else None


def _is_note(event: WholeEvent) -> bool:
    """Whether the profiler wrote the event about its own window."""
    pid = bytes(event.get("pid", _ABSENT))
    if not pid.startswith(b'"'):
        return False
    name = bytes(event.get("name", _ABSENT))
    return (
        bytes(event.get("cat", _ABSENT)) == b'"Trace"'
        or name == b'"Record Window End"'
        or name.startswith(b'"Iteration Start:')
    )
