"""Plotly figures that compare ranks: who is waited for, late arrivals, bandwidth and what a change would save."""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from traceops.core.cause_words import CAUSES
from traceops.core.rank_text import ranks_text
from traceops.core.units import digits_text, size_text
from traceops.render.cells import size
from traceops.render.report.figures import MOST_STEPS, Y_LABELS, Figure, heat_map, laid_out, rounded, upright_line
from traceops.render.report.lateness_groups import lateness_by_group
from traceops.render.report.rank_groups import row_labels, shown_ranks
from traceops.render.report.terms import COMM_WAIT, COMPUTE
from traceops.report.model import Report
from traceops.report.tables import ArrivalRow, BandwidthRow, LatenessRow
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
    """Waiting that each rank caused in each step, ms summed over the ranks that waited: a heat map.

    Hover splits it by cause and says what the rank waited itself. Without `ranks` all of them, or the
    kinds of more than 64, each with what all of its ranks caused: who of them comes last is chance. The last 400 steps
    where there are more. The colours span at least 10 % of the median step, so that small change stays pale.
    """
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
        "hovertemplate": "%{y}, %{x}: others wait %{z:.3f} ms for it<br>%{hovertext}<extra></extra>",
    }
    columns = ["window" if step is None else f"step {step}" for step in steps]
    labels = row_labels(report, chosen)
    return heat_map(columns, labels, heat, "%{z:.3~g}", pixels=22 if len(chosen) <= _MOST_TALL else 14)


def arrivals_figure(report: Report) -> Figure:
    """Each kind of collective: bars from the median to the 95th percentile of first to last arrival, ms.

    Beside each bar stands who comes last most often, and how often. The 24 kinds that wait most.
    """
    rows = (report.tables.arrivals)[:MOST_KINDS]
    places = list(range(len(rows)))
    low = [rounded(row.spread_p50_ms) or 0.0 for row in rows]
    high = [max(rounded(row.spread_p95_ms) or 0.0, p50) for row, p50 in zip(rows, low, strict=True)]
    about = [
        f"{_safe(row.op)} of ranks {ranks_text(row.ranks, 8)}, {row.count} collectives<br>"
        f"spread p50 {p50:.3f}, p95 {p95:.3f}, most {row.spread_max_ms:.3f} ms<br>"
        f"rank {row.last_rank} comes last in {row.last_rank_pct:.0f} %"
        for row, p50, p95 in zip(rows, low, high, strict=True)
    ]
    spread = {
        "type": "bar",
        "x": [rounded(p95 - p50) for p50, p95 in zip(low, high, strict=True)],
        "base": low,
        "y": places,
        "orientation": "h",
        "width": 0.55,
        "marker": {"color": COMM_WAIT.colour, "opacity": 0.55},
        "name": "p50 to p95",
        "text": [f" rank {row.last_rank}: {row.last_rank_pct:.0f} %" for row in rows],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertext": about,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "showlegend": False,
    }
    medians = {
        "type": "scatter",
        "x": low,
        "y": places,
        "mode": "markers",
        "name": "median",
        "marker": {"symbol": "line-ns-open", "size": 14, "line": {"width": 3}, "color": COMM_WAIT.colour},
        "hovertext": about,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "showlegend": False,
    }
    title = {"text": "ms from the first arrival to the last, median to p95"}
    labels = _kind_labels(rows)
    return laid_out(
        [spread, medians],
        len(rows),
        pixels=_TALL if any(len(label) > _TWO_LINES for label in labels) else 28,
        xaxis={"title": title, "range": [0, 1.35 * (max(high, default=1.0) or 1.0)]},
        yaxis=places_axis(labels),
    )


def bandwidth_figure(report: Report) -> Figure:
    """Bus bandwidth (GB/s, 10⁹ bytes) of each collective against its size (bytes, log), a colour a kind and group.

    Where TO-C001 fired, a line shows what the link should give.
    """
    kinds: dict[str, list[BandwidthRow]] = defaultdict(list)
    for row in report.tables.bandwidth:
        if row.bytes and row.busbw_gbs is not None:
            kinds[f"{row.op} · {row.group}"].append(row)
    ordered = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    series = [(_safe(kind, 60), kinds[kind]) for kind in ordered[:_MOST_COLOURS]]
    if rest := [row for kind in ordered[_MOST_COLOURS:] for row in kinds[kind]]:
        series.append((f"{len(ordered) - _MOST_COLOURS} other kinds", rest))
    points = [
        {
            "type": "scatter",
            "x": [row.bytes for row in rows],
            "y": [rounded(row.busbw_gbs) for row in rows],
            "mode": "markers",
            "name": label,
            "showlegend": True,
            "marker": {"size": 7, "opacity": 0.6, "color": _SERIES[place] if place < len(_SERIES) else _GREY},
            "customdata": [
                f"{_safe(row.op)} of {_safe(row.group)}, ranks {ranks_text(row.ranks, 6)}<br>"
                f"{size(row.bytes).text} in {row.transfer_ms:.3f} ms"
                for row in rows
            ],
            "hovertemplate": "%{customdata}: %{y:.1f} GB/s<extra></extra>",
        }
        for place, (label, rows) in enumerate(series)
    ]
    sizes = [math.log10(row.bytes) for rows in kinds.values() for row in rows if row.bytes] or [6.0]
    beside = max(0.6 - (max(sizes) - min(sizes)) / 2, 0.1)  # a decade or more: near sizes are no spectrum
    least, most = min(sizes) - beside, max(sizes) + beside
    return laid_out(
        points,
        10,
        pixels=26,
        grid_y=True,
        xaxis={
            "type": "log",
            "range": [least, most],
            "title": {"text": "bytes of one collective"},
            **_size_ticks(least, most),
        },
        yaxis={"title": {"text": "bus GB/s"}, "rangemode": "tozero", "automargin": True},
        legend={"orientation": "h", "y": -0.3, "x": 0},
        **_reference_line(report),
    )


