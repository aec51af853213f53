"""Merges findings that explain each other, so that one cause is one thing to fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from traceops.core.findings import Finding


@dataclass(frozen=True)
class Explains:
    """A finding of `rule` (with `cause`, where one is given) is why one of `explained` fired.

    `same_ranks`: only where the explained finding names no other ranks.
    """

    rule: str
    cause: str | None
    explained: tuple[str, ...]
    same_ranks: bool


EXPLAINS: tuple[Explains, ...] = (
    Explains("TO-S001", "input", ("TO-I001", "TO-I002"), True),
    Explains("TO-S001", "host", ("TO-I001", "TO-I003"), True),
    Explains("TO-S002", "input", ("TO-I001", "TO-I002"), True),
    Explains("TO-S002", "host", ("TO-I001", "TO-I003"), True),
    Explains("TO-C002", None, ("TO-C001", "TO-O001"), False),
    Explains("TO-C001", None, ("TO-O001", "TO-O003"), False),
    Explains("TO-O003", None, ("TO-O001",), False),
    Explains("TO-O002", None, ("TO-O001",), False),
)


def merge_overlapping(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, those that another one explains turned into remarks (severity info) that say which."""
    merged = []
    for found in findings:
        by = next((other for other in findings if other is not found and _explains(other, found)), None)
        if by is not None:
            who = f" (rank {by.ranks[0]})" if by.rule.startswith("TO-S") and len(by.ranks) == 1 else ""
            found = replace(found, severity="info", message=f"{found.message} {by.rule}{who} explains it.")
        merged.append(found)
    return merged


def _explains(other: Finding, found: Finding) -> bool:
    if other.severity == "info":
        return False
    return any(
        rule.rule == other.rule
        and rule.cause in (None, other.cause)
        and found.rule in rule.explained
        and (not rule.same_ranks or set(found.ranks) <= set(other.ranks))
        for rule in EXPLAINS
    )
