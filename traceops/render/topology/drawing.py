"""The parts of a topology figure's drawing, as its template puts them into SVG."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FigureText:
    """A line of text whose baseline begins at x, y."""

    x: float
    y: float
    text: str
    css: str = ""


@dataclass(frozen=True)
class Box:
    """A rectangle with its text; title is what hovering shows."""

    x: float
    y: float
    width: float
    height: float
    css: str
    texts: tuple[FigureText, ...] = ()
    title: str = ""


@dataclass(frozen=True)
class Line:
    """A path as SVG has it."""

    path: str
    css: str
    title: str = ""


@dataclass
class FigureDrawing:
    """A drawing of `width` by `height` px: boxes in the order in which they lie on each other, lines below them."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[FigureText] = field(default_factory=list)
