"""report.json: the Report for other programs, as docs/formats.md and report.schema.json say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from traceops.fabric.json_types import FabricJson
from traceops.hangs.json_types import HangJson
from traceops.report import write
from traceops.report.model import Report, ReportBase, ReportDocument

SCHEMA_PATH = Path(__file__).parents[2] / "schemas" / "report.schema.json"


def document_of(report: Report) -> ReportDocument:
    """What report.json holds of a report."""
    hang: HangJson | None = None
    if report.hang is not None:
        from traceops.render.hang.json import hang_json

        hang = hang_json(report.hang)
    fabric: FabricJson | None = None
    if report.fabric is not None:
        from traceops.fabric.to_json import fabric_json

        fabric = fabric_json(report.fabric)
    shared = {name: getattr(report, name) for name in ReportBase.__struct_fields__}
    return ReportDocument(**shared, hang=hang, fabric=fabric, reference=report.tables.reference)


def to_json_object(report: Report) -> dict[str, Any]:
    """The object report.json holds: JSON types only, null where a number is not known."""
    value: dict[str, Any] = msgspec.json.decode(write.json_bytes(document_of(report)))
    return value


def render_json(report: Report) -> str:
    """The text of report.json."""
    return write.json_text(document_of(report))


def json_text(value: Any) -> str:
    """JSON as our files hold it, of what `plain_json` made."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def plain_json(value: Any) -> Any:
    """JSON types only: numpy's numbers as Python's, null for what is no finite number, nothing for UNSET."""
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items() if item is not msgspec.UNSET}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
