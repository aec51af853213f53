"""Heat maps: one colour whose strength is the value, so that a cell suits a light and a dark page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traceops.render.svg.frame import PlotFrame
from traceops.render.svg.hover import number_as, titles
from traceops.render.svg.picture import shaded_png, shades_of
from traceops.render.svg.plot import Mark, Note, Picture, Rectangle

MOST_TITLED = 600  # cells with a text of their own; more of them become a picture
STRONGEST = 0.8  # of the colour: numbers stay readable on it


def heat_map(trace: Mapping[str, Any], frame: PlotFrame) -> Iterator[Mark]:
    """The cells of a heat map, and their numbers where the figure writes them."""
    grid: Sequence[Sequence[float | None]] = trace["z"]
    columns, lines = list(trace["x"]), list(trace["y"])
    colour = str(trace["colorscale"][-1][1])
    low, high = float(trace.get("zmin", 0.0)), float(trace.get("zmax", 1.0))
    gap = float(trace.get("ygap", 0))
    band = 100.0 / max(len(columns), 1)
    if sum(map(len, grid)) > MOST_TITLED:
        yield Picture(shaded_png(shades_of(grid, low, high), colour, STRONGEST))
        return
    said, form = titles(trace), str(trace.get("texttemplate") or "")
    for line, (name, values) in enumerate(zip(lines, grid, strict=True)):
        middle = frame.down(name)
        for column, value in enumerate(values):
            if middle is None or value is None:
                continue
            own = {"x": columns[column], "y": name, "z": value}
            title, height = said((line, column), own), frame.band - gap
            top = round(middle - height / 2, 2)
            yield Rectangle(
                round(column * band, 3), top, round(band * 0.995, 3), round(height, 2), colour,
                _strength(value, low, high), "", title,
            )  # fmt: skip
            if form:
                text = number_as(value, form.partition(":")[2].rstrip("}"))
                yield Note(round((column + 0.5) * band, 3), middle, text, "middle")


def _strength(value: float, low: float, high: float) -> float:
    share = (value - low) / ((high - low) or 1.0)
    return round(STRONGEST * min(max(share, 0.0), 1.0) + 0.04, 3)
