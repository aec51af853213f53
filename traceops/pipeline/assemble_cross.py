"""The parts of a Report that compare ranks: what-if, lateness, arrivals, bandwidth, critical path, timeline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np

from traceops.across import links
from traceops.across.cross_rank import CrossRank
from traceops.across.groups import Ranks
from traceops.across.lateness import CAUSES, critical_path
from traceops.across.match import Collective
from traceops.across.rank_times import RankTimes, RoleTimes
from traceops.across.replay.simulate import measured_step_ns
from traceops.across.replay.what_if import role_change
from traceops.across.roles import ROLE_ORDER, GroupRole
from traceops.core.arrays import Int, mean_ms, median, percentiles, subtract, union
from traceops.core.units import stored
from traceops.core.words import Role
from traceops.measure.ledger import OWN_BUCKETS
from traceops.measure.program import EXPOSED, PAINTED
from traceops.pipeline.assemble_tables import known_median, ms_of
from traceops.report.rows import CollectiveRow, PipelineRow, ReferenceRow, RoleRow, StageRow, WhatIfRow
from traceops.report.step_times import BubbleTimes
from traceops.report.summary import Clocks, Replay
from traceops.report.tables import ArrivalRow, BandwidthRow, LatenessRow, PathRow, Tables, TimelineRow

_MOST_PLACES = 64


def collective_rows(run: CrossRank) -> tuple[CollectiveRow, ...]:
    """A row per group, operation and size: count, median transfer and waiting, bus bandwidth. Bandwidths in GB/s (1e9
    bytes) by nccl-tests' rules; null where the size is not known."""
    by_kind: dict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    places = places_in_steps(run)
    for collective, role in zip(run.matching.collectives, run.roles.of_collective, strict=True):
        by_kind[
            collective.group, collective.description, collective.op, collective.elements, collective.dtype, role
        ].append(collective)
    rows = []
    for (group, description, op, _, _, role), same in by_kind.items():
        nbytes = links.collective_bytes(same[0])
        transfer = median([c.transfer_ns for c in same])
        waits = [max(c.wait_ns) for c in same]
        busbw = None
        if nbytes and transfer > 0:
            busbw = stored(nbytes / transfer * links.bus_factor(op, len(group)))  # bytes per ns are GB/s
        rows.append(
            CollectiveRow(
                group=description or f"{len(group)} ranks",
                ranks=tuple(group),
                op=op,
                bytes=nbytes,
                count=len(same),
                median_ms=stored(transfer / 1e6),
                total_ms=stored(sum(c.transfer_ns for c in same) / 1e6),
                median_wait_ms=stored(median(waits) / 1e6),
                busbw_gbs=busbw,
                role=role,
                places=tuple(sorted({places[id(c)][0] for c in same if id(c) in places}))[:_MOST_PLACES],
                places_of=next((places[id(c)][1] for c in same if id(c) in places), None),
            )
        )
    return tuple(sorted(rows, key=lambda row: -(row.total_ms or 0.0)))


