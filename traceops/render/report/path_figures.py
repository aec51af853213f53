"""Plotly figures on one clock: the critical path of the median step, and the longest step on all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from traceops.core.rank_text import ranks_text
from traceops.measure.ledger import BUCKETS
from traceops.render.report.cross_figures import places_axis
from traceops.render.report.figures import Figure, laid_out, rounded
from traceops.render.report.rank_groups import MOST_RANKS, WORST_RANKS, row_labels, shown_ranks
from traceops.render.report.terms import TERMS, TRANSFER, term_of
from traceops.report.model import Report
from traceops.report.tables import PathRow, TimelineRow

_LEAST_PART_MS = 1e-6
MOST_RUNS = 12_000  # of equal cells in the timeline, over all ranks; a browser draws each as a shape


def critical_path_figure(report: Report) -> Figure:
    """What set the length of the median step: a lane a rank on the path, its pieces in ms since the path began.

    Dotted lines lead from rank to rank. The 32 ranks with most of it where there are more.
    """
    rows = report.tables.critical_path
    on_path: dict[int, float] = defaultdict(float)
    for row in rows:
        on_path[int(row.rank)] += float(row.duration_ms)
    lanes = sorted(sorted(on_path, key=lambda rank: -on_path[rank])[:WORST_RANKS])
    place = {rank: lane for lane, rank in enumerate(lanes)}
    shown = [row for row in rows if row.rank in place]
    jumps = [pair for pair in pairwise(shown) if pair[0].rank != pair[1].rank]
    lines = {
        "type": "scatter",
        "x": [x for one, next_ in jumps for x in (one.start_ms + one.duration_ms, next_.start_ms, None)],
        "y": [y for one, next_ in jumps for y in (place[one.rank], place[next_.rank], None)],
        "mode": "lines",
        "line": {"color": "rgba(128,128,128,0.9)", "dash": "dot", "width": 1},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    parts = [part for row in shown for part in _parts(row)]
    pieces = []
    for kind in _kinds([part for part, _ in parts]):
        same = [(part, whole) for part, whole in parts if part.kind == kind]
        pieces.append(_pieces(kind, [part for part, _ in same], place, [_split(whole) for _, whole in same]))
    labels = [f"rank {rank}" for rank in lanes]
    return _lanes([lines, *pieces], labels, "ms since the path began", _end(shown), pixels=30)


def _parts(row: PathRow) -> list[tuple[PathRow, PathRow]]:
    """(part, piece): what a piece of own work consists of, one bucket behind the other; a transfer is one part.

    What no bucket holds is the host's own work, which communication masked, as `path_sentence` counts it.
    """
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


def timeline_figure(report: Report, ranks: Sequence[int] | None = None) -> Figure:
    """The longest step on all ranks, ms on one clock since its first beginning: a row a rank, coloured by bucket.

    Without `ranks` all of them, or one of each kind of more than 64. Runs too short to be seen join the
    neighbour that takes most of the moment where there are very many.
    """
    chosen = shown_ranks(report) if ranks is None else list(ranks)
    by_rank: dict[int, list[TimelineRow]] = defaultdict(list)
    for row in report.tables.timeline:
        by_rank[int(row.rank)].append(row)
    lanes = [rank for rank in chosen if rank in by_rank]
    if ranks is None and not report.ranks:
        lanes = sorted(by_rank)[:MOST_RANKS]
    runs = [row for rank in lanes for row in by_rank[rank]]
    if len(runs) > MOST_RUNS:
        runs = [row for rank in lanes for row in thinned(by_rank[rank], MOST_RUNS // len(lanes))]
    place = {rank: lane for lane, rank in enumerate(lanes)}
    pieces = [_pieces(kind, [row for row in runs if row.kind == kind], place) for kind in _kinds(runs)]
    return _lanes(
        pieces,
        row_labels(report, lanes),
        f"ms since the first rank began {report.summary.step_words.the}",
        _end(runs),
        pixels=24,
    )


def thinned(runs: Sequence[TimelineRow], most: int) -> list[TimelineRow]:
    """At most `most` runs of one rank: its step cut into equal cells, each of the kind that takes most of it."""
    if len(runs) <= most:
        return list(runs)
    start = np.array([row.start_ms for row in runs], dtype=float)
    end = start + np.array([row.duration_ms for row in runs], dtype=float)
    cells = np.linspace(start.min(), end.max(), most + 1)
    kinds = list(dict.fromkeys(str(row.kind) for row in runs))
    filled = np.zeros((len(kinds), most))
    for row, begins, ends in zip(runs, start, end, strict=True):
        inside = np.minimum(cells[1:], ends) - np.maximum(cells[:-1], begins)
        filled[kinds.index(str(row.kind))] += np.maximum(inside, 0.0)
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
    said = f"{term.label}: %{{customdata:.3f}} ms from %{{base:.3f}} ms"
    return {
        "type": "bar",
        "base": [rounded(row.start_ms) for row in rows],
        "x": duration,
        "y": [place[row.rank] for row in rows],
        "width": 0.8,
        "orientation": "h",
        "name": term.label,
        "meta": str(kind) if kind == TRANSFER or kind in TERMS else "other",
        "marker": {"color": term.colour, "line": {"width": 0}},
        "customdata": duration,
        **({"hovertext": list(more)} if more else {}),
        "hovertemplate": f"{said}<br>%{{hovertext}}<extra></extra>" if more else f"{said}<extra></extra>",
        "showlegend": True,
    }


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
        traces,
        len(labels),
        pixels=pixels,
        margin={"b": 80},
        xaxis={"title": {"text": title}, "range": [0, end]},
        yaxis=places_axis(labels),
        barmode="overlay",
    )
    layout = figure["layout"]
    layout["legend"] = {"orientation": "h", "x": 0, "y": -60 / (layout["height"] - 60), "yanchor": "top"}
    layout["height"] += 30
    return figure
