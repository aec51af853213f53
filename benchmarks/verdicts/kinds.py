"""The kinds of sentences that a verdict can be, from the registry of rules and what opens a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceops.core.findings import Finding
from traceops.core.rule import JudgedBy
from traceops.hangs.crash_kinds import RULE_OF
from traceops.render.report.card import NoProblem, WaitForEachOther, without_finding
from traceops.report.model import Card, Report
from traceops.rules.registry import BY_ID, RULES


@dataclass(frozen=True, order=True)
class Kind:
    """A rule's id, or a command whose verdict no single rule is, and which of its sentences."""

    of: str
    variant: str = ""


# What opens a report, a diagnosis, a checkup or a comparison and is no rule's own: when it is said.
HEADLINES: dict[Kind, str] = {
    Kind("analyze", "late"): "a rank is late, and that is only a remark",
    Kind("analyze", "waiting"): "ranks wait, and who is late could not be judged",
    Kind("analyze", "clear"): "nothing is wrong",
    Kind(
        "analyze", "notes"
    ): "nothing is wrong, but ranks wait much, kernels are not rated, or recorded steps may not be like the others",
    Kind("analyze", "unjudged"): "more than a tenth of the step was not judged",
    Kind("analyze", "hang"): "the run hung",
    Kind("diagnose", "cause"): "a cause is known",
    Kind("diagnose", "waits"): "ranks wait, and nothing tells for whom",
    Kind("doctor", "files"): "of files that others saved",
    Kind("doctor", "machine"): "of this machine",
    Kind("doctor", "settings"): "a setting helps",
    Kind("doctor", "fallback"): "GPUs do not work together",
    Kind("compare", "regression"): "a gated metric got worse",
    Kind("compare", "inconclusive"): "a gated metric could not be decided",
    Kind("compare", "improvement"): "a gated metric got better",
    Kind("compare", "no_regression"): "nothing got worse",
}


def kinds() -> list[Kind]:
    """Every kind: what opens a verdict, then rule by rule its findings, one a cause with advice of its own."""
    found = list(HEADLINES)
    for rule in RULES:
        if rule.judged_by is not JudgedBy.NOBODY:
            causes = [cause for cause, _ in rule.by_cause]
            found += [
                Kind(rule.id, cause) for cause in (causes if _always_by_cause(rule.id, causes) else ["", *causes])
            ]
    return found


# Rules that name a cause in every finding, each with advice of its own.
_NEVER_WITHOUT = ("TO-W001", "TO-W002", *(rule.id for rule in RULES if rule.id.startswith("TO-K")))


def _always_by_cause(rule: str, causes: Sequence[str]) -> bool:
    """Whether each finding or crash that is a case of the rule has advice of its own: the rule's is then never said."""
    if rule in _NEVER_WITHOUT:
        return True
    crashes = [kind for kind, of in RULE_OF.items() if of == rule]
    return bool(crashes) and set(crashes) <= set(causes)


def finding_kind(finding: Finding) -> Kind:
    """The rule, and what its advice depends on where the rule tells that apart."""
    rule = BY_ID.get(finding.rule)
    told = {advice: cause for cause, advice in rule.by_cause} if rule is not None else {}
    cause = finding.cause if finding.cause in told.values() else ""
    begins = [advice for advice in told if finding.advice.startswith(advice)]  # more advice may stand behind it
    return Kind(finding.rule, told[max(begins, key=len)] if begins else cause or "")


def headline_kind(report: Report, card: Card) -> Kind:
    """Which of the sentences that open a report its card has: of a rule where one fired above info."""
    serious = [finding for finding in report.findings if finding.severity != "info"]
    if report.hang is not None and report.hang.roots:
        return Kind("analyze", "hang")
    if serious:
        return finding_kind(serious[0])
    if card.rule is not None:
        return Kind("analyze", "late")
    opening = without_finding(report)[1]
    if isinstance(opening, WaitForEachOther):
        return Kind("analyze", "waiting")
    if not isinstance(opening, NoProblem) or opening.judged is not None:
        return Kind("analyze", "unjudged")
    return Kind("analyze", "clear" if card.level == "clear" else "notes")
