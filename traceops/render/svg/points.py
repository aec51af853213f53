"""Scatter traces as dots, lines and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from traceops.render.svg.axis import plain
from traceops.render.svg.frame import PlotFrame
from traceops.render.svg.hover import titles
from traceops.render.svg.plot import Dot, Mark, Note, Segment, Shape

_DASHES = {"dot": "2 3", "dash": "6 4", "dashdot": "6 3 2 3", "longdash": "10 4"}
_MOST_SEGMENTS = 40  # of a line that may be drawn piece by piece; a longer one is one path
_MOST_TITLED = 200  # dots with a text of their own; more of them are one path
_TICK_PX = 8.0


def dash_of(line: Mapping[str, Any]) -> str:
    """plotly's name of a dashed line as SVG's lengths."""
    return _DASHES.get(str(line.get("dash", "")), "")


def points(trace: Mapping[str, Any], frame: PlotFrame) -> Iterator[Mark]:
    """What a scatter trace shows by its mode."""
    places = [(frame.across(x), frame.down(y)) for x, y in zip(trace["x"], trace["y"], strict=True)]
    mode = str(trace.get("mode", "lines"))
    if "lines" in mode:
        yield from _line(trace, places)
    if "error_x" in trace:
        yield from _reach(trace, frame)
    if "markers" in mode:
        yield from _dots(trace, places)
    if "text" in mode:
        for (x, y), text in zip(places, trace["text"], strict=True):
            if x is not None and y is not None:
                right = x > 70
                yield Note(x, y, plain(text).strip(), "end" if right else "start", dx=-10 if right else 10)


def _line(trace: Mapping[str, Any], places: Sequence[tuple[float | None, float | None]]) -> Iterator[Mark]:
    line = trace.get("line") or {}
    colour, width = str(line.get("color", "#808080")), float(line.get("width", 1.5))
    opacity = float(trace.get("opacity", 1.0))
    joined = [
        (a, b, c, d)
        for (a, b), (c, d) in pairwise(places)
        if a is not None and b is not None and c is not None and d is not None
    ]
    if len(joined) <= _MOST_SEGMENTS:
        for a, b, c, d in joined:
            yield Segment(a, b, c, d, colour, width, dash_of(line))
        return
    path, at = [], None
    for a, b, c, d in joined:
        if at != (a, b):
            path.append(f"M{round(100 * a)} {round(10 * b)}")
        path.append(f"L{round(100 * c)} {round(10 * d)}")
        at = (c, d)
    yield Shape("".join(path), colour, opacity, fill=False, width=width)


def _dots(trace: Mapping[str, Any], places: Sequence[tuple[float | None, float | None]]) -> Iterator[Mark]:
    marker, said = trace.get("marker") or {}, titles(trace)
    symbol, colours = str(marker.get("symbol", "circle")), marker.get("color")
    opacity = float(marker.get("opacity", 1.0))
    if len(places) > _MOST_TITLED and symbol == "circle" and not isinstance(colours, (list, tuple)):
        path = "".join(f"M{round(100 * x)} {round(10 * y)}h0" for x, y in places if x is not None and y is not None)
        yield Shape(path, str(colours or "#808080"), opacity, fill=False, width=float(marker.get("size", 6)))
        return
    for place, (x, y) in enumerate(places):
        if x is None or y is None:
            continue
        own = said(place, {"x": trace["x"][place], "y": trace["y"][place]})
        if symbol.startswith("line-ns"):
            line = marker.get("line") or {}
            colour = str(line.get("color") or colours)
            yield Segment(x, y - _TICK_PX, x, y + _TICK_PX, colour, float(line.get("width", 2)), title=own)
            continue
        colour = colours[place] if isinstance(colours, (list, tuple)) else str(colours or "#808080")
        radius = float(marker.get("size", 6)) / 2
        yield Dot(x, y, radius, colour, opacity, symbol.endswith("-open"), own)


def _reach(trace: Mapping[str, Any], frame: PlotFrame) -> Iterator[Mark]:
    """The bars of a point's interval."""
    error = trace["error_x"]
    for x, y, more, less in zip(trace["x"], trace["y"], error["array"], error["arrayminus"], strict=True):
        if x is None:
            continue
        low, high, middle = frame.across(x - (less or 0.0)), frame.across(x + (more or 0.0)), frame.down(y)
        if low is not None and high is not None and middle is not None and high > low:
            colour = str(error.get("color", "#808080"))
            yield Segment(low, middle, high, middle, colour, float(error.get("thickness", 2)))
            for end in (low, high):
                yield Segment(end, middle - 4, end, middle + 4, colour, 2)
