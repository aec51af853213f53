"""What of a report goes to a tracker: numbers by name, and the findings as rows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceops.core.errors import InputError
from traceops.report.document import load_object, report_of
from traceops.report.model import ReportDocument

FINDING_COLUMNS = ("rule", "severity", "title", "message")


@dataclass(frozen=True)
class KeyFigures:
    """Of the report in `folder`. figures: ms, % and counts by name. findings: rows of FINDING_COLUMNS, worst first."""

    folder: Path
    figures: dict[str, float]
    findings: list[tuple[str, ...]]

    @property
    def worst(self) -> str:
        """Severity of the first finding; "clear" where there is none."""
        return self.findings[0][1] if self.findings else "clear"


def key_figures(folder: str | os.PathLike[str]) -> KeyFigures:
    """Of a folder that `traceops analyze -o` wrote. Raises InputError where it has no report.json."""
    path = Path(folder) / "report.json"
    if not path.exists():
        raise InputError(f"{folder} has no report.json; write it with: traceops analyze RUN -o {folder}")
    report = report_of(load_object(str(path)), str(path))
    findings: list[tuple[str, ...]] = [(f.rule, f.severity, f.title, f.message) for f in report.findings]
    return KeyFigures(Path(folder), _figures(report), findings)


def _figures(report: ReportDocument) -> dict[str, float]:
    summary = report.summary
    step = summary.step_time_ms
    values: dict[str, float | None] = {
        "step_ms": None if step is None else step.median,
        "unprofiled_step_ms": summary.unprofiled_step_time_ms,
        "step_without_profiler_ms": summary.plain_ms,
        "overlap_pct": summary.overlap_pct,
        "exposed_comm_ms": summary.exposed_comm_ms,
        "idle_pct": summary.idle_pct,
        "compute_pct": summary.compute_pct,
        "matched_pct": None if summary.matching is None else summary.matching.matched_pct,
        **{f"ledger_ms/{bucket}": value for bucket, value in msgspec.to_builtins(summary.ledger_ms).items()},
    }
    for severity in ("error", "warning", "info"):
        values[f"findings/{severity}"] = sum(f.severity == severity for f in report.findings)
    return {name: float(value) for name, value in values.items() if value is not None}
