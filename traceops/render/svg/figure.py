"""A figure in plotly's JSON schema laid out as a `Plot`: the bars, boxes, heat maps and points that ours consist of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traceops.render.svg import plot
from traceops.render.svg.marks import bar_ends, bars, boxes, dash_of, heat_map, pattern_of, points

TYPES = ("bar", "box", "heatmap", "scatter")
_GRID = "var(--line)"
_MOST_TICKS = 12
_NOTE_PX = 18.0
_WIDEST_ROW_PX = 42.0  # of a category: few of them do not fill a figure's least height
_BELOW_PX = 60  # of plotly's height: margins, which hold its ticks and title


def plot_of(figure: Mapping[str, Any]) -> plot.Plot:
    """The figure laid out. Raises ValueError for a trace of another type than `TYPES`: nothing of a figure is left out
    without a word."""
    traces: Sequence[Mapping[str, Any]] = figure["data"]
    layout: Mapping[str, Any] = figure["layout"]
    for trace in traces:
        if trace.get("type") not in TYPES:
            raise ValueError(f"a figure has a trace of type {trace.get('type')!r}; pages draw {', '.join(TYPES)}")
    frame = _frame(traces, layout)
    by_type = {kind: [trace for trace in traces if trace["type"] == kind] for kind in TYPES}
    marks = [*_grid(frame, layout), *_shapes(layout, frame, below=True)]
    marks += [*bars(by_type["bar"], layout, frame), *boxes(by_type["box"], frame)]
    marks += [mark for trace in by_type["heatmap"] for mark in heat_map(trace, frame)]
    marks += [mark for trace in by_type["scatter"] for mark in points(trace, frame)]
    marks += [*_shapes(layout, frame, below=False), *_notes(layout, frame)]
    rows = _rows(frame)
    placed = [
        (100 * share, text)
        for value, text in frame.x.ticks
        if (share := frame.x.share(value)) is not None and -1e-6 <= share <= 1 + 1e-6
    ]
    every = max(1, -(-len(placed) // _MOST_TICKS))
    kept = placed[::every]
    return plot.Plot(
        height=round(frame.height, 1),
        marks=tuple(marks),
        rows=rows,
        ticks=tuple(
            plot.Tick(round(x, 3), text, "start" if x < 3 else "end" if x > 97 else "middle", minor=place % 2 == 1)
            for place, (x, text) in enumerate(kept)
        ),
        legend=tuple(_legend(traces)),
        x_title=frame.x.title,
        y_title=frame.y.title,
        chars=max((len(line) for row in rows for line in row.text.split("\n")), default=0),
    )


def _ends(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> Iterator[Any]:
    """Values that the x axis has to reach: ends of bars, whiskers and intervals."""
    for own in bar_ends([trace for trace in traces if trace["type"] == "bar"], layout):
        for pair in own:
            yield from pair
    for trace in traces:
        if trace["type"] == "box":
            yield from (*trace["lowerfence"], *trace["upperfence"], 0.0)
        if "error_x" in trace:
            error = trace["error_x"]
            for x, more, less in zip(trace["x"], error["array"], error["arrayminus"], strict=True):
                yield from () if x is None else (x - (less or 0.0), x + (more or 0.0))


def _frame(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> plot.PlotFrame:
    across = [value for trace in traces if trace["type"] in ("scatter", "heatmap") for value in trace["x"]]
    lines = [value for trace in traces for value in trace["y"]]
    level = [shape["y0"] for shape in layout.get("shapes", ()) if shape.get("yref") == "y"]
    x = plot.axis_of(layout.get("xaxis", {}), across, list(_ends(traces, layout)))
    y = plot.axis_of(layout.get("yaxis", {}), lines, level, most=5)
    margin = layout.get("margin") or {}
    height = float(layout.get("height", 300)) - _BELOW_PX - max(float(margin.get("b", 50)) - 50, 0.0)
    if y.names or "tickvals" in layout.get("yaxis", {}):
        height = min(height, abs(y.high - y.low) * _WIDEST_ROW_PX)
    above = any(note.get("yanchor") == "bottom" and _domain(note, "y") for note in layout.get("annotations", ()))
    top = _NOTE_PX if above else 0.0
    return plot.PlotFrame(x, y, max(height, 24.0) + top, top)


def _grid(frame: plot.PlotFrame, layout: Mapping[str, Any]) -> Iterator[plot.Mark]:
    """Thin lines at the ticks of axes that have numbers."""
    if layout.get("xaxis", {}).get("showgrid", True) and not frame.x.names:
        for value, _ in frame.x.ticks:
            if (x := frame.across(value)) is not None:
                yield plot.Segment(x, frame.top, x, frame.height, _GRID)
    if not frame.y.names and layout.get("yaxis", {}).get("showgrid", True):
        for value, _ in frame.y.ticks:
            if (y := frame.down(value)) is not None:
                yield plot.Segment(0, y, 100, y, _GRID)


def _shapes(layout: Mapping[str, Any], frame: plot.PlotFrame, *, below: bool) -> Iterator[plot.Mark]:
    for shape in layout.get("shapes", ()):
        if (shape.get("layer") == "below") != below:
            continue
        x0, x1 = (_place(shape[key], "x", shape, frame) for key in ("x0", "x1"))
        y0, y1 = (_place(shape[key], "y", shape, frame) for key in ("y0", "y1"))
        line = shape.get("line") or {}
        if x0 is None or x1 is None or y0 is None or y1 is None:
            continue
        if shape["type"] == "rect":
            colour, top = str(shape.get("fillcolor", "#80808030")), min(y0, y1)
            yield plot.Rectangle(min(x0, x1), top, round(abs(x1 - x0), 3), abs(y1 - y0), colour)
        else:
            yield plot.Segment(
                x0, y0, x1, y1, str(line.get("color", "#808080")), float(line.get("width", 1)), dash_of(line)
            )


def _notes(layout: Mapping[str, Any], frame: plot.PlotFrame) -> Iterator[plot.Mark]:
    for note in layout.get("annotations", ()):
        x, y = (_place(note[axis], axis, note, frame) for axis in ("x", "y"))
        if x is None or y is None:
            continue
        above = note.get("yanchor") == "bottom"
        anchor = {"right": "end", "center": "middle"}.get(str(note.get("xanchor")), "start")
        if anchor == "middle":  # not over the edges
            anchor = "start" if x < 15 else "end" if x > 85 else "middle"
        colour = str((note.get("font") or {}).get("color", ""))
        yield plot.Note(x, y - 9 if above else y, plot.plain(note["text"]), anchor, "", colour)  # type: ignore[arg-type]


def _place(value: Any, axis: str, item: Mapping[str, Any], frame: plot.PlotFrame) -> float | None:
    """Percent or px of a coordinate of the data, or of the plot's own ('x domain')."""
    if _domain(item, axis):
        inner = frame.height - frame.top
        return 100 * float(value) if axis == "x" else round(frame.top + (1 - float(value)) * inner, 2)
    return frame.across(value) if axis == "x" else frame.down(value)


