"""What a chart draws in its axes: bars, lines, heat maps of very many cells as a PNG, and lanes of aligned steps."""

from __future__ import annotations

import base64
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceops.render.document import AlignedSteps, StepLane
from traceops.render.svg import plot

SHADES = 15  # and one for what is not known
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def shaded_png(shades: NDArray[np.uint8], colour: str, strongest: float) -> str:
    """A data URI: a pixel a cell. shades: 0 where nothing is known, else 1 to `SHADES`; strongest: 0 to 1. Four bits a
    pixel with a palette: all entries have the colour, each its own opacity."""
    height, width = shades.shape
    padded = np.zeros((height, width + width % 2), dtype=np.uint8)
    padded[:, :width] = shades
    packed = (padded[:, ::2] << 4) | padded[:, 1::2]
    lines = b"".join(b"\0" + line.tobytes() for line in packed)  # filter 0
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    opacity = [0, *(min(round(255 * (0.04 + strongest * step / (SHADES - 1))), 255) for step in range(SHADES))]
    png = _SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)),
            _chunk(b"PLTE", bytes((red, green, blue)) * (SHADES + 1)),
            _chunk(b"tRNS", bytes(opacity)),
            _chunk(b"IDAT", zlib.compress(lines, 9)),
            _chunk(b"IEND", b""),
        )
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def shades_of(grid: Sequence[Sequence[float | None]], low: float, high: float) -> NDArray[np.uint8]:
    """The shade of each value between two ends; 0 for None."""
    values = np.array([[np.nan if value is None else value for value in line] for line in grid], dtype=float)
    share = np.clip((values - low) / ((high - low) or 1.0), 0.0, 1.0)
    shaded: NDArray[np.uint8] = np.where(np.isnan(values), 0, 1 + np.round(np.nan_to_num(share) * (SHADES - 1))).astype(
        np.uint8
    )
    return shaded


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# Heat maps: one colour whose strength is the value, so that a cell suits a light and a dark page.

MOST_TITLED = 600  # cells with a text of their own; more of them become a picture
STRONGEST = 0.8  # of the colour: numbers stay readable on it


def heat_map(trace: Mapping[str, Any], frame: plot.PlotFrame) -> Iterator[plot.Mark]:
    """The cells of a heat map, and their numbers where the figure writes them."""
    grid: Sequence[Sequence[float | None]] = trace["z"]
    columns, lines = list(trace["x"]), list(trace["y"])
    colour = str(trace["colorscale"][-1][1])
    low, high = float(trace.get("zmin", 0.0)), float(trace.get("zmax", 1.0))
    gap = float(trace.get("ygap", 0))
    band = 100.0 / max(len(columns), 1)
    if sum(map(len, grid)) > MOST_TITLED:
        yield plot.Picture(shaded_png(shades_of(grid, low, high), colour, STRONGEST))
        return
    said, form = plot.titles(trace), str(trace.get("texttemplate") or "")
    for line, (name, values) in enumerate(zip(lines, grid, strict=True)):
        middle = frame.down(name)
        for column, value in enumerate(values):
            if middle is None or value is None:
                continue
            own = {"x": columns[column], "y": name, "z": value}
            title, height = said((line, column), own), frame.band - gap
            top = round(middle - height / 2, 2)
            share = (value - low) / ((high - low) or 1.0)
            yield plot.Rectangle(
                round(column * band, 3), top, round(band * 0.995, 3), round(height, 2), colour,
                round(STRONGEST * min(max(share, 0.0), 1.0) + 0.04, 3), "", title,
            )  # fmt: skip
            if form:
                text = plot.number_as(value, form.partition(":")[2].rstrip("}"))
                yield plot.Note(round((column + 0.5) * band, 3), middle, text, "middle")


# Bar and box traces as rectangles.

MOST_TITLED_BARS = 1500  # bars with a text of their own; more of them become one path a trace
NARROW_PCT = 0.8  # of the width: a bar that is hard to hover has no text of its own where a lane has many
_MANY = 100  # bars of a figure: fewer all have their texts
_ENDS = ("lowerfence", "q1", "median", "q3", "upperfence")  # of a box
_BOX = "{0}: least {1:,.3f}, quartiles {2:,.3f} and {4:,.3f}, median {3:,.3f}, most {5:,.3f} ms"
_PATTERNS = {"/": "slash", "\\": "backslash", ".": "dots"}
_INSIDE = 40.0  # percent: a bar that is long enough for its text, on a phone too
_BESIDE = 62.0  # percent: a text beside a bar that ends after that stands on it


