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
    started_ns: int | None
    commit: str | None
    dirty: bool | None
    steps: _Count
    unprofiled_steps: _Count


class Side(msgspec.Struct, frozen=True):
    """Base or head."""

    label: str
    captures: Annotated[tuple[CaptureInfo, ...], Meta(min_length=1)]
    run: dict[str, Any]


class Samples(msgspec.Struct, frozen=True):
    """Steps, or captures for a metric that has one value a capture, on each side."""

    base: _Count = 0
    head: _Count = 0


class MetricChange(msgspec.Struct, frozen=True):
    """One metric on both sides, over all captures and steps; null where it is not known or was not tested."""

    metric: str
    label: str
    unit: str
    family: MetricFamily
    better: Better
    base: float | None
    head: float | None
    outcome: MetricOutcome
    reason: str
    change: float | None = None
    change_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    p: Annotated[float, Meta(ge=0, le=1)] | None = None
    mde_pct: float | None = None
    threshold_pct: float | None = None
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
    head_name: str
    base_count: float | None = None
    head_count: float | None = None
    base_ms: float | None = None
    head_ms: float | None = None
    detail: str = ""
    base_value: str | None = None
    head_value: str | None = None
    delta_ms: float | None = None

    def __post_init__(self) -> None:
        known = self.base_ms is not None or self.head_ms is not None
        msgspec.structs.force_setattr(self, "delta_ms", round(self.more_ms, 6) if known else None)

    @property
    def more_ms(self) -> float:
        """Milliseconds a step it takes more than it did; 0 where times are not known."""
        return (self.head_ms or 0.0) - (self.base_ms or 0.0)


class Explanation(msgspec.Struct, frozen=True):
    """One reason for the change of the step; the most important comes first."""

    cause: str
    text: str
    ms: float
    buckets: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    changes: tuple[Change, ...] = ()


class OutlierStep(msgspec.Struct, frozen=True):
    """A step far from its capture's median: named, and left in what is compared."""

    side: SideName
    capture: str
    step: int
    profiled: bool
    ms: float
    median_ms: float


class StepPoint(msgspec.Struct, frozen=True):
    """One step of a capture as it was compared: of all ranks one duration."""

    side: SideName
    capture: str
    index: _Count
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
    sentence: str
    base: Side
    head: Side
    metrics: tuple[MetricChange, ...]
    explanations: tuple[Explanation, ...] = ()
    changes: tuple[Change, ...] = ()
    unchanged: tuple[str, ...] = ()
    outliers: tuple[OutlierStep, ...] = ()
    new_findings: tuple[Finding, ...] = ()
    gone_findings: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()
    checks: tuple[Check, ...] = ()
    refusals: tuple[str, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    paired: bool = False
    confidence: _Share = 0.95
    power: _Share = 0.9
    launch_noise_pct: float | None = None
    settings: dict[str, Any] = {}
    steps: tuple[StepPoint, ...] = ()

    @property
    def gated(self) -> tuple[MetricChange, ...]:
        """The metrics that decide the verdict."""
        return tuple(metric for metric in self.metrics if metric.threshold_pct is not None)
