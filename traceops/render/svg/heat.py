"""Heat maps: one colour whose strength is the value, so that a cell suits a light and a dark page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traceops.render.svg.bars import cell_path
from traceops.render.svg.frame import Frame
from traceops.render.svg.hover import number_as, titles
from traceops.render.svg.plot import Mark, Note, Rectangle, Shape

MOST_TITLED = 600  # cells with a text of their own; more of them become a path a shade
_SHADES = 16
STRONGEST = 0.8  # of the colour: numbers stay readable on it


def heat_map(trace: Mapping[str, Any], frame: Frame) -> Iterator[Mark]:
    """The cells of a heat map, and their numbers where the figure writes them."""
    grid: Sequence[Sequence[float | None]] = trace["z"]
    columns, lines = list(trace["x"]), list(trace["y"])
    colour = str(trace["colorscale"][-1][1])
    low, high = float(trace.get("zmin", 0.0)), float(trace.get("zmax", 1.0))
    gap = float(trace.get("ygap", 0))
    band = 100.0 / max(len(columns), 1)
    if sum(map(len, grid)) > MOST_TITLED:
        yield from _shades(grid, lines, frame, colour, (low, high), band, gap)
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


def _shades(
    grid: Sequence[Sequence[float | None]],
    lines: Sequence[str],
    frame: Frame,
    colour: str,
    ends: tuple[float, float],
    band: float,
    gap: float,
) -> Iterator[Mark]:
    """Neighbours of one shade in a line are one rectangle, and all of a shade one path."""
    paths: dict[float, list[str]] = defaultdict(list)
    height = max(frame.band - gap, 0.5 * frame.band)
    for name, values in zip(lines, grid, strict=True):
        middle = frame.down(name)
        if middle is None:
            continue
        begin, shade = 0, _shade(values[0], *ends) if values else None
        for column in range(1, len(values) + 1):
            next_ = _shade(values[column], *ends) if column < len(values) else None
            if column < len(values) and next_ == shade:
                continue
            if shade is not None:
                paths[shade].append(cell_path(begin * band, column * band, middle - height / 2, height))
            begin, shade = column, next_
    for shade, pieces in sorted(paths.items()):
        yield Shape("".join(pieces), colour, shade)


def _strength(value: float, low: float, high: float) -> float:
    share = (value - low) / ((high - low) or 1.0)
    return round(STRONGEST * min(max(share, 0.0), 1.0) + 0.04, 3)


def _shade(value: float | None, low: float, high: float) -> float | None:
    return None if value is None else round(round(_strength(value, low, high) * _SHADES) / _SHADES, 4)
