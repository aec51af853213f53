"""Plotly figures of a Comparison: what moved in the step, how sure each change is, and every step."""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from traceops.compare.model import Comparison, MetricChange, MetricOutcome, StepPoint
from traceops.render.comparison import text
from traceops.render.comparison.text import WORDS
from traceops.render.report.figures import (
    CATEGORIES,
    Figure,
    axis,
    bar_trace,
    dots,
    laid_out,
    line,
    rounded,
    upright_line,
)
from traceops.render.report.terms import TERMS

COLOUR = {"base": "#0072B2", "head": "#D55E00"}
_OUTCOME: dict[MetricOutcome, str] = {
    "regression": "#D55E00", "inconclusive": "#E69F00", "waived": "#E69F00", "improvement": "#009E73",
    "unchanged": "#0072B2", "informative": "#7A7A7A",
}  # fmt: skip
_LEGEND_ABOVE = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
_WIDTH = 0.76  # of a capture's column that its steps fill
MOST_POINTS = 4000
_LEAST_SHARE = 0.002  # of the step: buckets that moved less are left out of the waterfall


def waterfall_figure(comparison: Comparison) -> Figure | None:
    """From base's step to head's, ms: what each bucket of the ledger adds or takes; None without a ledger. The axis
    does not begin at 0, so base and head are dots and only what moved is a bar."""
    buckets = [metric for metric in comparison.metrics if text.is_bucket(metric)]
    known = [
        (metric, metric.base, metric.head) for metric in buckets if metric.base is not None and metric.head is not None
    ]
    if not known:
        return None
    start, end = sum(base for _, base, _ in known), sum(head for _, _, head in known)
    moved = [(m, head - base) for m, base, head in known if abs(head - base) >= _LEAST_SHARE * max(start, end)]
    pieces: list[tuple[str, float, float, str]] = []  # label, from, length, colour
    at = start
    for metric, more in sorted(moved, key=lambda pair: -abs(pair[1])):
        pieces.append((html.escape(metric.label), at, more, TERMS[metric.metric].colour))
        at += more
    if abs(end - at) >= 0.005:
        pieces.append(("the rest", at, end - at, "#7A7A7A"))
    labels = [label for label, *_ in pieces]
    said = [f"{width:+.2f} ms" for _, _, width, _ in pieces]
    bars = bar_trace(
        "", [rounded(width) for _, _, width, _ in pieces], labels, [colour for *_, colour in pieces],
        "%{y}: %{customdata}<extra></extra>", base=[rounded(left) for _, left, *_ in pieces],
        marker={"line": {"width": 1, "color": "rgba(128,128,128,0.8)"}}, text=said, textposition="outside",
        cliponaxis=False, customdata=said, showlegend=False,
    )  # fmt: skip
    marker = {"size": 12, "color": [COLOUR["base"], COLOUR["head"]]}
    both = dots(
        "", [rounded(start), rounded(end)], ["base", "head"], marker, "%{y}: %{x:.2f} ms", mode="markers+text",
        text=[f"  {start:.2f} ms", f"  {end:.2f} ms"], textposition="middle right", cliponaxis=False, showlegend=False,
    )  # fmt: skip
    ends = [start, *(place for _, left, width, _ in pieces for place in (left, left + width)), end]
    room = max(0.4 * (max(ends) - min(ends)), 0.01 * max(ends, default=1.0))
    reach = [rounded(max(0.0, min(ends) - room)), rounded(max(ends) + room)]
    order = {"categoryorder": "array", "categoryarray": ["base", *labels, "head"], "showgrid": False}
    xaxis = axis(WORDS["ledger_axis"], range=reach)
    return laid_out([bars, both], len(labels) + 2, pixels=30, xaxis=xaxis, yaxis={**CATEGORIES, **order})


