"""The nouns of a comparison, and what compare.json holds: a side, a metric's change, what explains it, the verdict."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from traceops.core.documents import SCHEMA_VERSION, SchemaVersion, Tool
from traceops.core.findings import Check, Evidence, Finding

MetricOutcome = Literal["regression", "improvement", "unchanged", "inconclusive", "waived", "informative"]
ComparisonVerdict = Literal["regression", "improvement", "no_regression", "inconclusive"]
MetricFamily = Literal["time", "ledger", "communication", "exact"]
Better = Literal["lower", "higher", "neither"]
SideName = Literal["base", "head"]
ChangeKind = Literal["module", "gpu_operator", "kernel", "operator", "collective", "blocking_call", "environment"]
ChangeStatus = Literal["new", "vanished", "renamed", "changed"]

OUTCOMES: tuple[MetricOutcome, ...] = (
    "regression", "inconclusive", "waived", "improvement", "unchanged", "informative",
)  # fmt: skip

_Count = Annotated[int, Meta(ge=0)]
_Share = Annotated[float, Meta(gt=0, lt=1)]


class Waiver(msgspec.Struct, frozen=True):
    """A regression that is accepted, for a reason and until a day; `limit_pct` bounds how much of it."""

    metric: str
    reason: str
    until: date
    limit_pct: float | None = None


class CaptureInfo(msgspec.Struct, frozen=True):
    """One capture of a side. `commit` is null where the run does not say."""

    name: str
    path: str
    started_ns: Annotated[int | None, Meta(description="Unix nanoseconds.")]
    commit: str | None
    dirty: Annotated[bool | None, Meta(description="Whether the working folder had changes that were not committed.")]
    steps: Annotated[_Count, Meta(description="Profiled.")]
    unprofiled_steps: _Count


class Side(msgspec.Struct, frozen=True):
    """Base or head."""

    label: str
    captures: Annotated[tuple[CaptureInfo, ...], Meta(min_length=1)]
    run: Annotated[
        dict[str, Any], Meta(description="What the first capture says of the run: the `run` object of report.json.")
    ]


class Samples(msgspec.Struct, frozen=True):
    """Steps, or captures for a metric that has one value a capture, on each side."""

    base: _Count = 0
    head: _Count = 0


class MetricChange(msgspec.Struct, frozen=True):
    """One metric on both sides, over all captures and steps; null where it is not known or was not tested."""

    metric: Annotated[str, Meta(description="The name that thresholds and waivers use.")]
    label: Annotated[str, Meta(description="For people.")]
    unit: str
    family: MetricFamily
    better: Better
    base: float | None
    head: float | None
    outcome: MetricOutcome
    reason: Annotated[str, Meta(description="Why the outcome is what it is, in words.")]
    change: Annotated[float | None, Meta(description="head - base, in `unit`.")] = None
    change_pct: Annotated[
        float | None, Meta(description="Of the base's value, or of its step time where `of_step`.")
    ] = None
    low_pct: Annotated[float | None, Meta(description="Lower end of the interval of change_pct.")] = None
    high_pct: Annotated[float | None, Meta(description="Upper end.")] = None
    p: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Two-sided, Holm-corrected over the metrics tested with it."),
    ] = None
    mde_pct: Annotated[
        float | None, Meta(description="The smallest change that this much data finds with the comparison's power.")
    ] = None
    threshold_pct: Annotated[
        float | None, Meta(description="A change for the worse fails from here; null where the metric is only shown.")
    ] = None
    of_step: bool = False
    samples: Samples = Samples()
    waiver: Waiver | None = None


def metric_of(metrics: Iterable[MetricChange], name: str) -> MetricChange | None:
    """The metric of this name, None where it was not compared."""
    return next((metric for metric in metrics if metric.metric == name), None)


class Change(msgspec.Struct, frozen=True):
    """A module, kernel, operator, collective, blocking call or variable that is not what it was. module, gpu_operator:
    GPU time on the rank whose kernels are judged; operator: host time."""

    kind: ChangeKind
    status: ChangeStatus
    name: str
    head_name: Annotated[str, Meta(description="Differs from `name` where it was renamed.")]
    base_count: Annotated[float | None, Meta(description="A step, mean over ranks.")] = None
    head_count: float | None = None
    base_ms: Annotated[float | None, Meta(description="A step, mean over ranks.")] = None
    head_ms: float | None = None
    detail: Annotated[str, Meta(description="What else tells it apart, for people.")] = ""
    base_value: Annotated[str | None, Meta(description="Of a variable; null where it was not set.")] = None
    head_value: str | None = None
    delta_ms: Annotated[float | None, Meta(description="head_ms - base_ms; null where neither is known.")] = None

    def __post_init__(self) -> None:
        known = self.base_ms is not None or self.head_ms is not None
        msgspec.structs.force_setattr(self, "delta_ms", round(self.more_ms, 6) if known else None)

    @property
    def more_ms(self) -> float:
        """Milliseconds a step it takes more than it did; 0 where times are not known."""
        return (self.head_ms or 0.0) - (self.base_ms or 0.0)


class Explanation(msgspec.Struct, frozen=True):
    """One reason for the change of the step; the most important comes first."""

    cause: Annotated[str, Meta(description="Of a fixed list: collectives, bandwidth, straggler, compute and others.")]
    text: Annotated[str, Meta(description="A sentence for people.")]
    ms: Annotated[float, Meta(description="A step; positive: slower.")]
    buckets: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    changes: Annotated[tuple[Change, ...], Meta(description="What it rests on.")] = ()


class OutlierStep(msgspec.Struct, frozen=True):
    """A step far from its capture's median: named, and left in what is compared."""

    side: SideName
    capture: str
    step: int
    profiled: bool
    ms: float
    median_ms: Annotated[float, Meta(description="Of its capture.")]


