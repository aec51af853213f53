"""compare.json: the comparison for other programs, as docs/formats.md and compare.schema.json say."""

from __future__ import annotations

from datetime import date
from pathlib import PurePath
from typing import Any

from msgspec.structs import replace

from traceops.compare.model import Comparison
from traceops.report.write import json_text


def render_comparison_json(comparison: Comparison) -> str:
    """The text of compare.json: null where a number is not known."""
    return json_text(replace(comparison, settings=_without_python_types(comparison.settings)))


def _without_python_types(value: Any) -> Any:
    """Dates and paths as text, sets as sorted lists: settings may hold them."""
    if isinstance(value, dict):
        return {str(key): _without_python_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_python_types(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (date, PurePath)):
        return str(value)
    return value
