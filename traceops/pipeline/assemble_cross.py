"""The parts of a Report that compare ranks: what-if, lateness, arrivals, bandwidth, critical path, timeline."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.across.lateness import CAUSES
from traceops.across.links import busbw_gbs, collective_bytes
from traceops.across.match import Collective, waits_by_rank
from traceops.across.replay.critical_path import critical_path
from traceops.across.replay.simulate import measured_step_ns
from traceops.core.intervals import subtract, union
from traceops.core.units import stored
from traceops.measure.ledger import OWN_BUCKETS
from traceops.measure.program import EXPOSED, PAINTED
from traceops.pipeline.assemble_collectives import reference_rows
from traceops.report.cross_rows import WhatIfRow
from traceops.report.summary import Clocks, Replay
from traceops.report.tables import ArrivalRow, BandwidthRow, LatenessRow, PathRow, Tables, TimelineRow

_MOST_POINTS = 2000  # of the bandwidth figure
_PATH_PIECES = 400


def what_if_rows(run: CrossRank) -> tuple[WhatIfRow, ...]:
    """report.json's what_if: mean step over the window as replayed, and under each change, ms.

    Empty where the replay does not reproduce the measured steps.
    """
    if run.what_if is None or not run.what_if.holds:
        return ()
    step = run.what_if.mean_ns(run.what_if.replayed_ns)
    rows = []
    for prediction in run.what_if.predictions:
        predicted = run.what_if.mean_ns(prediction.step_ns)
        ends = run.what_if.range_ns(prediction.change, prediction.ranks)
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
    if run.what_if is None:
        return None
    slowdown = run.what_if.slowdown
    return Replay(
        error_pct=stored(run.what_if.error_pct),
        straggler_slowdown=None if slowdown is None else stored(slowdown),
        steps=tuple(run.graph.steps) if run.graph is not None else (),
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
    return Tables(
        lateness=_lateness_rows(run),
        arrivals=_arrival_rows(run),
        bandwidth=_bandwidth_rows(run),
        reference=reference_rows(run),
        critical_path=_critical_path_rows(run),
        timeline=_timeline_rows(run),
    )


def _lateness_rows(run: CrossRank) -> tuple[LatenessRow, ...]:
    """A row a rank and step: waiting it caused by cause, and what it waited itself, ms.

    None where nobody is charged for much of the waiting: what is charged would show the wrong ranks.
    """
    if run.lateness is None or (run.charged is not None and not run.charged.holds):
        return ()
    return tuple(
        LatenessRow(
            rank=rank,
            step=_step(step),
            caused_wait_ms=_ms(caused[:, i].sum()),
            waited_ms=_ms(run.lateness.waited[rank][i]),
            **{f"{cause}_ms": _ms(caused[row, i]) for row, cause in enumerate(CAUSES)},
        )
        for rank, caused in run.lateness.caused.items()
        for i, step in enumerate(run.lateness.steps)
    )


def _arrival_rows(run: CrossRank) -> tuple[ArrivalRow, ...]:
    """A row a group, operation and size: first to last arrival, and who comes last how often."""
    kinds: dict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    for collective in run.matching.collectives:
        if collective.last_rank is not None:
            kinds[collective.group, collective.description, collective.op, collective.elements].append(collective)
    rows = []
    for (group, description, op, _), same in kinds.items():
        spread = [max(c.wait_ns) for c in same]
        last = [c.last_rank for c in same if c.last_rank is not None]
        most = max(set(last), key=last.count)
        rows.append(
            ArrivalRow(
                group=description or f"{len(group)} ranks",
                ranks=tuple(group),
                op=op,
                bytes=collective_bytes(same[0]),
                count=len(same),
                spread_p50_ms=_ms(np.percentile(spread, 50)),
                spread_p95_ms=_ms(np.percentile(spread, 95)),
                spread_max_ms=_ms(max(spread)),
                last_rank=most,
                last_rank_pct=stored(100.0 * last.count(most) / len(last)),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.spread_p50_ms * row.count))


def _bandwidth_rows(run: CrossRank) -> tuple[BandwidthRow, ...]:
    """A row a collective of known size, evenly thinned out beyond 2000: bytes, transfer and bus bandwidth."""
    known = [c for c in run.matching.collectives if busbw_gbs(c) is not None]
    step = max(len(known) // _MOST_POINTS, 1)
    return tuple(
        BandwidthRow(
            group=c.description or f"{len(c.group)} ranks",
            ranks=tuple(c.group),
            op=c.op,
            bytes=collective_bytes(c),
            transfer_ms=_ms(c.transfer_ns),
            busbw_gbs=stored(busbw_gbs(c) or 0.0),
        )
        for c in known[::step]
    )


def _critical_path_rows(run: CrossRank) -> tuple[PathRow, ...]:
    """The pieces of the critical path of the median typical step, in time order; ms since the step began."""
    if run.graph is None:
        return ()
    durations = measured_step_ns(run.graph)
    typical = np.flatnonzero(~np.isin(run.graph.steps, run.unlike))
    chosen = typical if len(typical) else np.arange(len(durations))
    median = int(chosen[np.argsort(durations[chosen], kind="stable")[len(chosen) // 2]])
    pieces = critical_path(run.graph, median)
    if not pieces:
        return ()
    zero = pieces[0].start
    rows = []
    streams = {times.summary.rank: times.summary for times in run.ranks}
    for piece in pieces[-_PATH_PIECES:]:
        collective = None if piece.collective is None else run.matching.collectives[run.graph.kind[piece.collective]]
        what, stream = piece.kind, streams[piece.rank].compute_stream
        if collective is not None:
            what = f"{collective.op} of {collective.description or f'{len(collective.group)} ranks'}"
            position = dict(collective.members)[piece.rank]
            stream = int(streams[piece.rank].comm.stream[position])
        rows.append(
            PathRow(
                step=_step(run.graph.steps[median]),
                rank=piece.rank,
                kind=piece.kind,
                what=what,
                stream=stream,
                start_ms=_ms(piece.start - zero),
                duration_ms=_ms(piece.duration),
                spent_ms={bucket: _ms(ns) for bucket, ns in piece.spent.items() if bucket != "masked"},
            )
        )
    return tuple(rows)


def _timeline_rows(run: CrossRank) -> tuple[TimelineRow, ...]:
    """The longest step on all ranks side by side: runs of equal cells, ms since its first beginning."""
    if not run.ranks:
        return ()
    chosen = _longest_step(run)
    waits = waits_by_rank(run.matching, [times.summary for times in run.ranks])
    runs: list[tuple[int, int, int, str]] = []  # rank, from, to, kind
    begins: list[int] = []
    for times in run.ranks:
        summary, fit = times.summary, run.clocks.fits[times.summary.rank]
        at = np.flatnonzero(summary.step_numbers == chosen)
        if not len(at):
            continue
        step = int(at[0])
        edges = summary.step_edges[step : step + 2]
        cells = np.linspace(edges[0], edges[1], PAINTED + 1).astype(np.int64)
        codes = summary.program.painted[step].astype(np.int64)
        start, turn, end = waits[summary.rank]
        transfer = union(turn, end)
        waiting = np.diff(subtract(union(start, turn), transfer).covered_before(cells))
        moving = np.diff(transfer.covered_before(cells))
        exposed = codes == EXPOSED
        kinds = np.array([*OWN_BUCKETS, "comm_unmatched"], dtype=object)[codes]
        kinds[exposed & (moving > 0)] = "comm_transfer"
        kinds[exposed & (waiting > moving)] = "comm_wait"
        breaks = np.flatnonzero(np.concatenate(([True], kinds[1:] != kinds[:-1])))
        moments = fit.correct(cells)
        begins.append(int(moments[0]))
        for first, stop in zip(breaks, [*breaks[1:], PAINTED], strict=True):
            runs.append((summary.rank, int(moments[first]), int(moments[stop]), str(kinds[first])))
    zero = min(begins, default=0)
    return tuple(
        TimelineRow(step=_step(chosen), rank=rank, kind=kind, start_ms=_ms(start - zero), duration_ms=_ms(end - start))
        for rank, start, end, kind in runs
    )


def _longest_step(run: CrossRank) -> int:
    longest: dict[int, int] = defaultdict(int)
    for times in run.ranks:
        for number, ns in zip(times.summary.step_numbers.tolist(), times.duration.tolist(), strict=True):
            longest[number] = max(longest[number], ns)
    return max(longest, key=lambda number: longest[number])


def _step(number: int) -> int | None:
    return None if number < 0 else int(number)


def _ms(ns: Any) -> float:
    return stored(float(ns) / 1e6)


def _us(ns: float | None) -> float | None:
    return None if ns is None else stored(ns / 1e3)
