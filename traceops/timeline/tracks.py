"""The tracks traceops adds for each rank: its steps, its waiting and transfer, and who waited for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from traceops.across.cross_rank import CrossRank
from traceops.across.links import collective_bytes
from traceops.across.match import Collective, MatchedCollectives
from traceops.across.rank_times import RankTimes
from traceops.across.roles import ROLE_ORDER
from traceops.core.units import size_text
from traceops.core.words import ROLES, Role
from traceops.measure.steps import NO_STEP
from traceops.timeline.keep import overlaps
from traceops.timeline.processes import first_id, overview_pid, rank_title, title_events
from traceops.timeline.times import Placement, format_us
from traceops.words.catalogue import texts

# Slices on tracks: spread so that on each they nest or do not touch, as the viewer demands.


class Slice(Struct, frozen=True):
    """A slice to draw, ns since the timeline's zero."""

    name: str
    start: int
    end: int
    args: dict[str, Any] = field(default_factory=dict)


def spread(bundles: Sequence[tuple[Slice, ...]], nest: bool = False) -> list[int]:
    """The lane of each bundle of adjacent slices, counted from 0, on as few lanes as they need.

    On a lane bundles do not overlap. With `nest` one may lie whole within another, which only bundles of
    one slice can.
    """
    lanes: dict[int, int] = {}
    open_ends: list[list[int]] = []  # of each lane's bundles that a later one may lie in
    spans = [(own[0].start, own[-1].end) for own in bundles]
    for at in sorted(range(len(bundles)), key=lambda at: (spans[at][0], -spans[at][1])):
        start, end = spans[at]
        for ends in open_ends:
            while ends and ends[-1] <= start:
                ends.pop()
        free = (n for n, ends in enumerate(open_ends) if not ends or (nest and end <= ends[-1]))
        lanes[at] = next(free, len(open_ends))
        if lanes[at] == len(open_ends):
            open_ends.append([])
        open_ends[lanes[at]].append(end)
    return [lanes[at] for at in range(len(bundles))]


def slice_event(own: Slice, pid: int, tid: int) -> dict[str, Any]:
    """The slice as a complete event."""
    return {
        "ph": "X",
        "cat": "traceops",
        "name": own.name,
        "pid": pid,
        "tid": tid,
        "ts": raw_us(own.start),
        "dur": raw_us(own.end - own.start),
        "args": own.args,
    }


def track_events(pid: int, tid: int, title: str) -> list[dict[str, Any]]:
    """Metadata events that name a track and give its place."""
    return [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": title}},
        {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}},
    ]


def raw_us(ns: int) -> msgspec.Raw:
    """Nanoseconds as JSON's decimal µs."""
    return msgspec.Raw(format_us(ns))


def well_formed(value: Any) -> Any:
    """The same without halves of surrogate pairs, which file names and metadata may hold and JSON may not."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {str(key): well_formed(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [well_formed(part) for part in value]
    return value


_STEPS_TID = 1
_COMM_TID = 2  # and the following, as many as overlapping collectives need
_ARROW_FROM_NS = 100_000  # shorter waits are drawn, but no arrow says for whom

Event = dict[str, Any]


class ShownRank(Struct, frozen=True):
    """A rank that is on the timeline: its place among the ranks and in time.

    Of its time only `windows` are shown (ns, its own clock), which are those of `steps`; None for all.
    """

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
        rank = own.summary.rank
        if rank not in shown:
            continue
        pid = overview_pid(shown[rank].slot)
        events = title_events(pid, rank_title(rank, "overview"), pid)
        events += track_events(pid, _STEPS_TID, "steps")
        events += [slice_event(step, pid, _STEPS_TID) for step in step_slices(own, shown[rank])]
        bundles = dict(collective_slices(run.matching, own, shown[rank], members[rank]))
        lanes = spread(list(bundles.values()))
        for lane in range(max(lanes, default=-1) + 1):
            title = "wait and transfer" + (f" {lane + 1}" if lane else "")
            events += track_events(pid, _COMM_TID + lane, title)
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
        args = _describe(collective, int(wait[i]))
        nbytes = collective_bytes(collective)
        size = "" if nbytes is None else f" {size_text(nbytes, 1)}"
        transfer = Slice(f"transfer {well_formed(collective.op)}{size}", turn, finish, args)
        if turn > begin:
            last = collective.last_rank
            name = "wait" if last in (None, own.summary.rank) else f"wait for rank {last}"
            yield int(number[i]), (Slice(name, begin, turn, args), transfer)
        else:
            yield int(number[i]), (transfer,)


def _describe(collective: Collective, wait: int) -> dict[str, Any]:
    return {
        "group": well_formed(collective.description) or f"{len(collective.group)} ranks",
        "ranks": list(collective.group),
        "op": well_formed(collective.op),
        "bytes": collective_bytes(collective),
        "last_rank": collective.last_rank,
        "wait_ms": wait / 1e6,
        "transfer_ms": collective.transfer_ns / 1e6,
    }


def arrows(
    matching: MatchedCollectives, drawn: Mapping[tuple[int, int], Drawn]
) -> Iterator[tuple[tuple[int, int], int, tuple[int, int], int]]:
    """From the transfer of the rank that came last to that of the rank that waited longest for it.

    Each as key in `drawn` (number of the collective, rank) and moment, ns, of both ends.
    """
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
        yield _flow_event("s", flow, drawn[source], start)
        yield _flow_event("f", flow, drawn[target], landing) | {"bp": "e"}


def _flow_event(phase: str, flow: int, at: Drawn, moment: int) -> Event:
    return {
        "ph": phase,
        "cat": "traceops",
        "name": "waited for",
        "id": flow,
        "pid": overview_pid(at.slot),
        "tid": at.tid,
        "ts": raw_us(moment),
    }


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
