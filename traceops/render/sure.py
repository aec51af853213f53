"""How sure a finding is, in words."""

from __future__ import annotations

from traceops.core.findings import Confidence

SURE: dict[Confidence, str] = {
    "high": "High",
    "medium": "Medium: likely; check it before you act",
    "low": "Low: a hint, no proof",
}
