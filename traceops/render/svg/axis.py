"""Axes of a figure in plotly's schema: where a value lies, and which values are written below or beside."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_BREAK = re.compile(r"<br */?>")
_LETTER = 0.0085  # of a plot's width: a letter of a label, at 900 pixels
_ROOM = 0.06  # of the range, beside the outermost points


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high`, which may be the larger one; log: of powers of ten, as the range is.

    `names` are the categories by place, if it has any; `ticks` (value, text).
    """

    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()
    ticks: tuple[tuple[float, str], ...] = ()
    title: str = ""

    def share(self, value: Any) -> float | None:
        """Where a value lies, 0 at `low` and 1 at `high`; None where nothing is known."""
        number = self.number(value)
        if number is None:
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
    names = _names(layout, values)
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


def _names(layout: Mapping[str, Any], values: Iterable[Any]) -> tuple[str, ...]:
    if layout.get("type") != "category" and not any(isinstance(value, str) for value in values):
        return ()
    given = layout.get("categoryarray") or values
    return tuple(dict.fromkeys(str(value) for value in given))


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