def pattern_of(trace: Mapping[str, Any]) -> str:
    """The name of a trace's hatching."""
    return _PATTERNS.get(((trace.get("marker") or {}).get("pattern") or {}).get("shape", ""), "")


def bar_ends(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    """(from, to) of each bar of each trace: stacked, or each from its base."""
    stacked: dict[Any, float] = defaultdict(float)
    made = []
    for trace in traces:
        bases, own = trace.get("base"), []
        for place, (value, row) in enumerate(zip(trace["x"], trace["y"], strict=True)):
            length = float(value or 0.0)
            if layout.get("barmode") == "stack":
                begin = stacked[row]
                stacked[row] += length
            else:
                begin = 0.0 if bases is None else float(bases[place] or 0.0)
            own.append((begin, begin + length))
        made.append(own)
    return made


def bars(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any], frame: plot.PlotFrame) -> Iterator[plot.Mark]:
    """Rectangles of all bar traces; texts stand on bars or beside them."""
    all_ends = bar_ends(traces, layout)
    count = sum(map(len, all_ends))
    narrowest = 100.0 if count > MOST_TITLED_BARS else NARROW_PCT if count > _MANY else 0.0
    for trace, ends in zip(traces, all_ends, strict=True):
        marker = trace.get("marker") or {}
        height = frame.band * float(trace.get("width") or 1 - float(layout.get("bargap", 0.2)))
        opacity, pattern, said = float(marker.get("opacity", 1.0)), pattern_of(trace), plot.titles(trace)
        colours, texts, path = marker.get("color"), trace.get("text"), []
        for place, (begin, end) in enumerate(ends):
            left, right = frame.across(min(begin, end)), frame.across(max(begin, end))
            middle = frame.down(trace["y"][place])
            if left is None or right is None or middle is None or trace["x"][place] is None:
                continue
            if right > left:
                if right - left < narrowest:
                    path.append(cell_path(left, right, middle - height / 2, height))
                else:
                    colour = colours[place] if isinstance(colours, (list, tuple)) else str(colours)
                    own = {"x": trace["x"][place], "y": trace["y"][place], "base": begin}
                    yield plot.Rectangle(
                        left, round(middle - height / 2, 2), round(right - left, 3), round(height, 2), colour, opacity,
                        pattern, said(place, own),
                    )  # fmt: skip
            if texts:
                yield _text(plot.plain(texts[place]).strip(), left, right, middle, trace)
        if path:
            colour = colours[0] if isinstance(colours, (list, tuple)) else str(colours)
            yield plot.Shape("".join(path), colour, opacity)


def cell_path(left: float, right: float, top: float, height: float) -> str:
    """A rectangle of a `Shape`."""
    x, wide, y, high = (round(100 * left), max(round(100 * (right - left)), 1), round(10 * top), round(10 * height))
    return f"M{x} {y}h{wide}v{high}h-{wide}z"


def boxes(traces: Sequence[Mapping[str, Any]], frame: plot.PlotFrame) -> Iterator[plot.Mark]:
    """Boxes from quartile to quartile with their median, whiskers to the ends."""
    height = round(frame.band * 0.5, 2)
    for trace in traces:
        colour = (trace.get("marker") or {})["color"]
        for place, row in enumerate(trace["y"]):
            middle = frame.down(row)
            known = [frame.across(trace[key][place]) for key in _ENDS]
            if middle is None or any(value is None for value in known):
                continue
            least, low, half, high, most = (float(value or 0.0) for value in known)
            said = _BOX.format(plot.plain(trace.get("name", row)), *(trace[key][place] for key in _ENDS))
            yield plot.Segment(least, middle, most, middle, colour, 1.5, title=said)
            yield plot.Rectangle(
                low, round(middle - height / 2, 2), round(max(high - low, 0.15), 3), height, colour, 0.55, "", said
            )
            for at, reach in ((half, 0.5), (least, 0.25), (most, 0.25)):
                yield plot.Segment(at, middle - height * reach, at, middle + height * reach, colour, 2, title=said)


