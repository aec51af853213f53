"""A Report as the document that report.json holds."""

from __future__ import annotations

from typing import Any

import msgspec

from traceops.fabric.json_types import FabricJson
from traceops.hangs.json_types import HangJson
from traceops.report import write
from traceops.report.model import Report, ReportBase, ReportDocument


def document_of(report: Report) -> ReportDocument:
    """What report.json holds of a report."""
    hang: HangJson | None = None
    if report.hang is not None:
        from traceops.report.hang_json import hang_json  # most runs do not hang

        hang = hang_json(report.hang)
    fabric: FabricJson | None = None
    if report.fabric is not None:
        from traceops.fabric.to_json import fabric_json  # most runs come without a fabric

        fabric = fabric_json(report.fabric)
    shared = {name: getattr(report, name) for name in ReportBase.__struct_fields__}
    return ReportDocument(**shared, hang=hang, fabric=fabric, reference=report.tables.reference)


def render_json(report: Report) -> str:
    """The text of report.json."""
    return write.json_text(document_of(report))


def to_json_object(report: Report) -> dict[str, Any]:
    """The object report.json holds: JSON types only, null where a number is not known."""
    value: dict[str, Any] = msgspec.json.decode(write.json_bytes(document_of(report)))
    return value
