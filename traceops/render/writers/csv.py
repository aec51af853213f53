"""Rows as CSV: a value that is not known is an empty cell, never 0, and no cell is a spreadsheet's formula."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from traceops.core.text import FORMULA, TURNS

_CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160), *TURNS) if chr(code) != "\t"} | dict.fromkeys(
    b"\r\n", " "
)


def struct_csv(rows: Sequence[msgspec.Struct]) -> str:
    """Rows of one type as CSV, a column a field; empty without rows."""
    if not rows:
        return ""
    return _csv(type(rows[0]).__struct_fields__, map(msgspec.structs.astuple, rows))


def csv_text(rows: Sequence[Mapping[str, object]], columns: tuple[str, ...] = ()) -> str:
    """Rows as CSV, with these columns or else with every key there is; empty where there is neither."""
    columns = columns or tuple(dict.fromkeys(key for keys in dict.fromkeys(map(tuple, rows)) for key in keys))
    if not columns:
        return ""
    return _csv(columns, ([row.get(column) for column in columns] for row in rows))


def _csv(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(column) for column in columns])
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if type(value) is int:  # most cells are numbers, and a job has millions
        return value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if type(value) is float:
        return value
    if isinstance(value, (list, tuple)):
        return _cell(" ".join(map(str, value)))
    if isinstance(value, str):
        value = value.translate(_CONTROL)  # a table is also shown with cat
        if value.lstrip()[:1] in FORMULA:
            return "'" + value  # a name from a trace is no spreadsheet formula
    return value