class StepPoint(msgspec.Struct, frozen=True):
    """One step of a capture as it was compared: of all ranks one duration."""

    side: SideName
    capture: str
    index: Annotated[_Count, Meta(description="From 0, in time order.")]
    profiled: bool
    ms: float


class NotJudged(msgspec.Struct, frozen=True):
    """Why the steps of the two sides say nothing of these metrics, and what would make them comparable."""

    why: str
    cure: str
    metrics: tuple[str, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on head against base, and everything it rests on: what compare.json holds."""

    schema_version: SchemaVersion = SCHEMA_VERSION
    tool: Tool = Tool()
    verdict: ComparisonVerdict
    sentence: Annotated[str, Meta(description="The verdict in one line.")]
    base: Side
    head: Side
    metrics: Annotated[
        tuple[MetricChange, ...], Meta(description="Gated ones first, then time, ledger, communication, exact.")
    ]
    explanations: Annotated[tuple[Explanation, ...], Meta(description="Most important first.")] = ()
    changes: tuple[Change, ...] = ()
    unchanged: Annotated[tuple[str, ...], Meta(description="What stayed as it was, in words.")] = ()
    outliers: Annotated[
        tuple[OutlierStep, ...],
        Meta(description="Steps far from their capture's median, which are left in what is compared."),
    ] = ()
    new_findings: Annotated[tuple[Finding, ...], Meta(description="Of head's report, that base's does not have.")] = ()
    gone_findings: Annotated[tuple[Finding, ...], Meta(description="Of base's report, that head's does not have.")] = ()
    findings: Annotated[tuple[Finding, ...], Meta(description="TO-R001, one a metric that regressed.")] = ()
    checks: tuple[Check, ...] = ()
    refusals: Annotated[
        tuple[str, ...], Meta(description="Why the two should not be compared; empty unless it was forced.")
    ] = ()
    not_judged: Annotated[
        tuple[NotJudged, ...],
        Meta(description="Steps that are not of one kind; empty where all are, and where it was forced."),
    ] = ()
    warnings: Annotated[tuple[str, ...], Meta(description="What differs and may matter.")] = ()
    notes: tuple[str, ...] = ()
    paired: Annotated[bool, Meta(description="Captures were taken in turn and are compared pair by pair.")] = False
    confidence: Annotated[_Share, Meta(description="Of the intervals.")] = 0.95
    power: Annotated[_Share, Meta(description="Of mde_pct: how often such a change is found.")] = 0.9
    launch_noise_pct: Annotated[
        float | None,
        Meta(
            description="Standard deviation between captures that was assumed, as a side has one only; null where it "
            "was measured."
        ),
    ] = None
    settings: Annotated[dict[str, Any], Meta(description="What the comparison was told.")] = {}
    steps: Annotated[
        tuple[StepPoint, ...],
        Meta(description="Every step of both sides, capture by capture; of all ranks one duration."),
    ] = ()

    @property
    def gated(self) -> tuple[MetricChange, ...]:
        """The metrics that decide the verdict."""
        return tuple(metric for metric in self.metrics if metric.threshold_pct is not None)
