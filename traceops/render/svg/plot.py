"""What a figure consists of once it is laid out: marks whose x is in percent of the width and whose y is in px. A page
stretches the percents to whatever width it has; text and strokes keep their size."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from traceops.core.units import digits_text

Anchor = Literal["start", "middle", "end"]


class Rectangle(msgspec.Struct, frozen=True):
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


class Dot(msgspec.Struct, frozen=True):
    """A round point, `radius` in px."""

    kind: ClassVar[str] = "dot"
    x: float
    y: float
    radius: float
    colour: str
    opacity: float = 1.0
    hollow: bool = False
    title: str = ""


class Segment(msgspec.Struct, frozen=True):
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


class Shape(msgspec.Struct, frozen=True):
    """Very many marks of one colour as one path: x in 1/10,000 of the width, y in 1/10 px. fill: rectangles; else a
    line of `width` px, of which a piece without length is a dot."""

    kind: ClassVar[str] = "shape"
    path: str
    colour: str
    opacity: float = 1.0
    fill: bool = True
    width: float = 1.0


class Note(msgspec.Struct, frozen=True):
    """A line of text; `css`: 'on-bar' stands on a coloured bar, `dy` moves its baseline in px."""

    kind: ClassVar[str] = "note"
    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    css: str = ""
    colour: str = ""
    dx: float = 0.0


class Picture(msgspec.Struct, frozen=True):
    """Pixels over the whole plot, stretched without blurring: `href` is a data URI."""

    kind: ClassVar[str] = "picture"
    href: str


_NARROW, _CHAR = 240.0, 6.2  # px: a plot on a page of 400, and a character of a note


def narrow_pct(text: str) -> float:
    """About how much of a plot's width a note takes where the page is narrow."""
    return 100 * _CHAR * len(text) / _NARROW


Mark: TypeAlias = Rectangle | Dot | Segment | Shape | Note | Picture


class PlotRow(msgspec.Struct, frozen=True):
    """A label beside the plot: its middle in px from the top, and how many px it may take."""

    y: float
    height: float
    text: str
    css: str = ""


class Tick(msgspec.Struct, frozen=True):
    """A label below the plot, in percent of its width; `minor` ones are left out where it is narrow."""

    x: float
    text: str
    anchor: Anchor = "middle"
    minor: bool = False


class LegendEntry(msgspec.Struct, frozen=True):
    """A colour and what it stands for."""

    text: str
    colour: str
    pattern: str = ""
    line: bool = False


