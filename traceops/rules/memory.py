"""TO-M001 and TO-M002: memory. Their ids are reserved."""

from __future__ import annotations

from traceops.core.rule import JudgedBy, Rule

MEMORY_NEARLY_FULL = Rule(
    id="TO-M001",
    title="A rank is near or over its memory",
    judged_by=JudgedBy.NOBODY,
)

MEMORY_LOST = Rule(
    id="TO-M002",
    title="Memory is lost to fragmentation or imbalance",
    judged_by=JudgedBy.NOBODY,
)
RULES = (MEMORY_NEARLY_FULL, MEMORY_LOST)
