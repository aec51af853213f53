"""Plotly figures of a Report as plain dicts in plotly's JSON schema, for the HTML page and for notebooks."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from traceops.core.arrays import median as median_of
from traceops.core.arrays import percentiles
from traceops.measure.ledger import BUCKETS, IDLE_BUCKETS
from traceops.render.report.rank_groups import MOST_RANKS, outliers, row_labels, shown_ranks
from traceops.render.report.terms import TERMS, say
from traceops.report.model import Report
from traceops.words.catalogue import texts

# "data" (a list of traces) and "layout": what plotly.js draws, and what plotly.graph_objects.Figure(figure) takes.
# Made without plotly's own classes: importing and filling them takes longer than the rest of the page.
Figure = dict[str, Any]
MOST_STEPS = 400
_PATTERN_LOOK = {"fillmode": "overlay", "fgcolor": "rgba(255,255,255,0.75)", "size": 7, "solidity": 0.2}
_PATTERN = {"comm_wait": "/", "comm_unmatched": ".", "idle_sync": "\\"}  # for print without colour
Y_LABELS = {"automargin": True, "ticks": "outside", "ticklen": 6, "tickcolor": "rgba(0,0,0,0)"}
CATEGORIES = {"autorange": "reversed", "type": "category", **Y_LABELS}  # an axis with a row a label, the first on top
_ALL_RANKS_PX = 420  # of a heat map with a thin line a rank
_NAMED_ROWS = 20
_WRITE_IN_CELLS = 12  # steps; more, and the numbers no longer fit


def worded(key: str, /, **facts: Any) -> str:
    """A text of [figures] in words/page.ini: an axis's title, or what a mark says where one points at it."""
    return texts("page", "figures")[key].format(**facts)


def hover(key: str, /, **facts: Any) -> str:
    """The same as plotly's template of what is said of a mark."""
    return f"{worded(key, **facts)}<extra></extra>"


def bar_trace(name: str, x: Sequence[Any], y: Sequence[Any], colour: Any, template: str, **more: Any) -> dict[str, Any]:
    """A trace of bars that lie; `template` is its hover text, `more` whatever else plotly's bar takes."""
    marker = {"color": colour, "line": {"width": 0}, **more.pop("marker", {})}
    return {
        "type": "bar", "name": name, "x": list(x), "y": list(y), "orientation": "h", "marker": marker,
        "hovertemplate": template, **more,
    }  # fmt: skip


def ledger_figure(report: Report, ranks: Sequence[int] | None = None) -> Figure:
    """Where each rank's step goes: stacked bars, ms per step, mean over the rank's steps. `ranks` chooses the bars;
    without it all ranks, or one of each kind of more than 64."""
    return _stacked(report, BUCKETS, ranks, say("ledger", "axis", report.summary.step_words))


def idle_figure(report: Report, ranks: Sequence[int] | None = None) -> Figure:
    """Why each rank's device was idle: stacked bars, ms per step, mean over the rank's steps."""
    return _stacked(report, IDLE_BUCKETS, ranks, say("idle", "axis", report.summary.step_words))


def steps_figure(report: Report, ranks: Sequence[int] | None = None) -> Figure:
    """Duration of each step on each rank, ms: a heat map; the last 400 steps where there are more. Where there are too
    many ranks for a row each, all of them are thin lines, and only some are named. The colours span at least ±20 % of
    the median, so that even steps look even."""
    all_ranks = ranks is None or len(report.ranks) > MOST_RANKS
    chosen = [row.rank for row in report.ranks] if all_ranks else list(ranks or ())
    wanted = set(chosen)
    duration = {
        (row.rank, row.step): float(row.duration_ms)
        for row in report.steps
        if row.step is not None and row.rank in wanted
    }
    steps = sorted({step for _, step in duration})[-MOST_STEPS:]
    grid = [[rounded(duration.get((rank, step))) for step in steps] for rank in chosen]
    known = [value for line in grid for value in line if value is not None] or [0.0]
    median = median_of(known)
    heat = {
        "z": grid,
        "zmin": min(*known, 0.8 * median),
        "zmax": max(*known, 1.2 * median),
        "colorscale": [[0, "#f3f7fc"], [1, "#5d9bd8"]],
        "hovertemplate": "%{y}, %{x}: %{z:.3f} ms<extra></extra>",
    }
    labels = [f"rank {rank}" for rank in chosen]
    figure = heat_map([f"step {step}" for step in steps], labels, heat, "%{z:.4~g}", pixels=22)
    if len(chosen) > MOST_RANKS:
        figure["layout"]["height"] = 80 + _ALL_RANKS_PX
        figure["layout"]["yaxis"] |= _named_rows(report, labels)
    return figure