def interval_figure(comparison: Comparison) -> Figure | None:
    """Each metric's change in percent with its interval, and how much worse would fail; None without any."""
    shown = [
        m
        for m in comparison.metrics
        if _known(m.change_pct) and (_known(m.low_pct) or m.threshold_pct is not None) and (m.base or m.head)
    ]
    if not shown:
        return None
    labels = [_label(metric) for metric in shown]
    marker = {"size": 10, "color": [_OUTCOME[metric.outcome] for metric in shown]}
    error = {
        "type": "data", "symmetric": False, "array": [_reach(m.high_pct, m.change_pct) for m in shown],
        "arrayminus": [_reach(m.change_pct, m.low_pct) for m in shown], "thickness": 2, "width": 5,
        "color": "rgba(128,128,128,0.9)",
    }  # fmt: skip
    traces = [
        dots(
            WORDS["interval"], [rounded(metric.change_pct or 0.0) for metric in shown], labels, marker,
            WORDS["interval_hover"], error_x=error, showlegend=False,
            customdata=[[text.effect_text(m), text.outcome_text(m)] for m in shown],
        )
    ]  # fmt: skip
    if gated := [metric for metric in shown if metric.threshold_pct is not None]:
        marker = {"symbol": "line-ns", "size": 16, "line": {"width": 3, "color": "#CC3311"}}
        limits, names = [rounded(_limit(metric)) for metric in gated], [_label(metric) for metric in gated]
        traces.append(dots("fails from here", limits, names, marker, WORDS["limits_hover"]))
    zero = upright_line(0, {"width": 1, "color": "rgba(128,128,128,0.9)"})
    return laid_out(
        traces, len(shown), pixels=26, least=180, margin={"t": 34}, xaxis=axis("change, %", zeroline=False),
        yaxis={**CATEGORIES, "showgrid": False}, legend=_LEGEND_ABOVE, shapes=[zero],
    )  # fmt: skip


def steps_figure(comparison: Comparison) -> Figure | None:
    """Every step as a dot, a column a capture, in the order they were taken where that is known; None without. Over the
    columns lie the medians of what is compared: steps without the profiler where there are any."""
    if not comparison.steps:
        return None
    by_capture: dict[tuple[str, str], list[StepPoint]] = defaultdict(list)
    for point in comparison.steps:
        by_capture[point.side, point.capture].append(point)
    # Columns by when their capture began, which shows drift of the machine; as given where that is not known
    keys = list(by_capture)
    began: dict[tuple[str, str], Any] = {
        (side, capture.name): capture.started_ns
        for side, captures in (("base", comparison.base.captures), ("head", comparison.head.captures))
        for capture in captures
    }
    if any(began.get(key) is None for key in keys):
        columns = sorted(keys, key=lambda key: key[0] != "base")
    else:
        columns = sorted(keys, key=lambda key: began[key])
    thin = max(1, math.ceil(len(comparison.steps) / MOST_POINTS))
    placed = [
        (round(column + (place / max(len(by_capture[key]) - 1, 1) - 0.5) * _WIDTH, 4), point)
        for column, key in enumerate(columns)
        for place, point in list(enumerate(by_capture[key]))[::thin]
    ]
    traces: list[dict[str, Any]] = []
    for side, profiled in product(("base", "head"), (False, True)):
        if own := [(x, point) for x, point in placed if (point.side, point.profiled) == (side, profiled)]:
            symbol = "circle-open" if profiled else "circle"
            marker = {"color": COLOUR[side], "size": 6, "opacity": 0.8, "symbol": symbol}
            label = f"{side}, {'with' if profiled else 'without'} the profiler"
            names = [f"{html.escape(point.capture[:60])}, step {point.index}" for _, point in own]
            x, y = [x for x, _ in own], [point.ms for _, point in own]
            traces.append(dots(label, x, y, marker, "%{customdata}: %{y:.3f} ms", customdata=names))
    traces.append(_medians([by_capture[key] for key in columns]))
    numbers: dict[str, int] = defaultdict(int)
    ticks = []
    for side, _ in columns:
        numbers[side] += 1
        ticks.append(f"{side} {numbers[side]}")
    xaxis = {
        "tickvals": list(range(len(columns))), "ticktext": ticks, "range": [-0.6, len(columns) - 0.4],
        "automargin": True, "showgrid": False, "zeroline": False,
    }  # fmt: skip
    return laid_out(
        traces, 0, pixels=0, least=380, grid_y=True, margin={"t": 60}, xaxis=xaxis,
        yaxis=axis("ms per step", automargin=True), legend=_LEGEND_ABOVE,
    )  # fmt: skip


def _medians(captures: Sequence[Sequence[StepPoint]]) -> dict[str, Any]:
    """A line over each column at the median of what is compared."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for column, own in enumerate(captures):
        compared = [point.ms for point in own if not point.profiled] or [point.ms for point in own]
        median = rounded(float(np.median(compared)))
        xs += [column - _WIDTH / 2, column + _WIDTH / 2, None]
        ys += [median, median, None]
    return line(WORDS["medians"], xs, ys, "rgba(128,128,128,0.9)", 2, hovertemplate=WORDS["medians_hover"])


def _label(metric: MetricChange) -> str:
    return html.escape(metric.label[:60])


def _limit(metric: MetricChange) -> float:
    limit = float(metric.threshold_pct or 0.0)
    return -limit if metric.better == "higher" else limit


def _reach(upper: float | None, lower: float | None) -> float:
    return (rounded(upper - lower) or 0.0) if upper is not None and lower is not None else 0.0


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
