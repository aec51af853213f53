"""The verdicts on a hang: a finding for each root, and why the other rules are clear or were not judged."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from traceops.core.findings import Evidence, Finding
from traceops.core.rank_text import ranks_text
from traceops.rules.findings import Verdict, finding

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis, Root

HANG_RULES = ("TO-H001", "TO-H002", "TO-H003", "TO-H004", "TO-H005", "TO-H006")
NO_EVIDENCE = "the run folder holds no evidence of a hang"


def judge_hang(diagnosis: Diagnosis) -> list[Verdict]:
    """One verdict for each of TO-H001 to TO-H006, in that order."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for root in diagnosis.roots:
        found[root.rule].append(_finding(diagnosis, root))
    clear = (
        "the ranks wait for another reason"
        if diagnosis.roots
        else "no rank waits in a collective, as far as was read"
    )
    verdicts = []
    for rule in HANG_RULES:
        if found[rule]:
            verdicts.append(Verdict(rule, tuple(found[rule])))
        elif rule in diagnosis.not_evaluated:
            verdicts.append(Verdict(rule, not_evaluated=diagnosis.not_evaluated[rule]))
        else:
            verdicts.append(Verdict(rule, clear=clear))
    return verdicts


def judge_no_hang() -> list[Verdict]:
    """The verdicts where there is nothing to judge by: which is not the same as no hang."""
    return [Verdict(rule, not_evaluated=NO_EVIDENCE) for rule in HANG_RULES]


def _finding(diagnosis: Diagnosis, root: Root) -> Finding:
    stall = diagnosis.evidence.stall
    proof = [Evidence(metric, value) for metric, value in root.evidence]
    if root.doing is not None:
        proof.append(Evidence("doing instead", root.doing))
    if root.waiting:
        proof.append(Evidence("waiting ranks", len(root.waiting), f"({ranks_text(root.waiting, 16)})"))
    if root.bytes is not None:
        proof.append(Evidence("message", root.bytes, "bytes"))
    if stall is not None:
        proof.append(Evidence("no step finished for", round(stall.stalled_s, 1), "s", stall.limit_s))
    return finding(
        root.rule,
        "error",
        root.confidence,
        root.message,
        proof or [Evidence("ranks", ranks_text(root.ranks, 16))],
        ranks=root.ranks,
        cause=root.cause,
    )
