"""CSV files: a value that is not known is an empty cell, never 0, and no cell is a formula to a spreadsheet."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec

from traceops.core.findings import Finding
from traceops.core.text import FORMULA, TURNS
from traceops.render.finding_blocks import quote_text, value_text
from traceops.report.model import Report
from traceops.report.tables import PathRow

_CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160), *TURNS) if chr(code) != "\t"}
_CONTROL |= dict.fromkeys(b"\r\n", " ")


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
    for row in rows:  # most cells are numbers, and a job has millions
        writer.writerow([v if (kind := type(v)) is int or (kind is float and isfinite(v)) else _cell(v) for v in row])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    if isinstance(value, (list, tuple)):
        return _cell(" ".join(map(str, value)))
    return _text_cell(value) if isinstance(value, str) else value


@functools.lru_cache(maxsize=1 << 12)  # names repeat with every rank
def _text_cell(text: str) -> str:
    text = text.translate(_CONTROL)  # a table is also shown with cat
    return "'" + text if text.lstrip()[:1] in FORMULA else text  # a name from a trace is no spreadsheet formula


# Tables of report.tables and of HTA's, each a file.
_TABLES = ("lateness", "arrivals", "bandwidth", "reference", "timeline", "kernels", "blocking_calls", "copies")
_HTA_TABLES = (
    *("temporal_breakdown", "overlap", "idle_time_breakdown"),
    *("kernel_types", "kernels", "launch_statistics", "queue_length", "frequent_sequences", "cupti_counters"),
)
CSV_FILES = (
    *("summary.csv", "findings.csv", "hosts.csv", "steps.csv", "collectives.csv", "roles.csv", "passes.csv"),
    *("critical_path.csv", *(f"{name}.csv" for name in _TABLES), *(f"hta_{name}.csv" for name in _HTA_TABLES)),
)

_FINDING_COLUMNS = (
    *("rule", "severity", "confidence", "title", "message", "ranks", "steps"),
    *("impact_ms", "cause", "evidence", "advice"),
)


def render_csv_files(report: Report) -> dict[str, str]:
    """File name -> text. A value that is not known is an empty cell, never 0."""
    tables = report.tables
    files = {
        "summary.csv": struct_csv(report.ranks),
        "findings.csv": findings_csv(report.findings),
        "hosts.csv": struct_csv(report.hosts or ()),
        "steps.csv": struct_csv(report.steps),
        "collectives.csv": struct_csv(report.collectives),
        "roles.csv": struct_csv(report.roles),
        "passes.csv": struct_csv(report.passes),
        "critical_path.csv": csv_text([_path_row(row) for row in tables.critical_path]),
        **{f"{name}.csv": struct_csv(getattr(tables, name)) for name in _TABLES},
        **{f"{name}.csv": csv_text(rows) for name, rows in tables.hta.items()},
    }
    return {name: text for name, text in files.items() if text}


def _path_row(row: PathRow) -> dict[str, object]:
    """A piece of the critical path, a column a bucket of its time."""
    own = msgspec.structs.asdict(row)
    del own["spent_ms"]
    return {**own, **{f"{bucket}_ms": ms for bucket, ms in row.spent_ms.items()}}


def findings_csv(findings: Sequence[Finding]) -> str:
    """A row a finding; its evidence in one cell."""
    rows = []
    for finding in findings:
        evidence = "; ".join(
            quote_text(e)
            if e.file is not None
            else f"{e.metric}={value_text(e)}{' ' + e.unit if e.unit else ''}"
            + (f" (rank {e.rank})" if e.rank is not None else "")
            for e in finding.evidence
        )
        rows.append({**msgspec.structs.asdict(finding), "evidence": evidence})
    return csv_text(rows, _FINDING_COLUMNS)
