"""compare.json: the comparison for other programs, as docs/formats.md and compare.schema.json say."""

from __future__ import annotations

from dataclasses import asdict
from datetime import date
from pathlib import Path, PurePath
from typing import Any

from traceops.compare.model import Change, Comparison, MetricChange
from traceops.render.comparison import text
from traceops.render.report.json import json_text, plain_json
from traceops.version import __version__

SCHEMA_VERSION = 1
SCHEMA_PATH = Path(__file__).parents[2] / "schemas" / "compare.schema.json"


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """What compare.json holds: JSON types only, null where a number is not known."""
    result: dict[str, Any] = plain_json(
        _without_python_types(
            {
                "schema_version": SCHEMA_VERSION,
                "tool": {"name": "traceops", "version": __version__},
                "verdict": comparison.verdict,
                "sentence": comparison.sentence,
                "base": asdict(comparison.base),
                "head": asdict(comparison.head),
                "metrics": [_metric(metric) for metric in comparison.metrics],
                "explanations": [
                    {**asdict(reason), "changes": [_change(change) for change in reason.changes]}
                    for reason in comparison.explanations
                ],
                "changes": [_change(change) for change in comparison.changes],
                "unchanged": comparison.unchanged,
                "outliers": [asdict(outlier) for outlier in comparison.outliers],
                "new_findings": [asdict(finding) for finding in comparison.new_findings],
                "gone_findings": [asdict(finding) for finding in comparison.gone_findings],
                "findings": [asdict(finding) for finding in comparison.findings],
                "checks": [asdict(check) for check in comparison.checks],
                "refusals": comparison.refusals,
                "warnings": comparison.warnings,
                "notes": comparison.notes,
                "paired": comparison.paired,
                "confidence": comparison.confidence,
                "power": comparison.power,
                "launch_noise_pct": comparison.launch_noise_pct,
                "settings": comparison.settings,
                "steps": [asdict(step) for step in comparison.steps],
            }
        )
    )
    return result


def render_comparison_json(comparison: Comparison) -> str:
    """The text of compare.json."""
    return json_text(comparison_document(comparison))


def _metric(metric: MetricChange) -> dict[str, Any]:
    base, head = metric.samples
    return {**asdict(metric), "samples": {"base": base, "head": head}}


def _change(change: Change) -> dict[str, Any]:
    return {**asdict(change), "delta_ms": text.delta_ms(change)}


def _without_python_types(value: Any) -> Any:
    """Dates and paths as text, sets as sorted lists: settings may hold them."""
    if isinstance(value, dict):
        return {key: _without_python_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_python_types(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (date, PurePath)):
        return str(value)
    return value
