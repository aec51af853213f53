"""What a figure consists of once it is laid out: marks whose x is in percent of the width and whose y is in px.

A page stretches the percents to whatever width it has; text and strokes keep their size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Rectangle:
    """A bar or cell; `pattern` is '', or a name of the page's hatchings, which tell bars apart on grey paper."""

    kind: ClassVar[str] = "rectangle"
    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float = 1.0
    pattern: str = ""
    title: str = ""


@dataclass(frozen=True)
class Dot:
    """A round point, `radius` in px."""

    kind: ClassVar[str] = "dot"
    x: float
    y: float
    radius: float
    colour: str
    opacity: float = 1.0
    hollow: bool = False
    title: str = ""


@dataclass(frozen=True)
class Segment:
    """A straight line of so many px; `dash` as in SVG's stroke-dasharray."""

    kind: ClassVar[str] = "segment"
    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    width: float = 1.0
    dash: str = ""
    title: str = ""


@dataclass(frozen=True)
class Shape:
    """Very many marks of one colour as one path: x in 1/10,000 of the width, y in 1/10 px.

    fill: rectangles; else a line of `width` px, of which a piece without length is a dot.
    """

    kind: ClassVar[str] = "shape"
    path: str
    colour: str
    opacity: float = 1.0
    fill: bool = True
    width: float = 1.0


@dataclass(frozen=True)
class Note:
    """A line of text; `css`: 'on-bar' stands on a coloured bar, `dy` moves its baseline in px."""

    kind: ClassVar[str] = "note"
    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    css: str = ""
    colour: str = ""
    dx: float = 0.0


@dataclass(frozen=True)
class Picture:
    """Pixels over the whole plot, stretched without blurring: `href` is a data URI."""

    kind: ClassVar[str] = "picture"
    href: str


_NARROW, _CHAR = 240.0, 6.2  # px: a plot on a page of 400, and a character of a note


def narrow_pct(text: str) -> float:
    """About how much of a plot's width a note takes where the page is narrow."""
    return 100 * _CHAR * len(text) / _NARROW


Mark: TypeAlias = Rectangle | Dot | Segment | Shape | Note | Picture


@dataclass(frozen=True)
class PlotRow:
    """A label beside the plot: its middle in px from the top, and how many px it may take."""

    y: float
    height: float
    text: str
    css: str = ""


@dataclass(frozen=True)
class Tick:
    """A label below the plot, in percent of its width; `minor` ones are left out where it is narrow."""

    x: float
    text: str
    anchor: Anchor = "middle"
    minor: bool = False


@dataclass(frozen=True)
class LegendEntry:
    """A colour and what it stands for."""

    text: str
    colour: str
    pattern: str = ""
    line: bool = False


@dataclass(frozen=True)
class Plot:
    """A figure, `height` px without its ticks and legend."""

    height: float
    marks: tuple[Mark, ...] = ()
    rows: tuple[PlotRow, ...] = ()
    ticks: tuple[Tick, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    x_title: str = ""
    y_title: str = ""
    chars: int = field(default=0)  # of the widest row label
