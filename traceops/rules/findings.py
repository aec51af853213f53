"""Names of before, until everybody takes them from where they are."""

from __future__ import annotations

from typing import Any

from traceops.core.findings import Finding, severity_of
from traceops.core.rule import Verdict
from traceops.rules.registry import BY_ID, RULES
from traceops.rules.results import checks, judged_checks, most_important_first

__all__ = [
    "BY_ID", "RULES", "Verdict", "checks", "finding", "judged_checks", "most_important_first", "severity_of",
]  # fmt: skip


def finding(rule: str, *args: Any, **known: Any) -> Finding:
    """A finding of the rule with this id; new code calls `finding` of the Rule."""
    return BY_ID[rule].finding(*args, **known)
