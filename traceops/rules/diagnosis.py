"""The verdicts on all evidence of a hang: who waits for whom, and what is wrong with the machines and NCCL there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from traceops.core.findings import Finding
from traceops.core.rule import Verdict
from traceops.fabric.fabric import Circumstances
from traceops.rules.explained import most_important_first
from traceops.rules.fabric.judge import OF_A_LINK, judge_fabric
from traceops.rules.fabric.judge import RULES as _RULES
from traceops.rules.fabric.paths import ACROSS_NUMA_NODES
from traceops.rules.failures import judge_crash, judge_hang

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis

FABRIC_RULES = frozenset(rule.id for rule in _RULES)


def judge_diagnosis(diagnosis: Diagnosis) -> list[Verdict]:
    """Those of hangs and crashes, and where the evidence tells of the fabric its rules, weighed by the hang."""
    verdicts = [*judge_hang(diagnosis), *judge_crash(diagnosis)]
    fabric = diagnosis.evidence.fabric
    if fabric is not None:
        hung = any(root.rule in OF_A_LINK for root in diagnosis.roots)
        verdicts += judge_fabric(fabric, Circumstances(hung=hung))
    return verdicts


def fabric_findings(verdicts: Sequence[Verdict]) -> list[Finding]:
    """What these verdicts say of the fabric, the most important first."""
    return most_important_first(
        [finding for verdict in verdicts if verdict.rule in FABRIC_RULES for finding in verdict.findings]
    )


def beside_the_roots(diagnosis: Diagnosis, verdicts: Sequence[Verdict]) -> list[Finding]:
    """What a reader in a hurry needs of the fabric: all of it without a root, else what is more than information.

    A root that names the path between GPUs has said already that it is far.
    """
    found = fabric_findings(verdicts)
    if not diagnosis.roots:
        return found
    said = any(root.cause == "p2p" for root in diagnosis.roots)
    return [
        finding
        for finding in found
        if finding.severity != "info" and not (said and finding.rule == ACROSS_NUMA_NODES.id)
    ]
