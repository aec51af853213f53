"""Bar and box traces as rectangles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traceops.render.svg.axis import plain
from traceops.render.svg.frame import PlotFrame
from traceops.render.svg.hover import titles
from traceops.render.svg.plot import Mark, Note, Rectangle, Segment, Shape, narrow_pct

MOST_TITLED = 1500  # bars with a text of their own; more of them become one path a trace
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


def bars(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any], frame: PlotFrame) -> Iterator[Mark]:
    """Rectangles of all bar traces; texts stand on bars or beside them."""
    all_ends = bar_ends(traces, layout)
    many = sum(len(ends) for ends in all_ends) > MOST_TITLED
    for trace, ends in zip(traces, all_ends, strict=True):
        marker = trace.get("marker") or {}
        height = frame.band * float(trace.get("width") or 1 - float(layout.get("bargap", 0.2)))
        opacity, pattern, said = float(marker.get("opacity", 1.0)), pattern_of(trace), titles(trace)
        colours, texts, path = marker.get("color"), trace.get("text"), []
        for place, (begin, end) in enumerate(ends):
            left, right = frame.across(min(begin, end)), frame.across(max(begin, end))
            middle = frame.down(trace["y"][place])
            if left is None or right is None or middle is None or trace["x"][place] is None:
                continue
            if right > left:
                if many:
                    path.append(cell_path(left, right, middle - height / 2, height))
                else:
                    colour = colours[place] if isinstance(colours, (list, tuple)) else str(colours)
                    own = {"x": trace["x"][place], "y": trace["y"][place], "base": begin}
                    yield Rectangle(
                        left, round(middle - height / 2, 2), round(right - left, 3), round(height, 2), colour, opacity,
                        pattern, said(place, own),
                    )  # fmt: skip
            if texts:
                yield _text(plain(texts[place]).strip(), left, right, middle, trace)
        if path:
            yield Shape("".join(path), str(colours), opacity)


def cell_path(left: float, right: float, top: float, height: float) -> str:
    """A rectangle of a `Shape`."""
    x, wide, y, high = (round(100 * left), max(round(100 * (right - left)), 1), round(10 * top), round(10 * height))
    return f"M{x} {y}h{wide}v{high}h-{wide}z"


def boxes(traces: Sequence[Mapping[str, Any]], frame: PlotFrame) -> Iterator[Mark]:
    """Boxes from quartile to quartile with their median, whiskers to the ends."""
    height = round(frame.band * 0.5, 2)
    for trace in traces:
        colour = (trace.get("marker") or {})["color"]
        for place, row in enumerate(trace["y"]):
            middle = frame.down(row)
            known = [frame.across(trace[key][place]) for key in ("lowerfence", "q1", "median", "q3", "upperfence")]
            if middle is None or any(value is None for value in known):
                continue
            least, low, half, high, most = (float(value or 0.0) for value in known)
            numbers = [trace[key][place] for key in ("lowerfence", "q1", "median", "q3", "upperfence")]
            said = "{}: least {:,.3f}, quartiles {:,.3f} and {:,.3f}, median {:,.3f}, most {:,.3f} ms".format(
                plain(trace.get("name", row)), numbers[0], numbers[1], numbers[3], numbers[2], numbers[4]
            )
            yield Segment(least, middle, most, middle, colour, 1.5, title=said)
            yield Rectangle(
                low, round(middle - height / 2, 2), round(max(high - low, 0.15), 3), height, colour, 0.55, "", said
            )
            for at, reach in ((half, 0.5), (least, 0.25), (most, 0.25)):
                yield Segment(at, middle - height * reach, at, middle + height * reach, colour, 2, title=said)


def _text(text: str, left: float, right: float, middle: float, trace: Mapping[str, Any]) -> Note:
    """On the bar where it is long, else beside it; at its end where a narrow page has no room beside it."""
    if trace.get("textposition") != "outside" and right - left > _INSIDE:
        return Note(left, middle, text, "start", "on-bar", dx=6)
    if right > _BESIDE and left > 100 - _BESIDE:
        return Note(left, middle, text, "end", dx=-6)
    needs = narrow_pct(text)
    if right + needs > 100 and right >= needs:
        return Note(right, middle, text, "end", dx=-6)
    return Note(right, middle, text, "start", dx=6)
