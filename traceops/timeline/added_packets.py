"""What traceops adds to a timeline in Perfetto's native format: hosts, ranks, findings, steps, waiting, counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from traceops.across.cross_rank import CrossRank
from traceops.across.links import busbw_gbs
from traceops.across.match import MatchedCollectives
from traceops.across.rank_times import RankTimes
from traceops.across.roles import ROLE_ORDER
from traceops.core.findings import Finding
from traceops.core.words import ROLES, Role
from traceops.timeline.packets import Bar, Packets, Track
from traceops.timeline.part import PartTask
from traceops.timeline.pieces import CompressedPiece, PieceWriter
from traceops.timeline.processes import FINDINGS, TrackNumbers, host_uuid, rank_uuid, title_events
from traceops.timeline.tracks import (
    Drawn,
    ShownRank,
    Slice,
    arrows,
    collective_slices,
    members_of,
    slice_event,
    spread,
    step_slices,
    track_events,
    well_formed,
)

# The track on top of the timeline: what traceops found, over the steps it was found in.


FINDINGS_PID = 1  # below every rank's


def findings_track(
    run: CrossRank | None, findings: Sequence[Finding], shown: Mapping[int, ShownRank], window: tuple[int, int]
) -> list[dict[str, Any]]:
    """Events of a process of its own, with `finding_slices` in it."""
    bundles = [(own,) for own in finding_slices(run, findings, shown, window)]
    events = title_events(FINDINGS_PID, "traceops findings", 0)
    lanes = spread(bundles, nest=True)
    for lane in range(max(lanes, default=0) + 1):
        events += track_events(FINDINGS_PID, lane + 1, "findings" + (f" {lane + 1}" if lane else ""))
    return events + [slice_event(own, FINDINGS_PID, lane + 1) for (own,), lane in zip(bundles, lanes, strict=True)]


def finding_slices(
    run: CrossRank | None, findings: Sequence[Finding], shown: Mapping[int, ShownRank], window: tuple[int, int]
) -> Iterator[Slice]:
    """A slice for each finding, over the steps it names or else the whole `window` (ns on the timeline).

    One that names steps none of which is shown is left out.
    """
    for finding in findings:
        start, end = _steps_of(finding, run, shown) if finding.steps else window
        start, end = max(start, window[0]), min(end, window[1])
        if start <= end:
            name = well_formed(f"{finding.rule} {finding.title}")
            yield Slice(name, start, end, well_formed(_describe(finding)))


def _describe(finding: Finding) -> dict[str, Any]:
    return {
        "title": finding.title,
        "message": finding.message,
        "advice": finding.advice,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "cause": finding.cause,
        "ranks": list(finding.ranks),
        "steps": list(finding.steps),
        "impact_ms": finding.impact_ms,
    }


def _steps_of(finding: Finding, run: CrossRank | None, shown: Mapping[int, ShownRank]) -> tuple[int, int]:
    """From first to last moment of a finding's steps on its ranks, as far as both are shown; else no time.

    A finding about ranks that are not shown lies over the same steps of those that are.
    """
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
_Levels = list[tuple[int, float]]  # from a moment (ns) on: a value


def write_packets(
    path: Path,
    tasks: Sequence[PartTask],
    run: CrossRank | None,
    findings: Sequence[Finding],
    shown: Mapping[int, ShownRank],
    span: tuple[int, int],
) -> tuple[int, CompressedPiece]:
    """The first piece of the native format: which tracks there are, and those that traceops adds."""
    packets = AddedPackets()
    with PieceWriter(path, tasks[0].gzipped) as writer:
        for piece in packets.hosts_and_ranks({task.rank: task.host for task in tasks}, shown):
            writer.write(piece)
        for piece in packets.findings(run, findings, shown, span):
            writer.write(piece)
        for piece in packets.ranks(run, shown) if run is not None else ():
            writer.write(piece)
    return packets.added, writer.piece


class AddedPackets:
    """Writes the packets that are of no trace; `added` counts their slices."""

    def __init__(self) -> None:
        self.added = 0
        self._packets = Packets(_SEQUENCE)

    def hosts_and_ranks(self, hosts: Mapping[int, str | None], shown: Mapping[int, ShownRank]) -> Iterator[bytes]:
        """A row for the findings, one a host where there are several, and below them one a rank.

        Perfetto's page sorts the outermost rows by name, whatever order they have, so ranks have equally many digits.
        """
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
        place = TrackNumbers(len(shown))
        for order, own in enumerate(finding_slices(run, findings, shown, span)):
            uuid = place.next()
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
        flows: dict[tuple[int, int], list[int]] = defaultdict(list)
        for flow, (source, _, target, _) in enumerate(arrows(run.matching, drawn), (len(shown) + 1 << 32) + 1):
            flows[source].append(flow)
            flows[target].append(flow)
        for own in run.ranks:
            if own.summary.rank in bundles:
                yield from self._rank(run, own, shown[own.summary.rank], bundles[own.summary.rank], flows)

    def _rank(
        self,
        run: CrossRank,
        own: RankTimes,
        shown: ShownRank,
        bundles: Mapping[int, tuple[Slice, ...]],
        flows: Mapping[tuple[int, int], list[int]],
    ) -> Iterator[bytes]:
        place, parent, rank = TrackNumbers(shown.slot, added=True), rank_uuid(shown.slot), own.summary.rank
        steps = place.next()
        yield self._packets.track(Track(steps, parent, "steps", 0))
        yield self._slices(steps, [self._bar(step) for step in step_slices(own, shown)])
        by_role: dict[Role, list[int]] = defaultdict(list)
        for number in bundles:
            by_role[_role(run, number)].append(number)
        named = len(by_role) > 1 or run.roles.several
        for order, (role, numbers) in enumerate(sorted(by_role.items()), 1):
            words = f" · {ROLES[role]}" if named else ""
            yield from self._waiting(place, parent, order * 10, words, numbers, bundles, rank, flows)
            if levels := bandwidth_levels(run.matching, {number: bundles[number] for number in numbers}):
                uuid = place.next()
                yield self._packets.track(
                    Track(uuid, parent, f"bus bandwidth while transferring{words}", order * 10 + 8, "GB/s")
                )
                yield self._packets.counter(uuid, levels)
        if late := lateness_levels(run.matching, rank, bundles):
            uuid = place.next()
            yield self._packets.track(Track(uuid, parent, "came later than the first, at each collective", 90, "ms"))
            yield self._packets.counter(uuid, late)

    def _waiting(
        self,
        place: TrackNumbers,
        parent: int,
        order: int,
        words: str,
        numbers: Sequence[int],
        bundles: Mapping[int, tuple[Slice, ...]],
        rank: int,
        flows: Mapping[tuple[int, int], list[int]],
    ) -> Iterator[bytes]:
        """Waiting and the transfer behind it: each pair on one row, as many rows as overlapping pairs need."""
        whole = {Bar(bundles[number][0].start, bundles[number][-1].end, b"", (number,)): number for number in numbers}
        for lane, row in enumerate(lanes_apart(list(whole))):
            uuid = place.next()
            name = f"wait and transfer{words}" + (f" ({lane + 1})" if lane else "")
            yield self._packets.track(Track(uuid, parent, name, order + min(lane, 7)))
            bars = []
            for number in (whole[bar] for bar in row):
                *waits, transfer = bundles[number]
                bars += [self._bar(wait) for wait in waits]
                bars.append(self._bar(transfer, tuple(flows.get((number, rank), ()))))
            yield self._slices(uuid, bars)

    def _bar(self, own: Slice, flows: tuple[int, ...] = ()) -> Bar:
        return Bar(own.start, own.end, self._packets.body(own.name, "traceops", own.args), flows)

    def _slices(self, uuid: int, bars: Sequence[Bar]) -> bytes:
        self.added += len(bars)
        return self._packets.slices(uuid, bars)


def lanes_apart(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Bars on as few rows as they need, so that on each they do not even nest."""
    rows: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.end)):
        row = next((row for row in rows if row[-1].end <= bar.start), None)
        if row is None:
            rows.append([bar])
        else:
            row.append(bar)
    return rows


def bandwidth_levels(matching: MatchedCollectives, bundles: Mapping[int, tuple[Slice, ...]]) -> _Levels:
    """Bus bandwidth, GB/s, over time: of each collective during its transfer only, so waiting does not lower it.

    Collectives that transfer at one time are added up. Those whose size is not known are left out.
    """
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


def lateness_levels(matching: MatchedCollectives, rank: int, bundles: Mapping[int, tuple[Slice, ...]]) -> _Levels:
    """How much later than the first member this rank came to each collective, ms, from when it came.

    Only where every member waits for the last one: others do not tell.
    """
    levels = []
    for number, bundle in bundles.items():
        own = matching.collectives[number]
        if own.last_rank is None or own.links:
            continue
        wait = next(wait for (who, _), wait in zip(own.members, own.wait_ns, strict=True) if who == rank)
        levels.append((bundle[0].start, (max(own.wait_ns) - wait) / 1e6))
    return sorted(levels)


def _role(run: CrossRank, number: int) -> Role:
    return run.roles.of_collective[number] if number < len(run.roles.of_collective) else "unknown"


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