def _named_rows(report: Report, labels: Sequence[str]) -> dict[str, Any]:
    """Ticks of an axis with very many ranks: outliers, and others as far as there is room."""
    room = -(-len(labels) // _NAMED_ROWS)
    places = {label: place for place, label in enumerate(labels)}
    kept: list[int] = []
    wanted = [places[name] for rank in outliers(report) if (name := f"rank {rank}") in places]
    for place in (*wanted, *range(0, len(labels), room)):
        if all(abs(place - other) >= room for other in kept):
            kept.append(place)
    names = [labels[place] for place in sorted(kept)]
    return {"tickvals": names, "ticktext": names}


def heat_map(
    columns: Sequence[str], labels: Sequence[str], heat: Mapping[str, Any], written: str, pixels: int
) -> Figure:
    """A row a label, so many pixels high, and a column a step; the numbers stand in the cells where they fit. `heat` is
    the trace's values and colours, `written` how a cell writes its number."""
    fits = len(columns) <= _WRITE_IN_CELLS and len(labels) <= MOST_RANKS
    trace = {
        "type": "heatmap", "x": list(columns), "y": list(labels), **heat, **({"texttemplate": written} if fits else {}),
        "showscale": not fits, "colorbar": {"title": {"text": "ms"}, "thickness": 12},
        "textfont": {"color": "#10161d"}, "hoverongaps": False, "xgap": 1 if fits else 0,
        "ygap": 1 if len(labels) <= MOST_RANKS else 0,
    }  # fmt: skip
    xaxis = {"type": "category", "automargin": True}
    return laid_out([trace], len(labels), pixels=pixels, xaxis=xaxis, yaxis=CATEGORIES)


def distribution_figure(report: Report) -> Figure:
    """How each bucket spreads over all ranks, ms per step: boxes from quartile to quartile, whiskers to the ends."""
    boxes = []
    for bucket in reversed(BUCKETS):
        values = [ms for row in report.ranks if (ms := row.bucket_ms(bucket)) is not None]
        if not values or max(values) <= 0:
            continue
        least, low, middle, high, most = map(rounded, percentiles(np.array(values), (0, 25, 50, 75, 100)))
        term = TERMS[bucket]
        boxes.append({
            "type": "box", "name": term.label, "y": [term.label], "orientation": "h", "marker": {"color": term.colour},
            "lowerfence": [least], "q1": [low], "median": [middle], "q3": [high], "upperfence": [most],
            "showlegend": False,
        })  # fmt: skip
    title = say("ledger", "spread_axis", report.summary.step_words, ranks=len(report.ranks))
    return laid_out(boxes, len(boxes), pixels=30, xaxis=axis(title, rangemode="tozero"), yaxis=Y_LABELS)


def _stacked(report: Report, buckets: Sequence[str], ranks: Sequence[int] | None, title: str) -> Figure:
    by_rank = {int(row.rank): row for row in report.ranks}
    rows = [by_rank[r] for r in (shown_ranks(report) if ranks is None else ranks) if r in by_rank]
    labels = row_labels(report, [row.rank for row in rows])
    where = [f" on {escaped(row.host)}" if row.host else "" for row in rows]
    bars = []
    for bucket in buckets:
        values = [rounded(row.bucket_ms(bucket)) for row in rows]
        term, pattern = TERMS[bucket], {"shape": _PATTERN.get(bucket, ""), **_PATTERN_LOOK}
        bars.append(
            bar_trace(
                term.label, values, labels, term.colour, hover("stacked", label=term.label), meta=bucket,
                marker={"pattern": pattern}, customdata=where, showlegend=any(values),
            )
        )  # fmt: skip
    return laid_out(
        bars, len(rows), pixels=26, least=250, xaxis=axis(title, rangemode="tozero"), yaxis=CATEGORIES,
        barmode="stack", bargap=0.25 if len(rows) > 4 else 0.5,
        legend={"traceorder": "normal", "itemclick": "toggle", "itemdoubleclick": "toggleothers"},
    )  # fmt: skip


def laid_out(
    traces: Sequence[Mapping[str, Any]], lines: int, pixels: int, *, xaxis: Mapping[str, Any],
    yaxis: Mapping[str, Any], least: int = 150, grid_y: bool = False, margin: Mapping[str, int] | None = None,
    **layout: Any,
) -> Figure:  # fmt: skip
    """High enough for its lines, without a background so that it fits a light and a dark page. `margin` replaces sides
    of the usual one, `layout` is whatever else plotly's layout takes."""
    grid = {"gridcolor": "rgba(128,128,128,0.25)", "zerolinecolor": "rgba(128,128,128,0.5)"}
    return {
        "data": list(traces),
        "layout": {
            "template": {},  # else plotly's own in a notebook
            "height": max(least, 80 + pixels * lines),
            "margin": {"l": 10, "r": 10, "t": 10, "b": 50, **(margin or {})},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"size": 12},
            "xaxis": {**xaxis, **grid},
            "yaxis": {**yaxis, **(grid if grid_y else {})},
            **layout,
        },
    }


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis of a layout with its title; `more` is whatever else plotly's axis takes."""
    return {"title": {"text": title}, **more}


def line(
    name: str, x: Sequence[Any], y: Sequence[float | None], colour: str, width: float = 1.4, **more: Any
) -> dict[str, Any]:
    """A trace: a line through points. `more` is whatever else plotly's scatter takes."""
    values = [rounded(value) for value in y]
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": values,
        "line": {"color": colour, "width": width}, **more,
    }  # fmt: skip


def dots(
    name: str, x: Sequence[Any], y: Sequence[Any], marker: Mapping[str, Any], hover: str, **more: Any
) -> dict[str, Any]:
    """A trace: a mark at each point. hover: plotly's template of what is said there."""
    values = [rounded(value) if isinstance(value, float) else value for value in y]
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": list(x), "y": values, "marker": dict(marker),
        "hovertemplate": f"{hover}<extra></extra>", **more,
    }  # fmt: skip


def escaped(text: Any, limit: int = 80) -> str:
    """Cut and escaped: plotly reads tags in labels, legends and hover texts."""
    return html.escape(str(text)[:limit], quote=False)


def upright_line(x: float, line: Mapping[str, Any]) -> dict[str, Any]:
    """A shape of the layout: a line over the figure's whole height."""
    return {"type": "line", "x0": x, "x1": x, "xref": "x", "y0": 0, "y1": 1, "yref": "y domain", "line": line}


def rounded(value: float | None) -> float | None:
    """Four decimals, None for what is not known."""
    return None if value is None or not math.isfinite(value) else round(float(value), 4)