class Plot(msgspec.Struct, frozen=True):
    """A figure, `height` px without its ticks and legend."""

    height: float
    marks: tuple[Mark, ...] = ()
    rows: tuple[PlotRow, ...] = ()
    ticks: tuple[Tick, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    x_title: str = ""
    y_title: str = ""
    chars: int = 0  # of the widest row label


# Axes of a figure in plotly's schema: where a value lies, and which values are written below or beside.

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_BREAK = re.compile(r"<br */?>")
_LETTER = 0.0085  # of a plot's width: a letter of a label, at 900 pixels
_ROOM = 0.06  # of the range, beside the outermost points


class Axis(msgspec.Struct, frozen=True):
    """A scale from `low` to `high`, which may be the larger one; log: of powers of ten, as the range is. `names` are
    the categories by place, if it has any; `ticks` (value, text)."""

    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()
    ticks: tuple[tuple[float, str], ...] = ()
    title: str = ""

    def share(self, value: Any) -> float | None:
        """Where a value lies, 0 at `low` and 1 at `high`; None where nothing is known."""
        if (number := self.number(value)) is None:
            return None
        if self.log:
            if number <= 0:
                return None
            number = math.log10(number)
        return (number - self.low) / ((self.high - self.low) or 1.0)

    def number(self, value: Any) -> float | None:
        """A value, or the place of a category, as a number."""
        if value is None:
            return None
        if self.names and isinstance(value, str):
            return float(self.names.index(value)) if value in self.names else None
        number = float(value)
        return number if math.isfinite(number) else None


def axis_of(layout: Mapping[str, Any], values: Sequence[Any], ends: Sequence[Any] = (), most: int = 7) -> Axis:
    """The axis of these values; `ends` belong to its range too but are no categories (bases, ends of bars)."""
    log = layout.get("type") == "log"
    named = layout.get("type") == "category" or any(isinstance(value, str) for value in values)
    names = tuple(dict.fromkeys(str(value) for value in layout.get("categoryarray") or values)) if named else ()
    known = [float(v) for v in (*values, *ends) if isinstance(v, (int, float)) and math.isfinite(v)]
    if "range" in layout:
        low, high = (float(end) for end in layout["range"])
    elif names:
        low, high = -0.5, len(names) - 0.5
    elif log:
        powers = [math.log10(value) for value in known if value > 0] or [0.0]
        low, high = min(powers) - 0.1, max(powers) + 0.1
    else:
        low, high = _span(known, tozero=layout.get("rangemode") == "tozero")
    if layout.get("autorange") == "reversed":
        low, high = high, low
    title = plain((layout.get("title") or {}).get("text", ""))
    return Axis(low, high, log, names, tuple(_ticks(layout, names, low, high, log, most)), title)


def plain(text: Any) -> str:
    """Text as people read it: figures escape theirs and break lines by <br>."""
    return html.unescape(_BREAK.sub("\n", str(text)))


def nice_ticks(low: float, high: float, most: int = 6) -> list[tuple[float, str]]:
    """Round values between two ends, at most so many, each with as many decimals as their distance needs."""
    low, high = min(low, high), max(low, high)
    if not high > low:
        return [(low, number_text(low, 0))]
    raw = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in _STEPS if power * factor >= raw * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6:
        decimals += 1
    first = math.ceil(low / step - 1e-9)
    values = [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]
    return [(value, number_text(value, decimals)) for value in values]


def number_text(value: float, decimals: int) -> str:
    """With thousands apart, never with a power of ten."""
    return f"{value + 0.0:,.{decimals}f}"


def _span(known: Sequence[float], *, tozero: bool) -> tuple[float, float]:
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if tozero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = _ROOM * (high - low) or max(abs(high), 1.0) * _ROOM
    return (low if tozero and low == 0.0 else low - room), high + room


def _ticks(
    layout: Mapping[str, Any], names: Sequence[str], low: float, high: float, log: bool, most: int
) -> Iterable[tuple[float, str]]:
    if "tickvals" in layout:
        texts = layout.get("ticktext") or [str(value) for value in layout["tickvals"]]
        reached = -math.inf
        for value, text in zip(layout["tickvals"], texts, strict=True):
            place = float(names.index(value) if isinstance(value, str) and value in names else value)
            # Of labels with two lines, which stand on one here, those that would run into each other are left out.
            wide = len(plain(text)) * _LETTER * (high - low) if "<br>" in text else 0.0
            if place - wide / 2 >= reached:
                reached = place + wide / 2
                yield place, plain(text)
    elif names:
        yield from ((float(place), plain(name)) for place, name in enumerate(names))
    elif log:
        yield from ((10.0**power, f"{10.0**power:g}") for power in range(math.ceil(low), math.floor(high) + 1))
    else:
        yield from nice_ticks(low, high, most)


# The frame that a figure's marks lie in: axes, and how many px of height the plot has.


class PlotFrame(msgspec.Struct, frozen=True):
    """x to percent, y to px from the top. `top` px are kept free for notes above the plot."""

    x: Axis
    y: Axis
    height: float
    top: float = 0.0

    def across(self, value: object) -> float | None:
        """Percent of the width, cut at what lies outside."""
        share = self.x.share(value)
        return None if share is None else round(100 * min(max(share, 0.0), 1.0), 3)

    def down(self, value: object) -> float | None:
        """Px from the top. An axis whose low end is the larger number begins on top."""
        share = self.y.share(value)
        return None if share is None else round(self.top + (1 - share) * (self.height - self.top), 2)

    @property
    def band(self) -> float:
        """Px that one category or place of the y axis takes."""
        return (self.height - self.top) / abs((self.y.high - self.y.low) or 1.0)


_FIELD = re.compile(r"%\{(\w+)(?:\[(\d+)\])?(?::([^}]*))?\}")
_EXTRA = re.compile(r"<extra>.*?</extra>", re.S)


def titles(trace: Mapping[str, Any], template_key: str = "hovertemplate") -> Callable[[Any, dict[str, Any]], str]:
    """(place of the mark, its own values) to the text; '' for a trace that has none. The place is an index, or (line,
    column) of a heat map."""
    template = trace.get(template_key)
    if not template or trace.get("hoverinfo") == "skip":
        return lambda place, values: ""
    pattern = _EXTRA.sub("", str(template))

    def text(place: Any, values: dict[str, Any]) -> str:
        def fill(match: re.Match[str]) -> str:
            name, index, form = match.groups()
            value = values[name] if name in values else _at(trace.get(name), place)
            if index is not None and isinstance(value, (list, tuple)):
                value = value[int(index)]
            return number_as(value, form or "")

        return plain(_FIELD.sub(fill, pattern)).strip()

    return text


def number_as(value: Any, form: str) -> str:
    """A value in the few formats of d3 that our figures use, without powers of ten: '.3f', '.4g', '.3~g'."""
    if value is None:
        return "–"
    if not isinstance(value, (int, float)) or not form:
        return str(value)
    digits = int(re.sub(r"\D", "", form) or 3)
    return f"{value:,.{digits}f}" if form.endswith("f") else digits_text(value, digits)


def _at(values: Any, place: Any) -> Any:
    if isinstance(place, tuple) and isinstance(values, (list, tuple)):
        line, column = place
        return values[line][column] if isinstance(values[line], (list, tuple)) else values[line]
    if isinstance(values, (list, tuple)):
        return values[place] if place < len(values) else ""
    return "" if values is None else values
