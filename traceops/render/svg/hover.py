"""What pointing at a mark says: plotly's hover templates, for SVG's titles."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from traceops.core.units import digits_text
from traceops.render.svg.axis import plain

_FIELD = re.compile(r"%\{(\w+)(?:\[(\d+)\])?(?::([^}]*))?\}")
_EXTRA = re.compile(r"<extra>.*?</extra>", re.S)


def titles(trace: Mapping[str, Any], template_key: str = "hovertemplate") -> Callable[[Any, dict[str, Any]], str]:
    """(place of the mark, its own values) to the text; '' for a trace that has none.

    The place is an index, or (line, column) of a heat map.
    """
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
    if form.endswith("f"):
        return f"{value:,.{digits}f}"
    return digits_text(value, digits)


def _at(values: Any, place: Any) -> Any:
    if isinstance(place, tuple) and isinstance(values, (list, tuple)):
        line, column = place
        return values[line][column] if isinstance(values[line], (list, tuple)) else values[line]
    if isinstance(values, (list, tuple)):
        return values[place] if place < len(values) else ""
    return "" if values is None else values
