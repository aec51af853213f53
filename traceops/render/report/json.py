"""report.json: the Report for other programs, as docs/formats.md and report.schema.json say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from traceops.report import write
from traceops.report.document import document_of
from traceops.report.model import Report

SCHEMA_PATH = Path(__file__).parents[2] / "schemas" / "report.schema.json"


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