def _domain(item: Mapping[str, Any], axis: str) -> bool:
    return str(item.get(f"{axis}ref", axis)).endswith("domain")


def _rows(frame: plot.PlotFrame) -> tuple[plot.PlotRow, ...]:
    made = []
    named = bool(frame.y.names) or not all(
        text.replace(",", "").replace(".", "").lstrip("-−").isdigit() for _, text in frame.y.ticks
    )
    for value, text in frame.y.ticks:
        if (y := frame.down(value)) is not None and text:
            made.append(
                plot.PlotRow(y, max(round(frame.band, 1), 14.0) if named else 16.0, text, "" if named else "number")
            )
    least = 11.0 if named else 8.0
    if len(made) > 1 and abs(made[1].y - made[0].y) < least:  # too low for a label each
        every = int(-(-least // abs(made[1].y - made[0].y)))
        made = [plot.PlotRow(row.y, 12.0, row.text, row.css) for row in made[::every]]
    return tuple(made)


def _legend(traces: Sequence[Mapping[str, Any]]) -> Iterator[plot.LegendEntry]:
    named = [trace for trace in traces if trace.get("name") and trace["type"] in ("bar", "scatter")]
    for trace in named:
        if not trace.get("showlegend", len(named) > 1):
            continue
        marker, line = trace.get("marker") or {}, trace.get("line") or {}
        drawn_as_line = trace["type"] == "scatter" and "markers" not in str(trace.get("mode", ""))
        colour = (line.get("color") if drawn_as_line else None) or marker.get("color")
        if isinstance(colour, (list, tuple)):
            colour = None
        own = str(colour or (marker.get("line") or {}).get("color") or line.get("color") or "#808080")
        yield plot.LegendEntry(plot.plain(trace["name"]), own, pattern_of(trace), drawn_as_line)