def places_in_steps(run: CrossRank) -> dict[int, tuple[int, int]]:
    """By a collective's id(): which of its group's in a step it is, from 1, and how many the group has in most steps.
    By the order on its first member. Only of steps that have that many: in another one a place means something else."""
    if run.unit != "step":
        return {}
    by_rank = {times.summary.rank: times.summary for times in run.ranks}
    in_step: dict[tuple[tuple[int, ...], str], dict[int, list[tuple[int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for collective in run.matching.collectives:
        rank, position = collective.members[0]
        summary = by_rank[rank]
        if (step := summary.step_number(position)) is not None and step >= 0 and not collective.links:
            start = int(summary.comm.start[position])
            in_step[collective.group, collective.description][step].append((start, id(collective)))
    found: dict[int, tuple[int, int]] = {}
    for steps in in_step.values():
        usual = Counter(len(own) for own in steps.values()).most_common(1)[0][0]
        for own in steps.values():
            if len(own) == usual:
                found |= {key: (place, usual) for place, (_, key) in enumerate(sorted(own), 1)}
    return found


def reference_rows(run: CrossRank) -> tuple[ReferenceRow, ...]:
    """A row a group, operation and class of size (8 MB and more, less), those that lose most time first.

    busbw_gbs: median. reference_source: ``doctor``, ``graph``, ``table``, ``siblings`` (the best group of the same
    kind), null with the other reference columns where nothing is known; below 8 MB latency counts too, and there is
    no percentage. lost_ms: a step, beyond the time at the reference, hidden or not.
    """
    steps = max((len(times.duration) for times in run.ranks), default=1) or 1
    kinds: dict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    roles: dict[tuple[Any, ...], Role] = {}
    for collective, role in zip(run.matching.collectives, run.roles.of_collective, strict=True):
        if links.busbw_gbs(collective) is not None and collective.last_rank is not None:
            large = (links.collective_bytes(collective) or 0) >= links.LARGE_BYTES
            roles[collective.description, collective.op, large, collective.group] = role
            kinds[collective.description, collective.op, large, collective.group].append(collective)
    medians = {kind: float(median([links.busbw_gbs(c) or 0.0 for c in same])) for kind, same in kinds.items()}
    rows = []
    for kind, same in kinds.items():
        description, op, large, group = kind
        known = run.reference(group) or _best_sibling(kind, medians)
        sizes = [links.collective_bytes(c) or 0 for c in same]
        lost_ns = [max(c.transfer_ns - links.reference_transfer_ns(c, known), 0.0) for c in same]
        rows.append(
            ReferenceRow(
                group=description or f"{len(group)} ranks",
                ranks=tuple(group),
                op=op,
                bytes_min=min(sizes),
                bytes_p50=int(median(sizes)),
                bytes_max=max(sizes),
                count=len(same),
                busbw_gbs=stored(medians[kind]),
                reference_gbs=None if known is None else stored(known.busbw_gbs),
                reference_source=None if known is None else known.source,
                reference_link=None if known is None else known.link,
                reference_pct=None if known is None or not large else stored(100.0 * medians[kind] / known.busbw_gbs),
                lost_ms=None if known is None else stored(sum(lost_ns) / 1e6 / steps),
                role=roles[kind],
            )
        )
    return tuple(sorted(rows, key=lambda row: (-(row.lost_ms or 0.0), row.group, row.op, row.ranks)))


def _best_sibling(kind: tuple[Any, ...], medians: dict[tuple[Any, ...], float]) -> links.LinkReference | None:
    """The best of the groups of the same description and size, for large messages and where there are others."""
    description, op, large, group = kind
    others = [
        value
        for (d, o, big, g), value in medians.items()
        if (d, o, big) == (description, op, True) and len(g) == len(group)
    ]
    return links.LinkReference("the best group like it", max(others), "siblings") if large and len(others) > 1 else None


# The kinds of parallelism of a run as rows of its report.

_ALL = 0.95  # of a role's exposed time: what makes one host its place
_MOST_NAMES = 8  # of groups; there may be one a layer


def role_rows(run: CrossRank) -> tuple[RoleRow, ...]:
    """report.json's roles: a row for each kind of parallelism, most exposed communication first."""
    collectives: dict[Role, list[Collective]] = defaultdict(list)
    for collective, role in zip(run.matching.collectives, run.roles.of_collective, strict=True):
        collectives[role].append(collective)
    groups: dict[Role, list[GroupRole]] = defaultdict(list)
    for group in run.roles.groups:
        groups[group.role].append(group)
    rows = [_row(run, role, groups[role], collectives[role]) for role in ROLE_ORDER if groups[role]]
    return tuple(sorted(rows, key=lambda row: -(row.exposed_ms or 0.0)))


def _row(run: CrossRank, role: Role, groups: Sequence[GroupRole], collectives: Sequence[Collective]) -> RoleRow:
    times = [
        (rank, own) for rank in run.ranks if (own := run.role_times.get(rank.summary.rank, {}).get(role)) is not None
    ]
    exposed = {rank.summary.rank: _mean(rank, own.exposed) for rank, own in times}
    worst = max(exposed, key=lambda rank: exposed[rank], default=None)
    late, share = _waited_for(collectives)
    saved = None
    if run.replay is not None and run.roles.several:
        saved = run.replay.what_if.saved_ns(role_change(role))
    members = {group.ranks for group in groups if group.ranks}
    members |= {collective.group for collective in collectives if not collective.links}
    return RoleRow(
        role=role,
        told_by=tuple(sorted({group.told_by for group in groups})),
        names=tuple(sorted({group.description for group in groups if group.description}))[:_MOST_NAMES],
        groups=len(members),
        group_sizes=tuple(sorted({len(ranks) for ranks in members})),
        ranks=len(times),
        exposed_ms=known_median(exposed.values()),
        wait_ms=_part(times, "wait") if run.split else None,
        transfer_ms=_part(times, "transfer") if run.split else None,
        unmatched_ms=_part(times, "unmatched"),
        worst_rank=worst if worst is not None and exposed[worst] > 0 else None,
        worst_exposed_ms=None if worst is None or exposed[worst] <= 0 else stored(exposed[worst]),
        reach=_reach(run, members or {collective.group for collective in collectives}),
        host=_host(run, exposed),
        busbw_gbs=links.overall_busbw(collectives),
        waits_for_rank=late,
        waits_for_pct=share,
        fused=role == "tensor" and run.roles.fused,
        saved_ms=None if saved is None else stored(max(saved, 0.0) / 1e6),
    )


def _mean(times: RankTimes, ns: Int) -> float:
    return mean_ms(ns[times.typical])


def _part(times: Sequence[tuple[RankTimes, RoleTimes]], part: str) -> float | None:
    return known_median([_mean(rank, getattr(own, part)) for rank, own in times])


def _reach(run: CrossRank, groups: Collection[Ranks]) -> Literal["inside", "between"] | None:
    """Whether the groups lie inside hosts or between them; None where hosts are not named."""
    hosts = [{run.hosts.get(rank) for rank in ranks} for ranks in groups]
    if not hosts or any(None in own for own in hosts):
        return None
    return "inside" if all(len(own) == 1 for own in hosts) else "between"


def _host(run: CrossRank, exposed: dict[int, float]) -> str | None:
    """The one host of several whose ranks have nearly all of the exposed time."""
    total = sum(exposed.values())
    of_host: dict[str | None, float] = defaultdict(float)
    for rank, ms in exposed.items():
        of_host[run.hosts.get(rank)] += ms
    if total <= 0 or len({run.hosts.get(times.summary.rank) for times in run.ranks}) < 2:
        return None
    name, most = max(of_host.items(), key=lambda item: item[1])
    return name if most >= _ALL * total else None


def _waited_for(collectives: Sequence[Collective]) -> tuple[int | None, float | None]:
    """The rank that comes last where most is waited, and its part of all waiting, percent; None where nobody waits."""
    waited = Counter[int]()
    for collective in collectives:
        if collective.last_rank is not None:
            waited[collective.last_rank] += sum(collective.wait_ns)
    if not (total := sum(waited.values())):
        return None, None
    rank, most = max(waited.items(), key=lambda item: (item[1], -item[0]))
    return rank, stored(100.0 * most / total)


# The pipelines of a run as rows of its report.


def pipeline_rows(run: CrossRank) -> tuple[PipelineRow, ...]:
    """report.json's pipelines: a row each, with one for each of its stages."""
    return tuple(
        PipelineRow(
            ranks=bubble.pipeline.ranks,
            schedule=bubble.pipeline.schedule,
            stages_per_rank=bubble.pipeline.chunks,
            micro_batches=bubble.pipeline.micro_batches,
            bubble_pct=stored(100.0 * bubble.share),
            schedule_bubble_pct=None if bubble.ideal_share is None else stored(100.0 * bubble.ideal_share),
            stages=tuple(
                StageRow(
                    rank=stage.rank,
                    stage=stage.stage,
                    step_time_ms=_ms(stage.step),
                    work_ms=_ms(stage.work),
                    bubble_ms=_ms(stage.bubble),
                    imbalance_ms=_ms(stage.imbalance),
                    fill_drain_ms=_ms(stage.fill_drain),
                    late_ms=_ms(stage.late),
                    fill_ms=_ms(stage.fill),
                    drain_ms=_ms(stage.drain),
                )
                for stage in bubble.stages
            ),
        )
        for bubble in run.bubbles
    )


def bubble_of(run: CrossRank) -> BubbleTimes | None:
    """The parts of the pipelines' bubble, medians over all ranks, as the ledger's; None where there is no pipeline."""
    if not run.bubbles:
        return None
    stages = [stage for bubble in run.bubbles for stage in bubble.stages]
    others = [0.0] * (len(run.ranks) - len({stage.rank for stage in stages}))
    parts = {
        "bubble": [stage.bubble for stage in stages],
        "fill": [stage.fill for stage in stages],
        "drain": [stage.drain for stage in stages],
        "imbalance": [stage.imbalance for stage in stages],
        "late": [stage.late for stage in stages],
    }
    return BubbleTimes(**{name: _ms(median([*ns, *others])) for name, ns in parts.items()})


def _ms(ns: float) -> float:
    return stored(max(ns, 0.0) / 1e6)


_MOST_POINTS = 2000  # of the bandwidth figure
_PATH_PIECES = 400


def what_if_rows(run: CrossRank) -> tuple[WhatIfRow, ...]:
    """report.json's what_if: mean step over the window as replayed, and under each change, ms. Empty where the replay
    does not reproduce the measured steps."""
    if run.replay is None or not run.replay.what_if.holds:
        return ()
    step = run.replay.what_if.mean_ns(run.replay.what_if.replayed_ns)
    rows = []
    for prediction in run.replay.what_if.predictions:
        predicted = run.replay.what_if.mean_ns(prediction.step_ns)
        ends = run.replay.what_if.range_ns(prediction.change, prediction.ranks)
        rows.append(
            WhatIfRow(
                change=prediction.change,
                ranks=tuple(prediction.ranks),
                step_time_ms=stored(step / 1e6),
                predicted_step_time_ms=stored(predicted / 1e6),
                saved_pct=stored(100.0 * (step - predicted) / step) if step else None,
                predicted_least_ms=None if ends is None else stored(ends[0] / 1e6),
            )
        )
    return tuple(rows)


def replay_of(run: CrossRank) -> Replay | None:
    """How good the replay is, and the whole job's slowdown S by its stragglers."""
    if run.replay is None:
        return None
    slowdown = run.replay.what_if.slowdown
    return Replay(
        error_pct=stored(run.replay.what_if.error_pct),
        straggler_slowdown=None if slowdown is None else stored(slowdown),
        steps=tuple(run.replay.graph.steps),
        loaders_unknown=run.loaders_unknown,
        hosts_unknown=run.hosts_unknown,
    )


def clocks_of(run: CrossRank) -> Clocks:
    """How the ranks' clocks were brought together; µs."""
    clocks = run.clocks
    return Clocks(
        anchors=clocks.anchors,
        residual_p50_us=_us(clocks.residual_p50_ns),
        residual_p95_us=_us(clocks.residual_p95_ns),
        offset_us={str(rank): _us(fit.offset_ns) for rank, fit in clocks.fits.items()},
        drift_ppm={str(rank): stored(1e6 * fit.drift) for rank, fit in clocks.fits.items()},
        unaligned=tuple(clocks.unaligned),
    )


def cross_rank_tables(run: CrossRank) -> Tables:
    """The tables behind the figures that compare ranks."""
    # One row per collective of known size, thinned out evenly beyond 2000: bytes, transfer and bus bandwidth.
    known = [c for c in run.matching.collectives if links.busbw_gbs(c) is not None]
    step = max(len(known) // _MOST_POINTS, 1)
    return Tables(
        lateness=_lateness_rows(run),
        arrivals=_arrival_rows(run),
        bandwidth=tuple(
            BandwidthRow(
                group=c.description or f"{len(c.group)} ranks",
                ranks=tuple(c.group),
                op=c.op,
                bytes=links.collective_bytes(c),
                transfer_ms=ms_of(c.transfer_ns),
                busbw_gbs=stored(links.busbw_gbs(c) or 0.0),
            )
            for c in known[::step]
        ),
        reference=reference_rows(run),
        critical_path=_critical_path_rows(run),
        timeline=_timeline_rows(run),
    )


def _lateness_rows(run: CrossRank) -> tuple[LatenessRow, ...]:
    """A row a rank and step: waiting it caused by cause, and what it waited itself, ms. None where nobody is charged
    for much of the waiting: what is charged would show the wrong ranks."""
    if run.replay is None or not run.replay.charged.holds:
        return ()
    return tuple(
        LatenessRow(
            rank=rank,
            step=_step(step),
            caused_wait_ms=ms_of(caused[:, i].sum()),
            waited_ms=ms_of(run.replay.lateness.waited[rank][i]),
            **{f"{cause}_ms": ms_of(caused[row, i]) for row, cause in enumerate(CAUSES)},
        )
        for rank, caused in run.replay.lateness.caused.items()
        for i, step in enumerate(run.replay.lateness.steps)
    )


def _arrival_rows(run: CrossRank) -> tuple[ArrivalRow, ...]:
    """A row a group, operation and size: first to last arrival, and who comes last how often."""
    kinds: dict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    for collective in run.matching.collectives:
        if collective.last_rank is not None:
            kinds[collective.group, collective.description, collective.op, collective.elements].append(collective)
    rows = []
    for (group, description, op, _), same in kinds.items():
        spread = np.array([max(c.wait_ns) for c in same])
        usual, high = percentiles(spread, (50, 95))
        last = [c.last_rank for c in same if c.last_rank is not None]
        most = max(set(last), key=last.count)
        rows.append(
            ArrivalRow(
                group=description or f"{len(group)} ranks",
                ranks=tuple(group),
                op=op,
                bytes=links.collective_bytes(same[0]),
                count=len(same),
                spread_p50_ms=ms_of(usual),
                spread_p95_ms=ms_of(high),
                spread_max_ms=ms_of(spread.max()),
                last_rank=most,
                last_rank_pct=stored(100.0 * last.count(most) / len(last)),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.spread_p50_ms * row.count))


def _critical_path_rows(run: CrossRank) -> tuple[PathRow, ...]:
    """The pieces of the critical path of the median typical step, in time order; ms since the step began."""
    if run.replay is None:
        return ()
    durations = measured_step_ns(run.replay.graph)
    typical = (~np.isin(run.replay.graph.steps, run.unlike)).nonzero()[0]
    chosen = typical if len(typical) else np.arange(len(durations))
    middle = int(chosen[np.argsort(durations[chosen], kind="stable")[len(chosen) // 2]])
    if not (pieces := critical_path(run.replay.graph, middle)):
        return ()
    zero = pieces[0].start
    rows = []
    streams = {times.summary.rank: times.summary for times in run.ranks}
    for piece in pieces[-_PATH_PIECES:]:
        collective = (
            None if piece.collective is None else run.matching.collectives[run.replay.graph.kind[piece.collective]]
        )
        what, stream = piece.kind, streams[piece.rank].compute_stream
        if collective is not None:
            what = f"{collective.op} of {collective.description or f'{len(collective.group)} ranks'}"
            position = dict(collective.members)[piece.rank]
            stream = int(streams[piece.rank].comm.stream[position])
        rows.append(
            PathRow(
                step=_step(run.replay.graph.steps[middle]),
                rank=piece.rank,
                kind=piece.kind,
                what=what,
                stream=stream,
                start_ms=ms_of(piece.start - zero),
                duration_ms=ms_of(piece.duration),
                spent_ms={bucket: ms_of(ns) for bucket, ns in piece.spent.items() if bucket != "masked"},
            )
        )
    return tuple(rows)


def _timeline_rows(run: CrossRank) -> tuple[TimelineRow, ...]:
    """The longest step on all ranks side by side: runs of equal cells, ms since its first beginning."""
    if not run.ranks:
        return ()
    longest: dict[int, int] = defaultdict(int)
    for times in run.ranks:
        for number, ns in zip(times.summary.step_numbers.tolist(), times.duration.tolist(), strict=True):
            longest[number] = max(longest[number], ns)
    chosen = max(longest, key=lambda number: longest[number])
    names = (*OWN_BUCKETS, "comm_unmatched", "comm_transfer", "comm_wait")
    runs: list[tuple[int, int, int, str]] = []  # rank, from, to, kind
    begins: list[int] = []
    for times in run.ranks:
        summary, fit = times.summary, run.clocks.fits[times.summary.rank]
        at = (summary.step_numbers == chosen).nonzero()[0]
        if not len(at):
            continue
        step = int(at[0])
        edges = summary.step_edges[step : step + 2]
        cells = np.linspace(edges[0], edges[1], PAINTED + 1).astype(np.int64)
        codes = summary.program.painted[step].copy()
        start, turn, end = run.waits[summary.rank]
        transfer = union(turn, end)
        waiting = np.diff(subtract(union(start, turn), transfer).covered_before(cells))
        moving = np.diff(transfer.covered_before(cells))
        exposed = codes == EXPOSED
        codes[exposed & (moving > 0)] = EXPOSED + 1
        codes[exposed & (waiting > moving)] = EXPOSED + 2
        breaks = np.concatenate(([0], (codes[1:] != codes[:-1]).nonzero()[0] + 1, [PAINTED]))
        moments = fit.correct(cells[breaks]).tolist()
        begins.append(moments[0])
        for code, first, stop in zip(codes[breaks[:-1]].tolist(), moments[:-1], moments[1:], strict=True):
            runs.append((summary.rank, first, stop, names[code]))
    zero, shown = min(begins, default=0), _step(chosen)
    return tuple(
        TimelineRow(
            step=shown,
            rank=rank,
            kind=kind,
            start_ms=(start - zero) / 1e6,  # of whole ns nothing is left to round
            duration_ms=(end - start) / 1e6,
        )
        for rank, start, end, kind in runs
    )


def _step(number: int) -> int | None:
    return None if number < 0 else int(number)


def _us(ns: float | None) -> float | None:
    return None if ns is None else stored(ns / 1e3)