def _text(text: str, left: float, right: float, middle: float, trace: Mapping[str, Any]) -> plot.Note:
    """On the bar where it is long, else beside it; at its end where a narrow page has no room beside it."""
    if trace.get("textposition") != "outside" and right - left > _INSIDE:
        return plot.Note(left, middle, text, "start", "on-bar", dx=6)
    if right > _BESIDE and left > 100 - _BESIDE:
        return plot.Note(left, middle, text, "end", dx=-6)
    needs = plot.narrow_pct(text)
    if right + needs > 100 and right >= needs:
        return plot.Note(right, middle, text, "end", dx=-6)
    return plot.Note(right, middle, text, "start", dx=6)


# Scatter traces as dots, lines and texts.

_DASHES = {"dot": "2 3", "dash": "6 4", "dashdot": "6 3 2 3", "longdash": "10 4"}
_MOST_SEGMENTS = 40  # of a line that may be drawn piece by piece; a longer one is one path
_MOST_TITLED = 200  # dots with a text of their own; more of them are one path
_TICK_PX = 8.0


def dash_of(line: Mapping[str, Any]) -> str:
    """plotly's name of a dashed line as SVG's lengths."""
    return _DASHES.get(str(line.get("dash", "")), "")


def points(trace: Mapping[str, Any], frame: plot.PlotFrame) -> Iterator[plot.Mark]:
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
                yield plot.Note(x, y, plot.plain(text).strip(), "end" if right else "start", dx=-10 if right else 10)


def _line(trace: Mapping[str, Any], places: Sequence[tuple[float | None, float | None]]) -> Iterator[plot.Mark]:
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
            yield plot.Segment(a, b, c, d, colour, width, dash_of(line))
        return
    path, at = [], None
    for a, b, c, d in joined:
        if at != (a, b):
            path.append(f"M{round(100 * a)} {round(10 * b)}")
        path.append(f"L{round(100 * c)} {round(10 * d)}")
        at = (c, d)
    yield plot.Shape("".join(path), colour, opacity, fill=False, width=width)


def _dots(trace: Mapping[str, Any], places: Sequence[tuple[float | None, float | None]]) -> Iterator[plot.Mark]:
    marker, said = trace.get("marker") or {}, plot.titles(trace)
    symbol, colours = str(marker.get("symbol", "circle")), marker.get("color")
    opacity = float(marker.get("opacity", 1.0))
    if len(places) > _MOST_TITLED and symbol == "circle" and not isinstance(colours, (list, tuple)):
        path = "".join(f"M{round(100 * x)} {round(10 * y)}h0" for x, y in places if x is not None and y is not None)
        yield plot.Shape(path, str(colours or "#808080"), opacity, fill=False, width=float(marker.get("size", 6)))
        return
    covered = set()  # by a dot that lies within 2 px
    for place, (x, y) in enumerate(places):
        if x is None or y is None:
            continue
        colour = colours[place] if isinstance(colours, (list, tuple)) else str(colours or "#808080")
        if (spot := (round(400 * x), round(y / 2), colour)) in covered:
            continue
        covered.add(spot)
        own = said(place, {"x": trace["x"][place], "y": trace["y"][place]})
        if symbol.startswith("line-ns"):
            line = marker.get("line") or {}
            tick = str(line.get("color") or colours)
            yield plot.Segment(x, y - _TICK_PX, x, y + _TICK_PX, tick, float(line.get("width", 2)), title=own)
            continue
        radius = float(marker.get("size", 6)) / 2
        yield plot.Dot(x, y, radius, colour, opacity, symbol.endswith("-open"), own)


def _reach(trace: Mapping[str, Any], frame: plot.PlotFrame) -> Iterator[plot.Mark]:
    """The bars of a point's interval."""
    error = trace["error_x"]
    for x, y, more, less in zip(trace["x"], trace["y"], error["array"], error["arrayminus"], strict=True):
        if x is None:
            continue
        low, high, middle = frame.across(x - (less or 0.0)), frame.across(x + (more or 0.0)), frame.down(y)
        if low is not None and high is not None and middle is not None and high > low:
            colour = str(error.get("color", "#808080"))
            yield plot.Segment(low, middle, high, middle, colour, float(error.get("thickness", 2)))
            for end in (low, high):
                yield plot.Segment(end, middle - 4, end, middle + 4, colour, 2)


