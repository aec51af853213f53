"""summary.csv (a row a rank), findings.csv and the tables behind the figures."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from traceops.core.findings import Finding
from traceops.render.finding_blocks import quote_text, value_text
from traceops.render.writers.csv import csv_text, struct_csv
from traceops.report.model import Report
from traceops.report.tables import PathRow

CSV_FILES = (
    "summary.csv",
    "findings.csv",
    "hosts.csv",
    "steps.csv",
    "collectives.csv",
    "roles.csv",
    "passes.csv",
    "lateness.csv",
    "arrivals.csv",
    "bandwidth.csv",
    "reference.csv",
    "critical_path.csv",
    "timeline.csv",
    "kernels.csv",
    "blocking_calls.csv",
    "copies.csv",
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
    tables = report.tables
    files = {
        "summary.csv": struct_csv(report.ranks),
        "findings.csv": findings_csv(report.findings),
        "hosts.csv": struct_csv(report.hosts or ()),
        "steps.csv": struct_csv(report.steps),
        "collectives.csv": struct_csv(report.collectives),
        "roles.csv": struct_csv(report.roles),
        "passes.csv": struct_csv(report.passes),
        "lateness.csv": struct_csv(tables.lateness),
        "arrivals.csv": struct_csv(tables.arrivals),
        "bandwidth.csv": struct_csv(tables.bandwidth),
        "reference.csv": struct_csv(tables.reference),
        "critical_path.csv": csv_text([_path_row(row) for row in tables.critical_path]),
        "timeline.csv": struct_csv(tables.timeline),
        "kernels.csv": struct_csv(tables.kernels),
        "blocking_calls.csv": struct_csv(tables.blocking_calls),
        "copies.csv": struct_csv(tables.copies),
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
    return csv_text([_finding_row(finding) for finding in findings], _FINDING_COLUMNS)


def _finding_row(finding: Finding) -> dict[str, object]:
    evidence = "; ".join(
        quote_text(e)
        if e.file is not None
        else f"{e.metric}={value_text(e)}{' ' + e.unit if e.unit else ''}"
        + (f" (rank {e.rank})" if e.rank is not None else "")
        for e in finding.evidence
    )
    values = {name: getattr(finding, name) for name in _FINDING_COLUMNS if name != "evidence"}
    return {**values, "evidence": evidence}
