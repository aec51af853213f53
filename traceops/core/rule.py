"""What a rule is: documented data that makes its own findings and verdicts, apart from the code that judges it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from msgspec import UNSET, Struct, UnsetType

from traceops.core.claims import Claim
from traceops.core.findings import ComputesLonger, Confidence, Evidence, Finding, Lacking, Severity
from traceops.core.words import Role
from traceops.words.catalogue import sections


class JudgedBy(Enum):
    """Which command judges a rule; ANALYZE also where doctor or diagnose judge it too."""

    ANALYZE = "analyze"
    COMPARE = "compare"
    DOCTOR = "doctor"
    NOBODY = "nobody"  # the id is reserved


class Bounds(Struct, frozen=True):
    """From where on the rules of a family find something: info, warning and error, as far as there are so many.
    [bounds] in words/<words>.ini says what each of them is; docs/rules.md lists them."""

    words: ClassVar[str]


class Verdict(Struct, frozen=True):
    """What one rule's judge says: findings, or why there are none. `rule` is the rule's id. `not_evaluated` (why)
    counts only where there are no findings, `clear` (why) only where neither is given."""

    rule: str
    findings: tuple[Finding, ...] = ()
    not_evaluated: str = ""
    clear: str = ""
    lacking: Lacking | UnsetType = UNSET


class Rule(Struct, frozen=True):
    """A documented rule. `id` is a contract: it never changes its meaning. `fires` says when, `advice` what to do about
    it; `by_cause` is the advice for findings with that cause, in place of `advice`. `cured` is the state in which it
    costs nothing: 'with input in time'."""

    id: str
    title: str
    fires: str = ""
    advice: str = ""
    by_cause: tuple[tuple[str, str], ...] = ()
    cured: str = ""
    judged_by: JudgedBy = JudgedBy.ANALYZE

    def advice_for(self, cause: str | None) -> str:
        """What to do about a finding with this cause."""
        return dict(self.by_cause).get(cause or "", self.advice)

    def finding(
        self,
        severity: Severity,
        confidence: Confidence,
        claim: Claim | str,
        evidence: Sequence[Evidence],
        *,
        ranks: Sequence[int] = (),
        steps: Sequence[int] = (),
        impact_ms: float | None = None,
        cause: str | None = None,
        computes_longer: ComputesLonger | UnsetType = UNSET,
        role: Role | UnsetType = UNSET,
    ) -> Finding:
        """A finding of this rule, with its title and advice. Raises ValueError without evidence.

        claim: its kind and facts; or its message, where the family's sentences are not in the catalogue.
        """
        if not evidence:
            raise ValueError(f"{self.id}: a finding needs evidence")
        return Finding(
            rule=self.id, severity=severity, confidence=confidence, title=self.title,
            message=claim if isinstance(claim, str) else claim.message(), evidence=tuple(evidence), ranks=tuple(ranks),
            steps=tuple(steps), impact_ms=impact_ms, cause=cause,
            advice=self.advice_for(cause if computes_longer is UNSET else computes_longer),
            computes_longer=computes_longer, role=role, kind=UNSET if isinstance(claim, str) else claim.kind,
            headline=UNSET if isinstance(claim, str) else claim.headline(),
            facts=UNSET if isinstance(claim, str) else claim.facts(),
        )  # fmt: skip

    def verdict(self, *findings: Finding, clear: str = "", not_evaluated: str = "") -> Verdict:
        """The findings, or, where there are none, why the rule was not evaluated or else is clear."""
        return Verdict(self.id, findings, not_evaluated, clear)

    def not_evaluated(self, why: str, lacking: Lacking | UnsetType = UNSET) -> Verdict:
        """The verdict of a judge that has not what it needs."""
        return Verdict(self.id, not_evaluated=why, lacking=lacking)

    def clear(self, why: str) -> Verdict:
        """The verdict of a judge that looked and found nothing wrong."""
        return Verdict(self.id, clear=why)


def described(family: str, id: str, judged_by: JudgedBy = JudgedBy.ANALYZE) -> Rule:
    """The rule with this id, as words/<family>.ini describes it."""
    text = sections(family)[id]
    return Rule(
        id, text["title"], text.get("fires", ""), text.get("do", ""),
        tuple((key.removeprefix("do."), said) for key, said in text.items() if key.startswith("do.")),
        text.get("cured", ""), judged_by,
    )  # fmt: skip
