"""The tables beside a report.json, read back from their CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

import msgspec

from traceops.core.bucket_words import BUCKETS
from traceops.core.plain_text import FORMULA
from traceops.core.regular_file import read_regular
from traceops.report.cross_rows import ReferenceRow
from traceops.report.tables import (
    ArrivalRow,
    BandwidthRow,
    BlockingCallRow,
    CopyRow,
    KernelRow,
    LatenessRow,
    PathRow,
    Tables,
    TimelineRow,
)

_ROWS: dict[str, type[msgspec.Struct]] = {
    "lateness": LatenessRow,
    "arrivals": ArrivalRow,
    "bandwidth": BandwidthRow,
    "critical_path": PathRow,
    "timeline": TimelineRow,
    "kernels": KernelRow,
    "blocking_calls": BlockingCallRow,
    "copies": CopyRow,
}
Row = TypeVar("Row", bound=msgspec.Struct)


def read_tables(folder: Path | None, reference: tuple[ReferenceRow, ...] = ()) -> tuple[Tables, tuple[str, ...]]:
    """The tables of a report folder, and what is wrong with files that cannot be used; HTA's tables are left out.

    A file that is not there is an empty table, as it is where there was nothing to say.
    """
    found: dict[str, Any] = {}
    problems: list[str] = []
    for name, kind in _ROWS.items() if folder is not None else ():
        file = Path(folder or ".", f"{name}.csv")
        try:
            found[name] = tuple(_rows(read_regular(file), kind))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, OverflowError, csv.Error) as error:
            problems.append(f"{file} cannot be used ({error}); write it again with traceops analyze")
    return Tables(reference=reference, **found), tuple(problems)


def _rows(data: bytes, kind: type[Row]) -> Iterator[Row]:
    """Rows of a table; columns that an earlier traceops did not write are at their defaults."""
    types = get_type_hints(kind)
    for line in csv.DictReader(io.StringIO(data.decode("utf-8"), newline="")):
        if kind is PathRow:  # its time by bucket stands in a column each
            line["spent_ms"] = {bucket: ms for bucket in BUCKETS if (ms := line.get(f"{bucket}_ms"))}
        values = {name: _value(line[name], types[name]) for name in kind.__struct_fields__ if name in line}
        yield msgspec.convert(values, kind, strict=False)


def _value(cell: Any, kind: Any) -> Any:
    """A field of a row: an empty cell is not known, unless it is text."""
    if not isinstance(cell, str):
        return cell
    if get_origin(kind) is tuple:
        return cell.split()
    if cell == "" and kind is not str:
        return None
    return cell[1:] if cell[:1] == "'" and cell[1:].lstrip()[:1] in FORMULA else cell
