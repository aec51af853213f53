"""compare_metrics.csv (a row a metric) and compare_changes.csv (a row a change)."""

from __future__ import annotations

from msgspec.structs import asdict

from traceops.compare.model import Change, Comparison, MetricChange
from traceops.render.comparison import text
from traceops.render.writers.csv import csv_text

CSV_FILES = ("compare_metrics.csv", "compare_changes.csv")
METRIC_COLUMNS = (
    *(name for name in MetricChange.__struct_fields__ if name not in ("samples", "waiver")),
    "base_samples", "head_samples", "waived_until", "waiver_reason", "waiver_limit_pct",
)  # fmt: skip
CHANGE_COLUMNS = Change.__struct_fields__


def render_comparison_csv(comparison: Comparison) -> dict[str, str]:
    """File name -> text. A value that is not known is an empty cell, never 0."""
    metrics = [
        {
            **asdict(metric),
            "base_samples": metric.samples.base,
            "head_samples": metric.samples.head,
            "waived_until": None if metric.waiver is None else metric.waiver.until.isoformat(),
            "waiver_reason": None if metric.waiver is None else metric.waiver.reason,
            "waiver_limit_pct": None if metric.waiver is None else metric.waiver.limit_pct,
        }
        for metric in comparison.metrics
    ]
    changes = [asdict(change) for change in text.important_first(comparison.changes)]
    return {
        "compare_metrics.csv": csv_text(metrics, METRIC_COLUMNS),
        "compare_changes.csv": csv_text(changes, CHANGE_COLUMNS),
    }
