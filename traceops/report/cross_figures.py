"""Plotly figures that compare ranks: who is waited for, late arrivals, bandwidth and what a change would save."""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from traceops.model import Report
from traceops.rank_text import ranks_text
from traceops.report.cells import size
from traceops.report.figures import MOST_STEPS, Y_LABELS, laid_out, rounded
from traceops.report.terms import CAUSES, TERMS
from traceops.report.worst import shown_ranks

MOST_KINDS = 24  # of collectives, a bar each
MOST_CHANGES = 16
WORTH_PCT = 1.0  # of the step: a change that saves less is drawn grey
_MOST_COLOURS = 8
_WRITE_IN_CELLS = 12  # steps; more, and the numbers no longer fit
_MOST_TALL = 16  # ranks; more, and rows get lower
_GREY = "#8a8f98"
_SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A7A7A", "#B8A800")


def lateness_figure(report: Report, ranks: Sequence[int] | None = None) -> go.Figure:
    """Waiting that each rank caused in each step, ms summed over the ranks that waited: a heat map.

    Hover splits it by cause and says what the rank waited itself. Without `ranks` all of them, or the
    worst of more than 64; the last 400 steps where there are more. The colours span at least 10 % of the
    median step, so that small change stays pale.
    """
    cells = {(row["rank"], row["step"]): row for row in report.tables.get("lateness") or []}
    judged = {rank for rank, _ in cells}
    chosen = [rank for rank in (shown_ranks(report) if ranks is None else ranks) if rank in judged]
    steps = sorted({step for _, step in cells}, key=lambda step: -1 if step is None else step)[-MOST_STEPS:]
    grid = [[_caused(cells.get((rank, step))) for step in steps] for rank in chosen]
    known = [value for line in grid for value in line if value is not None] or [0.0]
    written = len(steps) <= _WRITE_IN_CELLS
    median = (report.summary.get("step_time_ms") or {}).get("median") or 0.0
    figure = go.Figure(
        go.Heatmap(
            x=["window" if step is None else f"step {step}" for step in steps],
            y=[f"rank {rank}" for rank in chosen],
            z=grid,
            zmin=0.0,
            zmax=max(*known, 0.1 * median, 1e-3),
            colorscale=[[0, "#fbf6f1"], [1, TERMS["comm_wait"].colour]],
            showscale=not written,
            colorbar={"title": {"text": "ms"}, "thickness": 12},
            texttemplate="%{z:.3~g}" if written else None,
            textfont={"color": "#10161d"},
            hovertext=[[_split_text(cells.get((rank, step))) for step in steps] for rank in chosen],
            xgap=1 if written else 0,
            ygap=1,
            hoverongaps=False,
            hovertemplate="%{y}, %{x}: others wait %{z:.3f} ms for it<br>%{hovertext}<extra></extra>",
        )
    )
    figure.update_yaxes(autorange="reversed", type="category", **Y_LABELS)
    figure.update_xaxes(type="category", automargin=True)
    return laid_out(figure, len(chosen), pixels=22 if len(chosen) <= _MOST_TALL else 14)


