"""Plotly figures of a Report, for the HTML page and for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from traceops.analyses.ledger import BUCKETS, IDLE_BUCKETS
from traceops.model import Report
from traceops.report.terms import TERMS
from traceops.report.worst import shown_ranks

MOST_STEPS = 400
_PATTERN = {"comm_wait": "/", "comm_unmatched": ".", "idle_sync": "\\"}  # for print without colour
Y_LABELS = {"automargin": True, "ticks": "outside", "ticklen": 6, "tickcolor": "rgba(0,0,0,0)"}
_WRITE_IN_CELLS = 12  # steps; more, and the numbers no longer fit


def ledger_figure(report: Report, ranks: Sequence[int] | None = None) -> go.Figure:
    """Where each rank's step goes: stacked bars, ms a step, mean over the rank's steps.

    `ranks` chooses the bars; without it all ranks, or the worst of more than 64.
    """
    return _stacked(report, BUCKETS, ranks, "ms a step (mean over steps)")


def idle_figure(report: Report, ranks: Sequence[int] | None = None) -> go.Figure:
    """Why each rank's device was idle: stacked bars, ms a step, mean over the rank's steps."""
    return _stacked(report, IDLE_BUCKETS, ranks, "idle ms a step (mean over steps)")


def steps_figure(report: Report, ranks: Sequence[int] | None = None) -> go.Figure:
    """Duration of each step on each rank, ms: a heat map; the last 400 steps where there are more.

    The colours span at least ±20 % of the median, so that even steps look even.
    """
    chosen = shown_ranks(report) if ranks is None else list(ranks)
    duration = {
        (row["rank"], row["step"]): float(row["duration_ms"])
        for row in report.steps
        if row["step"] is not None
    }
    wanted = set(chosen)
    steps = sorted({step for rank, step in duration if rank in wanted})[-MOST_STEPS:]
    grid = [[rounded(duration.get((rank, step))) for step in steps] for rank in chosen]
    known = [value for line in grid for value in line if value is not None] or [0.0]
    median = float(np.median(known))
    written = len(steps) <= _WRITE_IN_CELLS
    figure = go.Figure(
        go.Heatmap(
            x=[f"step {step}" for step in steps],
            y=[f"rank {rank}" for rank in chosen],
            z=grid,
            zmin=min(*known, 0.8 * median),
            zmax=max(*known, 1.2 * median),
            colorscale=[[0, "#f3f7fc"], [1, "#5d9bd8"]],
            showscale=not written,
            colorbar={"title": {"text": "ms"}, "thickness": 12},
            texttemplate="%{z:.4~g}" if written else None,
            textfont={"color": "#10161d"},
            xgap=1 if written else 0,
            ygap=1,
            hoverongaps=False,
            hovertemplate="%{y}, %{x}: %{z:.3f} ms<extra></extra>",
        )
    )
    figure.update_yaxes(autorange="reversed", type="category", **Y_LABELS)
    figure.update_xaxes(type="category", automargin=True)
    return laid_out(figure, len(chosen), pixels=22)


def distribution_figure(report: Report) -> go.Figure:
    """How each bucket spreads over all ranks, ms a step: boxes from quartile to quartile, whiskers to the ends."""
    figure = go.Figure()
    for bucket in reversed(BUCKETS):
        values = _bucket(report, bucket)
        if not values or max(values) <= 0:
            continue
        least, low, middle, high, most = (
            rounded(float(v)) for v in np.percentile(values, (0, 25, 50, 75, 100))
        )
        figure.add_box(
            q1=[low],
            median=[middle],
            q3=[high],
            lowerfence=[least],
            upperfence=[most],
            y=[TERMS[bucket].label],
            name=TERMS[bucket].label,
            orientation="h",
            marker={"color": TERMS[bucket].colour},
            showlegend=False,
        )
    figure.update_xaxes(title={"text": f"ms a step over all {len(report.ranks)} ranks"}, rangemode="tozero")
    figure.update_yaxes(**Y_LABELS)
    return laid_out(figure, len(figure.data), pixels=30)


def _stacked(report: Report, buckets: Sequence[str], ranks: Sequence[int] | None, title: str) -> go.Figure:
    by_rank = {int(row["rank"]): row for row in report.ranks}
    chosen = [r for r in (shown_ranks(report) if ranks is None else ranks) if r in by_rank]
    labels = [f"rank {rank}" for rank in chosen]
    figure = go.Figure()
    for bucket in buckets:
        values = [rounded(by_rank[rank].get(f"{bucket}_ms")) for rank in chosen]
        term = TERMS[bucket]
        figure.add_bar(
            x=values,
            y=labels,
            name=term.label,
            orientation="h",
            meta=bucket,
            marker={
                "color": term.colour,
                "line": {"width": 0},
                "pattern": {
                    "shape": _PATTERN.get(bucket, ""),
                    "fillmode": "overlay",
                    "fgcolor": "rgba(255,255,255,0.75)",
                    "size": 7,
                    "solidity": 0.2,
                },
            },
            customdata=[_where(by_rank[rank]) for rank in chosen],
            hovertemplate=f"%{{y}}%{{customdata}}<br>{term.label}: %{{x:.3f}} ms<extra></extra>",
            showlegend=any(value for value in values),
        )
    figure.update_layout(
        barmode="stack",
        bargap=0.25 if len(chosen) > 4 else 0.5,
        legend={"traceorder": "normal", "itemclick": "toggle", "itemdoubleclick": "toggleothers"},
    )
    figure.update_xaxes(title={"text": title}, rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category", **Y_LABELS)
    return laid_out(figure, len(chosen), pixels=26, least=250)


def laid_out(figure: go.Figure, lines: int, pixels: int, least: int = 150, grid_y: bool = False) -> go.Figure:
    """High enough for its lines, without a background so that it fits a light and a dark page."""
    figure.update_layout(
        height=max(least, 80 + pixels * lines),
        margin={"l": 10, "r": 10, "t": 10, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"size": 12},
        template="none",
    )
    lines_of = {"gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.5)"}
    figure.update_xaxes(**lines_of)
    if grid_y:
        figure.update_yaxes(**lines_of)
    return figure


def _bucket(report: Report, bucket: str) -> list[float]:
    return [float(row[f"{bucket}_ms"]) for row in report.ranks if row.get(f"{bucket}_ms") is not None]


def _where(row: dict[str, Any]) -> str:
    """The host for the hover text; plotly reads tags there, so it is escaped."""
    return f" on {html.escape(str(row['host'])[:80])}" if row.get("host") else ""


def rounded(value: float | None) -> float | None:
    """Four decimals, None for what is not known."""
    return None if value is None or not np.isfinite(value) else round(float(value), 4)
