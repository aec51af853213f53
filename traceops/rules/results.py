"""What the rules say in the end: findings in order, and one check for each rule."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.findings import SEVERITIES, Check, Finding, Unjudged
from traceops.core.rule import JudgedBy, Rule, Verdict
from traceops.rules.fabric import judge as fabric
from traceops.rules.registry import RULES

_FABRIC = {rule.id for rule in fabric.RULES}
_UNJUDGED: dict[Unjudged, str] = {
    "planned": "not judged by this version of traceops",
    "elsewhere": "not judged of one run alone; traceops compare judges it",
}


def most_important_first(findings: Sequence[Finding]) -> list[Finding]:
    """By severity, then by what a step loses, so that the first is the one to fix first.

    What is wrong with the fabric comes before the low bandwidth that it causes.
    """
    return sorted(
        findings,
        key=lambda f: (
            -SEVERITIES.index(f.severity), -(f.impact_ms or 0.0), f.rule not in _FABRIC, f.rule,
        ),
    )  # fmt: skip


def checks(verdicts: Sequence[Verdict]) -> list[Check]:
    """One line for each rule that a report could tell of, also for those that nobody judged."""
    by_rule = {verdict.rule: verdict for verdict in verdicts}
    return [
        _check(by_rule[rule.id]) if rule.id in by_rule else _unjudged(rule)
        for rule in RULES
        if rule.id in by_rule or rule.judged_by is not JudgedBy.DOCTOR
    ]


def judged_checks(verdicts: Sequence[Verdict]) -> list[Check]:
    """One line for each rule that has a verdict."""
    judged = {verdict.rule for verdict in verdicts}
    return [check for check in checks(verdicts) if check.rule in judged]


def _unjudged(rule: Rule) -> Check:
    why: Unjudged = "elsewhere" if rule.judged_by is JudgedBy.COMPARE else "planned"
    return Check(rule.id, "not_evaluated", _UNJUDGED[why], why)


def _check(verdict: Verdict) -> Check:
    if verdict.findings:
        return Check(verdict.rule, "fired", verdict.findings[0].message)
    if verdict.not_evaluated:
        return Check(verdict.rule, "not_evaluated", verdict.not_evaluated)
    return Check(verdict.rule, "clear", verdict.clear)
