"""What a rule finds: the finding, its evidence, and whether the rule could be judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import force_setattr

from traceops.core.facts import Fact, fact_of, label_of
from traceops.core.words import Role

Severity = Literal["error", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
Status = Literal["fired", "clear", "not_evaluated"]
Unjudged = Literal["planned", "elsewhere"]
Lacking = Literal["captured", "through_host", "may_be_recording", "no_gpu_activity", "short_window"]
ComputesLonger = Literal["slower", "more_work", "extra_kernels", "more_calls", "on_cpu"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
CONFIDENCES: tuple[Confidence, ...] = ("low", "medium", "high")


class Evidence(Struct, frozen=True):
    """One number behind a finding; `peers` is the median peer's, where a rank is compared with others.

    A line quoted from a file instead has its text as `value`, and `file` and `line` (from 1) say where it stands.
    `grown` is the kernel or region whose time this is, where it took longer than on the median peer. `metric` is what
    a reader calls it: the label of `fact`, with `subject` in it. Nothing is looked up by it.
    """

    fact: Fact = Fact.OTHER
    value: float | int | str | None = None
    unit: str = ""
    threshold: float | None = None
    rank: int | None = None
    step: int | None = None
    peers: float | None = None
    file: str | None = None
    line: Annotated[int, Meta(ge=1)] | None = None
    grown: str | UnsetType = UNSET
    subject: str | UnsetType = UNSET
    metric: str = ""

    def __post_init__(self) -> None:
        if self.fact is Fact.OTHER and self.subject is UNSET and self.metric:  # earlier versions wrote the label only
            fact, subject = fact_of(self.metric)
            force_setattr(self, "fact", fact)
            force_setattr(self, "subject", subject or UNSET)
        about = self.subject if isinstance(self.subject, str) else ""
        force_setattr(self, "metric", label_of(self.fact, about))


MOST_STEPS = 64  # of a finding: there may be more of which it is told


class Finding(Struct, frozen=True):
    """Something wrong, the proof of it, what it costs a step and what to do. steps: the first ones."""

    rule: Annotated[str, Meta(pattern=r"^TO-[A-Z]\d{3}$")]
    severity: Severity
    confidence: Confidence
    title: str
    message: str
    evidence: Annotated[tuple[Evidence, ...], Meta(min_length=1)]
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    impact_ms: float | None = None
    cause: str | None = None
    advice: str = ""
    computes_longer: ComputesLonger | UnsetType = UNSET
    role: Role | UnsetType = UNSET

    kind: str | UnsetType = UNSET
    headline: str | UnsetType = UNSET
    facts: dict[str, Any] | UnsetType = UNSET

    def proof(self, fact: Fact) -> Evidence | None:
        """The first evidence of this kind."""
        return next((one for one in self.evidence if one.fact is fact), None)

    def number(self, fact: Fact) -> float | None:
        """Its value, where that is a number."""
        found = self.proof(fact)
        return None if found is None or not isinstance(found.value, (int, float)) else float(found.value)


class Check(Struct, frozen=True):
    """Whether a rule could be judged, and how it came out. `unjudged` is set where no data of this run could decide:
    the rule is only planned, or another command judges it."""

    rule: str
    status: Status
    reason: str = ""
    unjudged: Unjudged | UnsetType = UNSET
    lacking: Lacking | UnsetType = UNSET


class CheckCounts(Struct, frozen=True):
    """How many rules fired, are clear, and could not be judged on the data at hand. Rules that no data of the run could
    decide (see `Check.unjudged`) are in none of them."""

    fired: int = 0
    clear: int = 0
    not_evaluated: int = 0


def count_checks(checks: Iterable[Check]) -> CheckCounts:
    """How the checks came out."""
    counts: Counter[str] = Counter(check.status for check in checks if check.unjudged is UNSET)
    return CheckCounts(**counts)


def severity_of(value: float, info: float, warning: float, error: float = float("inf")) -> Severity | None:
    """The severity that a value reaches, None below all bounds."""
    if value >= error:
        return "error"
    if value >= warning:
        return "warning"
    return "info" if value >= info else None
