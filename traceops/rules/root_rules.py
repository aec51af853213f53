"""The rules that a diagnosis' causes are cases of, hangs and crashes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from traceops.core.findings import Finding
from traceops.core.rule import Verdict
from traceops.rules import crashes, hangs

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis, Root

BY_ID = {**hangs.BY_ID, **crashes.BY_ID}


def advice_of(root: Root) -> str:
    """What to do about a cause: of a rank that died of a known crash, about the crash."""
    if root.crash is not None:
        return crashes.advice_for(root.crash, root.setting)
    return BY_ID[root.rule].advice_for(root.cause) if root.rule in BY_ID else ""


def in_order_of_roots(diagnosis: Diagnosis | None, verdicts: Sequence[Verdict]) -> list[Finding]:
    """The findings of these rules, in the order of the diagnosis' roots: the most certain first."""
    found = [finding for verdict in verdicts if verdict.rule in BY_ID for finding in verdict.findings]
    order = {(root.rule, root.ranks): number for number, root in enumerate(diagnosis.roots if diagnosis else ())}
    return sorted(found, key=lambda finding: order.get((finding.rule, finding.ranks), len(order)))
