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
Lacking = Literal["captured", "through_host", "may_be_recording", "no_gpu_activity"]
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
    peers: Annotated[
        float | None, Meta(description="The median peer's value, where a rank is compared with others.")
    ] = None
    file: Annotated[
        str | None, Meta(description="Of a quoted line, whose text is the value: the file it stands in.")
    ] = None
    line: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Its number in the file.")] = None
    grown: Annotated[
        str | UnsetType, Meta(description="The kernel or region, by name, that took longer than on the median peer.")
    ] = UNSET
    subject: Annotated[
        str | UnsetType, Meta(description="The kernel, region, place or device that it is about, where it has one.")
    ] = UNSET
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
    impact_ms: Annotated[float | None, Meta(description="Up to this much of each step.")] = None
    cause: str | None = None
    advice: str = ""
    computes_longer: Annotated[
        ComputesLonger | UnsetType,
        Meta(
            description="Behind the cause gpu_compute. slower: the same work takes longer. more_work: the rank has "
            "more of it. extra_kernels: it runs kernels that its peers do not run. more_calls: it launches some "
            "kernels more often than its peers. Absent where that is not known."
        ),
    ] = UNSET
    role: Annotated[
        Role | UnsetType,
        Meta(description="What the groups are for in which it costs time. Absent where it is told of no group."),
    ] = UNSET

    kind: Annotated[str | UnsetType, Meta(description="Which of the known kinds of claim it is, within its rule.")] = (
        UNSET
    )
    headline: Annotated[str | UnsetType, Meta(description="It in one short sentence, without a full stop.")] = UNSET
    facts: Annotated[
        dict[str, Any] | UnsetType, Meta(description="What the kind of claim is filled with; times in ms.")
    ] = UNSET

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
    unjudged: Annotated[
        Unjudged | UnsetType,
        Meta(description="Why no data could decide: the rule is only planned, or another command judges it."),
    ] = UNSET
    lacking: Annotated[
        Lacking | UnsetType,
        Meta(
            description="What a rule lacked that was not evaluated, where something of its own would help. captured: "
            "kernels were launched into a graph that was being captured. through_host: ranks exchange data through "
            "their hosts. may_be_recording: what it found may be the profiler's. no_gpu_activity: no trace has any."
        ),
    ] = UNSET


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
