"""summary.csv (a row a rank), findings.csv and the tables behind the figures."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from traceops.model import Finding, Report

CSV_FILES = (
    "summary.csv",
    "findings.csv",
    "steps.csv",
    "collectives.csv",
    "lateness.csv",
    "arrivals.csv",
    "bandwidth.csv",
    "critical_path.csv",
    "timeline.csv",
    "kernels.csv",
    "blocking_calls.csv",
    "hta_temporal_breakdown.csv",
    "hta_overlap.csv",
    "hta_idle_time_breakdown.csv",
    "hta_kernel_types.csv",
    "hta_kernels.csv",
    "hta_launch_statistics.csv",
    "hta_queue_length.csv",
)

_FINDING_COLUMNS = (
    "rule",
    "severity",
    "confidence",
    "title",
    "message",
    "ranks",
    "steps",
    "impact_ms",
    "cause",
    "evidence",
    "advice",
)


def render_csv_files(report: Report) -> dict[str, str]:
    """File name -> text. A value that is not known is an empty cell, never 0."""
    files = {
        "summary.csv": _render(report.ranks),
        "findings.csv": _render([_finding_row(finding) for finding in report.findings], _FINDING_COLUMNS),
        "steps.csv": _render(report.steps),
        "collectives.csv": _render(report.collectives),
    }
    files |= {f"{name}.csv": _render(rows) for name, rows in report.tables.items()}
    return {name: text for name, text in files.items() if text}


def _finding_row(finding: Finding) -> dict[str, Any]:
    evidence = "; ".join(
        f"{e.metric}={e.value}{' ' + e.unit if e.unit else ''}"
        + (f" (rank {e.rank})" if e.rank is not None else "")
        for e in finding.evidence
    )
    values = {name: getattr(finding, name) for name in _FINDING_COLUMNS if name != "evidence"}
    return {**values, "evidence": evidence}


def _render(rows: list[dict[str, Any]], columns: tuple[str, ...] = ()) -> str:
    columns = columns or tuple(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return "'" + value  # a name from a trace is no spreadsheet formula
    return value