def what_if_figure(report: Report) -> Figure:
    """Predicted step time for one change at a time, ms, most saved first; a line marks the step as it is."""
    rows = sorted(report.what_if, key=lambda row: -(row.saved_pct or 0.0))[:MOST_CHANGES]
    predicted = [rounded(row.predicted_step_time_ms) for row in rows]
    saved = [row.saved_pct for row in rows]
    bars = {
        "type": "bar",
        "x": predicted,
        "y": list(range(len(rows))),
        "orientation": "h",
        "width": 0.6,
        "marker": {"color": [COMPUTE.colour if (pct or 0.0) >= WORTH_PCT else _GREY for pct in saved]},
        "text": [_saved_text(pct) for pct in saved],
        "textposition": "auto",
        "insidetextanchor": "start",
        "insidetextfont": {"color": "#ffffff", "size": 12},
        "constraintext": "none",
        "customdata": [_safe(row.change, 120) for row in rows],
        "hovertemplate": "%{customdata}: %{x:.3f} ms, %{text}<extra></extra>",
        "showlegend": False,
    }
    now: dict[str, Any] = {}
    measured = next((row.step_time_ms for row in rows if row.step_time_ms is not None), None)
    if measured is not None:
        note = {"text": f"now {digits_text(measured)} ms", "x": measured, "xref": "x", "xanchor": "right"}
        note |= {"y": 1, "yref": "y domain", "yanchor": "bottom", "showarrow": False}
        line = {"width": 2, "color": COMM_WAIT.colour}
        now = {"shapes": [upright_line(measured, line)], "annotations": [note]}
    return laid_out(
        [bars],
        len(rows),
        pixels=28,
        margin={"t": 26},
        xaxis={"title": {"text": f"{report.summary.step_words.noun} ms"}, "rangemode": "tozero"},
        yaxis=places_axis([_safe(row.change, 44) for row in rows]),
        **now,
    )


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
        gbs = next((e.value for e in found.evidence if e.metric == "reference"), None)
        if found.rule == LOW_BANDWIDTH.id and isinstance(gbs, (int, float)):
            line = {"dash": "dash", "width": 1.5, "color": _GREY}
            shape = {"type": "line", "x0": 0, "x1": 1, "xref": "x domain", "y0": gbs, "y1": gbs, "yref": "y"}
            note = {"text": f"the link should give {gbs:g} GB/s", "showarrow": False}
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
    itself = f"it waited {row.waited_ms:.3f} ms itself"
    return f"{', '.join(parts)} ms; {itself}" if parts else itself


def _kind_labels(rows: Sequence[ArrivalRow]) -> list[str]:
    """What each kind is called; sizes are whole where two kinds read alike."""
    kinds = [(row.op, row.group, row.ranks, "" if row.bytes is None else size(row.bytes).text) for row in rows]
    return [
        _kind_label(row, "" if row.bytes is None else f" {kind[3] if kinds.count(kind) == 1 else f'{row.bytes:,} B'}")
        for row, kind in zip(rows, kinds, strict=True)
    ]


def _kind_label(row: ArrivalRow, each: str) -> str:
    named = str(row.group)
    members = ranks_text(row.ranks, 2)
    group = f"ranks {members}" if named == f"{len(row.ranks)} ranks" else f"{named[:20]} {members}"
    return _safe(f"{str(row.op)[:20]}{each} ×{row.count} · {group}", 64)


def _saved_text(pct: float | None) -> str:
    if pct is None or not math.isfinite(pct):
        return ""
    return f"saves {pct:.1f} %" if pct >= 0 else f"costs {-pct:.1f} %"


def _safe(text: Any, limit: int = 80) -> str:
    """Cut and escaped: plotly reads tags in labels, legends and hover texts."""
    return html.escape(str(text)[:limit], quote=False)
