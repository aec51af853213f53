"""The plotly figure of one metric over the commits of a key."""

from __future__ import annotations

import html
from itertools import pairwise
from typing import Any

import numpy as np

from traceops.baseline.history import KeyHistory, LevelChange, Sample, Trend
from traceops.core.units import minute_text
from traceops.render.history.text import step_text, value_text
from traceops.render.report.figures import Figure, laid_out, rounded, upright_line

_DOT, _LEVEL = "#0072B2", "#8a8f98"
_COLOURS = {"worse": "#D55E00", "better": "#009E73", "neither": "#8a8f98"}
_MOST_TICKS = 10
_MOST_LETTERS = 60
_LEAST_RANGE = 0.05  # of the median to both sides, so that an even trend looks even


def trend_figure(history: KeyHistory, trend: Trend) -> Figure:
    """A dot a capture over its commit, in time order, a line at each level, and a mark at each lasting change.

    Captures of one commit stand above each other. The axis spans at least 5 % to both sides of the median.
    """
    scale, unit = (1e-9, "GB") if trend.unit == "B" else (1.0, trend.unit)
    places = [position for position, commit in enumerate(history.commits) for _ in commit.samples]
    samples = [sample for commit in history.commits for sample in commit.samples]
    known = [
        (place, value * scale, sample)
        for place, sample in zip(places, samples, strict=True)
        if (value := sample.values[trend.metric]) is not None
    ]
    levels = [
        {
            "type": "scatter",
            "x": [start - 0.4, end + 0.4],
            "y": [rounded(level * scale)] * 2,
            "mode": "lines",
            "line": {"color": _LEVEL, "width": 2},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        for (start, end), level in _levels(trend, len(history.commits))
    ]
    dots = {
        "type": "scatter",
        "x": [place for place, _, _ in known],
        "y": [rounded(value) for _, value, _ in known],
        "mode": "markers",
        "marker": {"color": _DOT, "size": 8, "opacity": 0.8},
        "hovertext": [_about(sample, trend) for _, _, sample in known],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "showlegend": False,
    }
    values = [value for _, value, _ in known]
    middle = float(np.median(values))
    low = min(*values, middle - _LEAST_RANGE * abs(middle))
    high = max(*values, middle + _LEAST_RANGE * abs(middle))
    room = (high - low) * 0.08 or 1.0
    ticks = sorted({round(t) for t in np.linspace(0, len(history.commits) - 1, _MOST_TICKS)})
    return laid_out(
        [*levels, dots],
        1,
        pixels=0,
        least=230,
        grid_y=True,
        margin={"l": 60, "t": 22, "b": 46},
        xaxis={
            "tickvals": ticks,
            "ticktext": [f"{_safe(history.commits[t].label)}<br>{history.commits[t].date[5:]}" for t in ticks],
            "range": [-0.7, len(history.commits) - 0.3],
            "zeroline": False,
            "showgrid": False,
        },
        yaxis={"title": {"text": unit}, "range": [low - room, high + 2 * room], "zeroline": False},
        shapes=[_line(change) for change in trend.changes],
        annotations=[_note(trend, change) for change in trend.changes],
        hovermode="closest",
    )


def _levels(trend: Trend, commits: int) -> list[tuple[tuple[int, int], float]]:
    """((first, last commit), level) between changes."""
    edges = [0, *(change.position for change in trend.changes), commits]
    found = []
    for start, end in pairwise(edges):
        known = [value for value in trend.values[start:end] if value is not None]
        if known:
            found.append(((start, end - 1), float(np.median(known))))
    return found


def _line(change: LevelChange) -> dict[str, Any]:
    return upright_line(change.position - 0.5, {"color": _COLOURS[change.verdict], "width": 1.5, "dash": "dash"})


def _note(trend: Trend, change: LevelChange) -> dict[str, Any]:
    return {
        "text": f"{step_text(trend, change)} since {_safe(change.since.label)}",
        "font": {"color": _COLOURS[change.verdict], "size": 12},
        "x": change.position - 0.5,
        "xref": "x",
        "xanchor": "center",
        "y": 1.0,
        "yref": "y domain",
        "yanchor": "bottom",
        "showarrow": False,
    }


def _about(sample: Sample, trend: Trend) -> str:
    entry = sample.entry
    commit = (entry.commit or "commit unknown")[:12] + (" and changes" if entry.dirty else "")
    return (
        f"{value_text(sample.values[trend.metric], trend.unit)}<br>{_safe(commit)}<br>"
        f"{minute_text(entry.time_ns)} UTC<br>{_safe(entry.source)}"
    )


def _safe(text: str) -> str:
    """Cut and escaped: plotly reads tags in labels and hover texts."""
    return html.escape(text[:_MOST_LETTERS], quote=False)
