"""Aligned steps as a `Plot`: a lane a rank on one time axis, with what is pointed out below it."""

from __future__ import annotations

from collections.abc import Iterator

from traceops.render.answer import AlignedSteps, StepLane
from traceops.render.svg.marks import cell_path
from traceops.render.svg.plot import (
    Anchor,
    LegendEntry,
    Mark,
    Note,
    Plot,
    PlotRow,
    Rectangle,
    Segment,
    Shape,
    Tick,
    narrow_pct,
    nice_ticks,
)

_LANE, _BAR, _BRACKET, _TEXT = 52.0, 24.0, 29.0, 40.0  # px: a lane, its bar, and below the bar
_BARE = 34.0  # a lane of which nothing is pointed out
_TITLED = 120  # pieces of a lane with a text of their own; of more, each kind is a path
_BLAMED = "var(--error)"


def lanes_plot(steps: AlignedSteps) -> Plot:
    """The lanes below each other, in the colours of their kinds."""
    colours = {kind.key: kind.colour for kind in steps.kinds}
    labels = {kind.key: kind.label for kind in steps.kinds}
    end, top = steps.end_ms or 1.0, 0.0
    marks: list[Mark] = []
    rows: list[PlotRow] = []
    for lane in steps.lanes:
        marks += _pieces(lane, end, top, colours, labels)
        marks += _marks(lane, end, top)
        rows.append(
            PlotRow(top + _BAR / 2, _LANE if lane.marks else _BARE, lane.label, "blamed" if lane.blamed else "")
        )
        top += _LANE if lane.marks else _BARE
    ticks = [(100 * value / end, f"{text} ms") for value, text in nice_ticks(0, end, 7)]
    return Plot(
        height=top,
        marks=tuple(marks),
        rows=tuple(rows),
        ticks=tuple(
            Tick(round(x, 2), text, "start" if x < 3 else "end" if x > 97 else "middle", place % 2 == 1)
            for place, (x, text) in enumerate(ticks)
        ),
        legend=tuple(LegendEntry(kind.label, kind.colour) for kind in steps.kinds),
        chars=max((len(line) for lane in steps.lanes for line in lane.label.split("\n")), default=0),
    )


def _pieces(lane: StepLane, end: float, top: float, colours: dict[str, str], labels: dict[str, str]) -> Iterator[Mark]:
    paths: dict[str, list[str]] = {}
    many = len(lane.pieces) > _TITLED
    for piece in lane.pieces:
        left = min(max(100 * piece.start_ms / end, 0.0), 100.0)
        right = min(max(100 * (piece.start_ms + piece.duration_ms) / end, left), 100.0)
        colour = colours.get(piece.key, "#808080")
        if many:
            paths.setdefault(colour, []).append(cell_path(left, right, top, _BAR))
        elif right > left:
            spent = f"{piece.duration_ms:,.3f} ms from {piece.start_ms:,.3f} ms"
            said = f"{lane.label}\n{labels.get(piece.key, piece.key)}: {spent}"
            yield Rectangle(round(left, 3), top, round(right - left, 3), _BAR, colour, title=said)
    for colour, path in paths.items():
        yield Shape("".join(path), colour)
    if lane.blamed:
        for y in (top - 2, top + _BAR + 2):
            yield Segment(0, y, 100, y, _BLAMED, 1.5)


def _marks(lane: StepLane, end: float, top: float) -> Iterator[Mark]:
    for mark in lane.marks:
        left, right = max(100 * mark.start_ms / end, 0.0), min(100 * mark.end_ms / end, 100.0)
        y = top + _BRACKET
        colour = mark.colour or "var(--ink)"
        yield Segment(round(left, 3), y, round(right, 3), y, colour, 2)
        for x in (left, right):
            yield Segment(round(x, 3), y - 4, round(x, 3), y + 1, colour, 2)
        if not mark.text:
            continue
        at, anchor = _place(left, right, narrow_pct(mark.text))
        yield Note(round(at, 3), top + _TEXT, mark.text, anchor, "mark")


def _place(left: float, right: float, needs: float) -> tuple[float, Anchor]:
    """Where a text below a mark stands: in its middle, or from or to an end of it where a narrow page cuts less."""
    middle = (left + right) / 2
    places: list[tuple[float, Anchor, float]] = [  # and where it begins
        (middle, "middle", middle - needs / 2), (left, "start", left), (right, "end", right - needs),
    ]  # fmt: skip
    at, anchor, _ = min(places, key=lambda one: max(-one[2], 0.0) + 2 * max(one[2] + needs - 100, 0.0))
    return at, anchor
