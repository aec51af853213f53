"""Plotly figures that compare ranks: who is waited for, late arrivals, bandwidth and what a change would save."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from traceops.core.facts import Fact
from traceops.core.rank_text import ranks_text
from traceops.core.units import digits_text, size_text
from traceops.core.words import CAUSES
from traceops.measure.ledger import BUCKETS
from traceops.render.cells import size
from traceops.render.report.figures import (
    MOST_STEPS,
    Y_LABELS,
    Figure,
    axis,
    bar_trace,
    dots,
    escaped,
    heat_map,
    hover,
    laid_out,
    rounded,
    upright_line,
    worded,
)
from traceops.render.report.rank_groups import MOST_RANKS, WORST_RANKS, lateness_by_group, row_labels, shown_ranks
from traceops.render.report.terms import COMM_WAIT, COMPUTE, TERMS, TRANSFER, term_of
from traceops.report.model import Report
from traceops.report.tables import ArrivalRow, BandwidthRow, LatenessRow, PathRow, TimelineRow
from traceops.rules.bandwidth import LOW_BANDWIDTH

MOST_KINDS = 24  # of collectives, a bar each
MOST_CHANGES = 16
WORTH_PCT = 1.0  # of the step: a change that saves less is drawn grey
_MOST_COLOURS = 8
_MOST_TALL = 16  # ranks; more, and rows get lower
_TWO_LINES, _TALL = 40, 48  # characters of a label that two lines hold where the page is narrow; px for three
_GREY = "#6b7078"
_SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A7A7A", "#B8A800")


def lateness_figure(report: Report, ranks: Sequence[int] | None = None) -> Figure:
    """Waiting that each rank caused in each step, ms summed over the ranks that waited: a heat map. Hover splits it by
    cause and says what the rank waited itself. Without `ranks` all of them, or the kinds of more than 64, each with
    what all of its ranks caused: who of them comes last is chance. The last 400 steps where there are more. The colours
    span at least 10 % of the median step, so that small change stays pale."""
    cells = {(row.rank, row.step): row for row in lateness_by_group(report)}
    judged = {rank for rank, _ in cells}
    chosen = [rank for rank in (shown_ranks(report) if ranks is None else ranks) if rank in judged]
    steps = sorted({step for _, step in cells}, key=lambda step: -1 if step is None else step)[-MOST_STEPS:]
    grid = [[_caused(cells.get((rank, step))) for step in steps] for rank in chosen]
    known = [value for line in grid for value in line if value is not None] or [0.0]
    median = report.summary.step_time_ms.median or 0.0
    heat = {
        "z": grid,
        "zmin": 0.0,
        "zmax": max(*known, 0.1 * median, 1e-3),
        "colorscale": [[0, "#fbf6f1"], [1, COMM_WAIT.colour]],
        "hovertext": [[_split_text(cells.get((rank, step))) for step in steps] for rank in chosen],
        "hovertemplate": hover("caused"),
    }
    columns = ["window" if step is None else f"step {step}" for step in steps]
    labels = row_labels(report, chosen)
    return heat_map(columns, labels, heat, "%{z:.3~g}", pixels=22 if len(chosen) <= _MOST_TALL else 14)


def arrivals_figure(report: Report) -> Figure:
    """Each kind of collective: bars from the median to the 95th percentile of first to last arrival, ms. Beside each
    bar stands who comes last most often, and how often. The 24 kinds that wait most."""
    rows = (report.tables.arrivals)[:MOST_KINDS]
    places = list(range(len(rows)))
    low = [rounded(row.spread_p50_ms) or 0.0 for row in rows]
    high = [max(rounded(row.spread_p95_ms) or 0.0, p50) for row, p50 in zip(rows, low, strict=True)]
    about = [
        worded(
            "arrival", op=escaped(row.op), ranks=ranks_text(row.ranks, 8), count=row.count, p50=p50, p95=p95,
            most=row.spread_max_ms, last=row.last_rank, share=row.last_rank_pct,
        )
        for row, p50, p95 in zip(rows, low, high, strict=True)
    ]  # fmt: skip
    spread = bar_trace(
        "p50 to p95", [rounded(p95 - p50) for p50, p95 in zip(low, high, strict=True)], places, COMM_WAIT.colour,
        "%{hovertext}<extra></extra>", base=low, width=0.55, marker={"opacity": 0.55}, textposition="outside",
        text=[f" rank {row.last_rank}: {row.last_rank_pct:.0f} %" for row in rows], cliponaxis=False,
        hovertext=about, showlegend=False,
    )  # fmt: skip
    marker = {"symbol": "line-ns-open", "size": 14, "line": {"width": 3}, "color": COMM_WAIT.colour}
    medians = dots("median", low, places, marker, "%{hovertext}", hovertext=about, showlegend=False)
    # What each kind is called; sizes are whole where two kinds read alike.
    kinds = [(row.op, row.group, row.ranks, "" if row.bytes is None else size(row.bytes).text) for row in rows]
    labels = [
        _kind_label(row, "" if row.bytes is None else f" {kind[3] if kinds.count(kind) == 1 else f'{row.bytes:,} B'}")
        for row, kind in zip(rows, kinds, strict=True)
    ]
    xaxis = axis(worded("arrivals_axis"), range=[0, 1.35 * (max(high, default=1.0) or 1.0)])
    pixels = _TALL if any(len(label) > _TWO_LINES for label in labels) else 28
    return laid_out([spread, medians], len(rows), pixels=pixels, xaxis=xaxis, yaxis=places_axis(labels))


def bandwidth_figure(report: Report) -> Figure:
    """Bus bandwidth (GB/s, 10⁹ bytes) of each collective against its size (bytes, log), a colour a kind and group.
    Where TO-C001 fired, a line shows what the link should give."""
    kinds: dict[str, list[BandwidthRow]] = defaultdict(list)
    for row in report.tables.bandwidth:
        if row.bytes and row.busbw_gbs is not None:
            kinds[f"{row.op} · {row.group}"].append(row)
    ordered = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    series = [(escaped(kind, 60), kinds[kind]) for kind in ordered[:_MOST_COLOURS]]
    if rest := [row for kind in ordered[_MOST_COLOURS:] for row in kinds[kind]]:
        series.append((f"{len(ordered) - _MOST_COLOURS} other kinds", rest))
    points = []
    for place, (label, rows) in enumerate(series):
        marker = {"size": 7, "opacity": 0.6, "color": _SERIES[place] if place < len(_SERIES) else _GREY}
        about = [
            worded(
                "bandwidth", op=escaped(row.op), group=escaped(row.group), ranks=ranks_text(row.ranks, 6),
                size=size(row.bytes).text, ms=row.transfer_ms,
            )
            for row in rows
        ]  # fmt: skip
        x, y = [row.bytes for row in rows], [row.busbw_gbs for row in rows]
        points.append(dots(label, x, y, marker, "%{customdata}: %{y:.1f} GB/s", showlegend=True, customdata=about))
    sizes = [math.log10(row.bytes) for rows in kinds.values() for row in rows if row.bytes] or [6.0]
    beside = max(0.6 - (max(sizes) - min(sizes)) / 2, 0.1)  # a decade or more: near sizes are no spectrum
    least, most = min(sizes) - beside, max(sizes) + beside
    return laid_out(
        points, 10, pixels=26, grid_y=True, legend={"orientation": "h", "y": -0.3, "x": 0},
        xaxis=axis(worded("bandwidth_axis"), type="log", range=[least, most], **_size_ticks(least, most)),
        yaxis=axis("bus GB/s", rangemode="tozero", automargin=True), **_reference_line(report),
    )  # fmt: skip


def what_if_figure(report: Report) -> Figure:
    """Predicted step time for one change at a time, ms, most saved first; a line marks the step as it is."""
    rows = sorted(report.what_if, key=lambda row: -(row.saved_pct or 0.0))[:MOST_CHANGES]
    predicted = [rounded(row.predicted_step_time_ms) for row in rows]
    saved = [row.saved_pct for row in rows]
    bars = bar_trace(
        "", predicted, range(len(rows)),
        [COMPUTE.colour if (pct or 0.0) >= WORTH_PCT else _GREY for pct in saved], hover("change"), width=0.6,
        text=[_saved_text(pct) for pct in saved], textposition="auto", insidetextanchor="start",
        insidetextfont={"color": "#ffffff", "size": 12}, constraintext="none",
        customdata=[escaped(row.change, 120) for row in rows], showlegend=False,
    )  # fmt: skip
    now: dict[str, Any] = {}
    measured = next((row.step_time_ms for row in rows if row.step_time_ms is not None), None)
    if measured is not None:
        note = {"text": f"now {digits_text(measured)} ms", "x": measured, "xref": "x", "xanchor": "right"}
        note |= {"y": 1, "yref": "y domain", "yanchor": "bottom", "showarrow": False}
        line = {"width": 2, "color": COMM_WAIT.colour}
        now = {"shapes": [upright_line(measured, line)], "annotations": [note]}
    xaxis = axis(f"{report.summary.step_words.noun} ms", rangemode="tozero")
    yaxis = places_axis([escaped(row.change, 44) for row in rows])
    return laid_out([bars], len(rows), pixels=28, margin={"t": 26}, xaxis=xaxis, yaxis=yaxis, **now)


def places_axis(labels: Sequence[str]) -> dict[str, Any]:
    """A y axis on which the places 0, 1, … have these labels, the first on top."""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": list(labels),
        "range": [len(labels) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
        **Y_LABELS,
    }


def _reference_line(report: Report) -> dict[str, Any]:
    """What the link should give, where TO-C001 says so."""
    for found in report.findings:
        gbs = found.number(Fact.REFERENCE)
        if found.rule == LOW_BANDWIDTH.id and gbs is not None:
            line = {"dash": "dash", "width": 1.5, "color": _GREY}
            shape = {"type": "line", "x0": 0, "x1": 1, "xref": "x domain", "y0": gbs, "y1": gbs, "yref": "y"}
            note = {"text": worded("reference", gbs=gbs), "showarrow": False}
            note |= {"x": 1, "xref": "x domain", "xanchor": "right", "y": gbs, "yref": "y", "yanchor": "bottom"}
            return {"shapes": [{**shape, "line": line}], "annotations": [note]}
    return {}


def _size_ticks(low: float, high: float) -> dict[str, list[Any]]:
    """Round sizes between two powers of ten: 1, 2 and 5 of each, only 1 where there are many."""
    digits = (1, 2, 5) if high - low < 3.5 else (1,)
    values = [
        digit * 10**power
        for power in range(math.floor(low), math.ceil(high) + 1)
        for digit in digits
        if power >= 0 and low <= math.log10(digit * 10**power) <= high
    ]
    return {"tickvals": values, "ticktext": [size_text(value).replace(".0 ", " ") for value in values]}


def _caused(row: LatenessRow | None) -> float | None:
    return None if row is None else rounded(row.caused_wait_ms)


def _split_text(row: LatenessRow | None) -> str:
    """'GPU 29.1, host 0.4 ms; it waited 0.2 ms itself'."""
    if row is None:
        return ""
    parts = [
        f"{words.label} {row.cause_ms(cause):.3f}" for cause, words in CAUSES.items() if row.cause_ms(cause) >= 0.0005
    ]
    itself = worded("itself", ms=row.waited_ms)
    return f"{', '.join(parts)} ms; {itself}" if parts else itself


def _kind_label(row: ArrivalRow, each: str) -> str:
    named = str(row.group)
    members = ranks_text(row.ranks, 2)
    group = f"ranks {members}" if named == f"{len(row.ranks)} ranks" else f"{named[:20]} {members}"
    return escaped(f"{str(row.op)[:20]}{each} ×{row.count} · {group}", 64)


def _saved_text(pct: float | None) -> str:
    if pct is None or not math.isfinite(pct):
        return ""
    return f"saves {pct:.1f} %" if pct >= 0 else f"costs {-pct:.1f} %"


# Plotly figures on one clock: the critical path of the median step, and the longest step on all ranks.

_LEAST_PART_MS = 1e-6
MOST_RUNS = 12_000  # of equal cells in the timeline, over all ranks; a browser draws each as a shape


def critical_path_figure(report: Report) -> Figure:
    """What set the length of the median step: a lane a rank on the path, its pieces in ms since the path began. Dotted
    lines lead from rank to rank. The 32 ranks with most of it where there are more."""
    rows = report.tables.critical_path
    on_path: dict[int, float] = defaultdict(float)
    for row in rows:
        on_path[int(row.rank)] += float(row.duration_ms)
    lanes = sorted(sorted(on_path, key=lambda rank: -on_path[rank])[:WORST_RANKS])
    place = {rank: lane for lane, rank in enumerate(lanes)}
    shown = [row for row in rows if row.rank in place]
    jumps = [pair for pair in pairwise(shown) if pair[0].rank != pair[1].rank]
    lines = {
        "type": "scatter", "mode": "lines", "line": {"color": "rgba(128,128,128,0.9)", "dash": "dot", "width": 1},
        "x": [x for one, next_ in jumps for x in (one.start_ms + one.duration_ms, next_.start_ms, None)],
        "y": [y for one, next_ in jumps for y in (place[one.rank], place[next_.rank], None)],
        "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    parts = [part for row in shown for part in _parts(row)]
    pieces = []
    for kind in _kinds([part for part, _ in parts]):
        same = [(part, whole) for part, whole in parts if part.kind == kind]
        pieces.append(_pieces(kind, [part for part, _ in same], place, [_split(whole) for _, whole in same]))
    labels = [f"rank {rank}" for rank in lanes]
    return _lanes([lines, *pieces], labels, worded("path_axis"), _end(shown), pixels=30)


def _parts(row: PathRow) -> list[tuple[PathRow, PathRow]]:
    """(part, piece): what a piece of own work consists of, one bucket behind the other; a transfer is one part. What no
    bucket holds is the host's own work, which communication masked, as `path_sentence` counts it."""
    spent = {bucket: ms for bucket in BUCKETS if (ms := row.spent_ms.get(bucket, 0.0))}
    if not spent:
        return [(row, row)]
    rest = row.duration_ms - sum(spent.values())
    if rest > _LEAST_PART_MS:
        spent["idle_host"] = spent.get("idle_host", 0.0) + rest
    parts, at = [], float(row.start_ms)
    for bucket in BUCKETS:
        if bucket in spent:
            parts.append((msgspec.structs.replace(row, kind=bucket, start_ms=at, duration_ms=spent[bucket]), row))
            at += spent[bucket]
    return parts