def arrivals_figure(report: Report) -> go.Figure:
    """Each kind of collective: bars from the median to the 95th percentile of first to last arrival, ms.

    Beside each bar stands who comes last most often, and how often. The 24 kinds that wait most.
    """
    rows = (report.tables.get("arrivals") or [])[:MOST_KINDS]
    places = list(range(len(rows)))
    low = [rounded(row["spread_p50_ms"]) or 0.0 for row in rows]
    high = [max(rounded(row["spread_p95_ms"]) or 0.0, p50) for row, p50 in zip(rows, low, strict=True)]
    about = [
        f"{_safe(row['op'])} of ranks {ranks_text(row['ranks'], 8)}, {row['count']} collectives<br>"
        f"spread p50 {p50:.3f}, p95 {p95:.3f}, most {row['spread_max_ms']:.3f} ms<br>"
        f"rank {row['last_rank']} comes last in {row['last_rank_pct']:.0f} %"
        for row, p50, p95 in zip(rows, low, high, strict=True)
    ]
    figure = go.Figure()
    figure.add_bar(
        x=[rounded(p95 - p50) for p50, p95 in zip(low, high, strict=True)],
        base=low,
        y=places,
        orientation="h",
        width=0.55,
        marker={"color": TERMS["comm_wait"].colour, "opacity": 0.55},
        name="p50 to p95",
        text=[f" rank {row['last_rank']} last in {row['last_rank_pct']:.0f} %" for row in rows],
        textposition="outside",
        cliponaxis=False,
        hovertext=about,
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )
    figure.add_scatter(
        x=low,
        y=places,
        mode="markers",
        name="median",
        marker={
            "symbol": "line-ns-open",
            "size": 14,
            "line": {"width": 3},
            "color": TERMS["comm_wait"].colour,
        },
        hovertext=about,
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )
    most = max(high, default=1.0) or 1.0
    figure.update_xaxes(
        title={"text": "ms from the first arrival to the last, median to p95"}, range=[0, 1.35 * most]
    )
    _label_places(figure, [_kind_label(row) for row in rows])
    return laid_out(figure, len(rows), pixels=28)


def bandwidth_figure(report: Report) -> go.Figure:
    """Bus bandwidth (GB/s, 10⁹ bytes) of each collective against its size (bytes, log), a colour a kind and group.

    Where TO-C001 fired, a line shows what the link should give.
    """
    kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in report.tables.get("bandwidth") or []:
        if row.get("bytes") and row.get("busbw_gbs") is not None:
            kinds[f"{row['op']} · {row['group']}"].append(row)
    ordered = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    series = [(_safe(kind, 60), kinds[kind]) for kind in ordered[:_MOST_COLOURS]]
    if rest := [row for kind in ordered[_MOST_COLOURS:] for row in kinds[kind]]:
        series.append((f"{len(ordered) - _MOST_COLOURS} other kinds", rest))
    figure = go.Figure()
    for place, (label, rows) in enumerate(series):
        figure.add_scatter(
            x=[row["bytes"] for row in rows],
            y=[rounded(row["busbw_gbs"]) for row in rows],
            mode="markers",
            name=label,
            showlegend=True,
            marker={"size": 7, "opacity": 0.6, "color": _SERIES[place] if place < len(_SERIES) else _GREY},
            customdata=[
                f"{_safe(row['op'])} of {_safe(row['group'])}, ranks {ranks_text(row['ranks'], 6)}<br>"
                f"{size(row['bytes']).text} in {row['transfer_ms']:.3f} ms"
                for row in rows
            ],
            hovertemplate="%{customdata}: %{y:.1f} GB/s<extra></extra>",
        )
    for found in report.findings:
        reference = next((e.value for e in found.evidence if e.metric == "reference"), None)
        if found.rule == "TO-C001" and isinstance(reference, (int, float)):
            figure.add_hline(
                y=float(reference),
                line={"dash": "dash", "width": 1.5, "color": _GREY},
                annotation={"text": f"the link should give {reference:g} GB/s", "xanchor": "right"},
            )
            break
    sizes = [math.log10(row["bytes"]) for rows in kinds.values() for row in rows] or [6.0]
    beside = max(0.6 - (max(sizes) - min(sizes)) / 2, 0.1)  # a decade or more: near sizes are no spectrum
    figure.update_xaxes(
        type="log",
        range=[min(sizes) - beside, max(sizes) + beside],
        title={"text": "bytes of one collective"},
        **_size_ticks(min(sizes) - beside, max(sizes) + beside),
    )
    figure.update_yaxes(title={"text": "bus GB/s"}, rangemode="tozero", automargin=True)
    figure.update_layout(legend={"orientation": "h", "y": -0.3, "x": 0})
    return laid_out(figure, 10, pixels=26, grid_y=True)


