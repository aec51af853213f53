"""report.json: the Report for other programs, as docs/formats.md and report.schema.json say."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

from traceops.pipeline.report import Report
from traceops.version import __version__

SCHEMA_VERSION = 1
SCHEMA_PATH = Path(__file__).parents[2] / "schemas" / "report.schema.json"


def to_json_object(report: Report) -> dict[str, Any]:
    """The object report.json holds: JSON types only, null where a number is not known."""
    hang: dict[str, Any] | None = None
    if report.hang is not None:
        from traceops.render.hang.json import hang_json

        hang = to_builtins(hang_json(report.hang))
    fabric: dict[str, Any] | None = None
    if report.fabric is not None:
        from traceops.fabric.to_json import fabric_json

        fabric = to_builtins(fabric_json(report.fabric))
    result: dict[str, Any] = plain_json(
        {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "traceops", "version": __version__},
            "run": report.run,
            "summary": report.summary,
            "ranks": report.ranks,
            "steps": report.steps,
            "unprofiled_steps": report.unprofiled_steps,
            "collectives": report.collectives,
            "inventory": report.inventory,
            "what_if": report.what_if,
            "findings": [asdict(finding) for finding in report.findings],
            "checks": [asdict(check) for check in report.checks],
            "hang": hang,
            "fabric": fabric,
            "reference": report.tables.get("reference") or [],
        }
    )
    return result


def render_json(report: Report) -> str:
    """The text of report.json."""
    return json_text(to_json_object(report))


def json_text(value: Any) -> str:
    """JSON as our files hold it, of what `plain_json` made."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def plain_json(value: Any) -> Any:
    """JSON types only: numpy's numbers as Python's, null for what is no finite number."""
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