_LANE, _BAR, _BRACKET, _TEXT = 52.0, 24.0, 29.0, 40.0  # px: a lane, its bar, and below the bar
_BARE = 34.0  # a lane of which nothing is pointed out
_BLAMED = "var(--error)"


def lanes_plot(steps: AlignedSteps) -> plot.Plot:
    """The lanes below each other, in the colours of their kinds."""
    colours = {kind.key: kind.colour for kind in steps.kinds}
    labels = {kind.key: kind.label for kind in steps.kinds}
    end, top = steps.end_ms or 1.0, 0.0
    marks: list[plot.Mark] = []
    rows: list[plot.PlotRow] = []
    for lane in steps.lanes:
        marks += _pieces(lane, end, top, colours, labels)
        marks += _marks(lane, end, top)
        rows.append(
            plot.PlotRow(top + _BAR / 2, _LANE if lane.marks else _BARE, lane.label, "blamed" if lane.blamed else "")
        )
        top += _LANE if lane.marks else _BARE
    ticks = [(100 * value / end, f"{text} ms") for value, text in plot.nice_ticks(0, end, 7)]
    return plot.Plot(
        height=top,
        marks=tuple(marks),
        rows=tuple(rows),
        ticks=tuple(
            plot.Tick(round(x, 2), text, "start" if x < 3 else "end" if x > 97 else "middle", place % 2 == 1)
            for place, (x, text) in enumerate(ticks)
        ),
        legend=tuple(plot.LegendEntry(kind.label, kind.colour) for kind in steps.kinds),
        chars=max((len(line) for lane in steps.lanes for line in lane.label.split("\n")), default=0),
    )


def _pieces(
    lane: StepLane, end: float, top: float, colours: dict[str, str], labels: dict[str, str]
) -> Iterator[plot.Mark]:
    paths: dict[str, list[str]] = {}
    for piece in lane.pieces:
        left = min(max(100 * piece.start_ms / end, 0.0), 100.0)
        right = min(max(100 * (piece.start_ms + piece.duration_ms) / end, left), 100.0)
        colour = colours.get(piece.key, "#808080")
        if right - left < NARROW_PCT:
            paths.setdefault(colour, []).append(cell_path(left, right, top, _BAR))
        else:
            spent = f"{piece.duration_ms:,.3f} ms from {piece.start_ms:,.3f} ms"
            sentence = f"{lane.label}\n{labels.get(piece.key, piece.key)}: {spent}"
            yield plot.Rectangle(round(left, 3), top, round(right - left, 3), _BAR, colour, title=sentence)
    for colour, path in paths.items():
        yield plot.Shape("".join(path), colour)
    if lane.blamed:
        for y in (top - 2, top + _BAR + 2):
            yield plot.Segment(0, y, 100, y, _BLAMED, 1.5)


def _marks(lane: StepLane, end: float, top: float) -> Iterator[plot.Mark]:
    for mark in lane.marks:
        left, right = max(100 * mark.start_ms / end, 0.0), min(100 * mark.end_ms / end, 100.0)
        y = top + _BRACKET
        colour = mark.colour or "var(--ink)"
        yield plot.Segment(round(left, 3), y, round(right, 3), y, colour, 2)
        for x in (left, right):
            yield plot.Segment(round(x, 3), y - 4, round(x, 3), y + 1, colour, 2)
        if not mark.text:
            continue
        # Its text stands in the middle, or from or to an end of the mark where a narrow page cuts less.
        middle, needs = (left + right) / 2, plot.narrow_pct(mark.text)
        places: list[tuple[float, plot.Anchor, float]] = [  # and where it begins
            (middle, "middle", middle - needs / 2), (left, "start", left), (right, "end", right - needs),
        ]  # fmt: skip
        at, anchor, _ = min(places, key=lambda one: max(-one[2], 0.0) + 2 * max(one[2] + needs - 100, 0.0))
        yield plot.Note(round(at, 3), top + _TEXT, mark.text, anchor, "mark")