def timeline_figure(report: Report, ranks: Sequence[int] | None = None, most: int = MOST_RUNS) -> Figure:
    """The longest step on all ranks, ms on one clock since its first beginning: a row a rank, coloured by bucket.
    Without `ranks` all of them, or one of each kind of more than 64. Runs too short to be seen join the neighbour that
    takes most of the moment where there are more than `most`."""
    chosen = shown_ranks(report) if ranks is None else list(ranks)
    by_rank: dict[int, list[TimelineRow]] = defaultdict(list)
    for row in report.tables.timeline:
        by_rank[int(row.rank)].append(row)
    lanes = [rank for rank in chosen if rank in by_rank]
    if ranks is None and not report.ranks:
        lanes = sorted(by_rank)[:MOST_RANKS]
    runs = [row for rank in lanes for row in by_rank[rank]]
    if len(runs) > most:
        runs = [row for rank in lanes for row in thinned(by_rank[rank], most // len(lanes))]
    place = {rank: lane for lane, rank in enumerate(lanes)}
    pieces = [_pieces(kind, [row for row in runs if row.kind == kind], place) for kind in _kinds(runs)]
    title = worded("timeline_axis", the=report.summary.step_words.the)
    return _lanes(pieces, row_labels(report, lanes), title, _end(runs), pixels=24)


def thinned(runs: Sequence[TimelineRow], most: int) -> list[TimelineRow]:
    """At most `most` runs of one rank: its step cut into equal cells, each of the kind that takes most of it."""
    if len(runs) <= most:
        return list(runs)
    start = np.array([row.start_ms for row in runs], dtype=float)
    end = start + np.array([row.duration_ms for row in runs], dtype=float)
    cells = np.linspace(start.min(), end.max(), most + 1)
    kinds = list(dict.fromkeys(str(row.kind) for row in runs))
    # Only the cells that a run reaches into are looked at: `row` and `cell` are the pairs.
    first = np.maximum(cells.searchsorted(start, side="right") - 1, 0)
    count = np.maximum(np.minimum(cells.searchsorted(end), most) - first, 0)
    row = np.arange(len(runs)).repeat(count)
    cell = np.arange(len(row)) + (first - count.cumsum() + count).repeat(count)
    inside = np.maximum(np.minimum(cells[cell + 1], end[row]) - np.maximum(cells[cell], start[row]), 0.0)
    kind = np.array([kinds.index(str(run.kind)) for run in runs])
    filled = np.bincount(kind[row] * most + cell, inside, len(kinds) * most).reshape(len(kinds), most)
    code = filled.argmax(axis=0)
    breaks = [0, *(np.flatnonzero(code[1:] != code[:-1]) + 1).tolist(), most]
    return [
        TimelineRow(
            step=runs[0].step,
            rank=runs[0].rank,
            kind=kinds[code[first]],
            start_ms=float(cells[first]),
            duration_ms=float(cells[stop] - cells[first]),
        )
        for first, stop in pairwise(breaks)
    ]


def _end(rows: Sequence[PathRow | TimelineRow]) -> float:
    return max((float(row.start_ms + row.duration_ms) for row in rows), default=1.0)


def _kinds(rows: Sequence[PathRow | TimelineRow]) -> list[str]:
    """The kinds that occur, in the ledger's order."""
    order = {bucket: place for place, bucket in enumerate(BUCKETS)} | {TRANSFER: 1}
    return sorted({row.kind for row in rows}, key=lambda kind: (order.get(kind, len(order)), str(kind)))


def _pieces(
    kind: str, rows: Sequence[PathRow | TimelineRow], place: Mapping[int, int], more: Sequence[str] = ()
) -> dict[str, Any]:
    """A trace of bars, one a row; `more` stands below a piece's time in the hover text."""
    term = term_of(kind)
    duration = [rounded(row.duration_ms) for row in rows]
    return bar_trace(
        term.label, duration, [place[row.rank] for row in rows], term.colour,
        hover("split_piece" if more else "piece", label=term.label), base=[rounded(row.start_ms) for row in rows],
        width=0.8, meta=str(kind) if kind == TRANSFER or kind in TERMS else "other", customdata=duration,
        showlegend=True, **({"hovertext": list(more)} if more else {}),
    )  # fmt: skip


def _split(row: PathRow) -> str:
    """The rank, and what a piece of own work consists of; a transfer only says that it is one."""
    rank = f"rank {ranks_text([int(row.rank)])}"
    parts = [
        f"{TERMS[bucket].label} {row.spent_ms[bucket]:.3f}"
        for bucket in BUCKETS
        if row.spent_ms.get(bucket, 0.0) >= 0.0005
    ]
    return f"{rank}: {', '.join(parts)} ms" if parts else rank


def _lanes(traces: Sequence[Mapping[str, Any]], labels: Sequence[str], title: str, end: float, pixels: int) -> Figure:
    """A lane a label, so many pixels high, over ms from 0 to `end`; a legend below."""
    figure = laid_out(
        traces, len(labels), pixels=pixels, margin={"b": 80}, xaxis=axis(title, range=[0, end]),
        yaxis=places_axis(labels), barmode="overlay",
    )  # fmt: skip
    layout = figure["layout"]
    layout["legend"] = {"orientation": "h", "x": 0, "y": -60 / (layout["height"] - 60), "yanchor": "top"}
    layout["height"] += 30
    return figure
