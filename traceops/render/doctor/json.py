"""doctor.json: the checkup for other programs, as docs/formats.md and doctor.schema.json say."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from traceops.doctor.document import document_of
from traceops.doctor.model import Checkup
from traceops.render.report.json import plain_json


def doctor_document(checkup: Checkup) -> dict[str, Any]:
    """What doctor.json holds: JSON types only, null where a number is not known."""
    document: dict[str, Any] = plain_json(to_builtins(document_of(checkup)))
    return document