def what_if_figure(report: Report) -> go.Figure:
    """Predicted step time for one change at a time, ms, most saved first; a line marks the step as it is."""
    rows = sorted(report.what_if, key=lambda row: -(row.get("saved_pct") or 0.0))[:MOST_CHANGES]
    predicted = [rounded(row.get("predicted_step_time_ms")) for row in rows]
    saved = [row.get("saved_pct") for row in rows]
    figure = go.Figure(
        go.Bar(
            x=predicted,
            y=list(range(len(rows))),
            orientation="h",
            width=0.6,
            marker={
                "color": [TERMS["compute"].colour if (pct or 0.0) >= WORTH_PCT else _GREY for pct in saved]
            },
            text=[_saved_text(pct) for pct in saved],
            textposition="auto",
            insidetextanchor="start",
            insidetextfont={"color": "#ffffff", "size": 12},
            constraintext="none",
            customdata=[_safe(row["change"], 120) for row in rows],
            hovertemplate="%{customdata}: %{x:.3f} ms, %{text}<extra></extra>",
            showlegend=False,
        )
    )
    measured = next((row["step_time_ms"] for row in rows if row.get("step_time_ms") is not None), None)
    if measured is not None:
        figure.add_vline(
            x=measured,
            line={"width": 2, "color": TERMS["comm_wait"].colour},
            annotation={"text": f"now {measured:.4g} ms", "yanchor": "bottom", "xanchor": "right", "y": 1},
        )
    figure.update_xaxes(title={"text": "step ms"}, rangemode="tozero")
    _label_places(figure, [_safe(row["change"], 44) for row in rows])
    laid_out(figure, len(rows), pixels=28)
    return figure.update_layout(margin={"t": 26})


def label_lanes(figure: go.Figure, ranks: Sequence[int]) -> None:
    """Lane numbers 0, 1, … on the y axis read 'rank r', the first on top."""
    _label_places(figure, [f"rank {rank}" for rank in ranks])


def _label_places(figure: go.Figure, labels: Sequence[str]) -> None:
    figure.update_yaxes(
        tickvals=list(range(len(labels))),
        ticktext=list(labels),
        range=[len(labels) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
        **Y_LABELS,
    )


def _size_ticks(low: float, high: float) -> dict[str, list[Any]]:
    """Round sizes between two powers of ten: 1, 2 and 5 of each, only 1 where there are many."""
    digits = (1, 2, 5) if high - low < 3.5 else (1,)
    values = [
        digit * 10**power
        for power in range(math.floor(low), math.ceil(high) + 1)
        for digit in digits
        if power >= 0 and low <= math.log10(digit * 10**power) <= high
    ]
    return {"tickvals": values, "ticktext": [size(value).text.replace(".0 ", " ") for value in values]}


def _caused(row: Mapping[str, Any] | None) -> float | None:
    return None if row is None else rounded(row["caused_wait_ms"])


def _split_text(row: Mapping[str, Any] | None) -> str:
    """'GPU 29.1, host 0.4 ms; it waited 0.2 ms itself'."""
    if row is None:
        return ""
    parts = [
        f"{label} {row[f'{cause}_ms']:.3f}"
        for cause, (label, _) in CAUSES.items()
        if (row.get(f"{cause}_ms") or 0.0) >= 0.0005
    ]
    waited = row.get("waited_ms")
    itself = "" if waited is None else f"it waited {waited:.3f} ms itself"
    return f"{', '.join(parts)} ms; {itself}" if parts else itself


def _kind_label(row: Mapping[str, Any]) -> str:
    named = str(row["group"])
    members = ranks_text(row["ranks"], 2)
    group = f"ranks {members}" if named == f"{len(row['ranks'])} ranks" else f"{named[:20]} {members}"
    each = "" if row.get("bytes") is None else f" {size(row['bytes']).text}"
    return _safe(f"{str(row['op'])[:20]}{each} ×{row['count']} · {group}", 64)


def _saved_text(pct: float | None) -> str:
    if pct is None or not math.isfinite(pct):
        return ""
    return f"saves {pct:.1f} %" if pct >= 0 else f"costs {-pct:.1f} %"


def _safe(text: Any, limit: int = 80) -> str:
    """Cut and escaped: plotly reads tags in labels, legends and hover texts."""
    return html.escape(str(text)[:limit], quote=False)
