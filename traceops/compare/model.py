"""The nouns of a comparison: a side, a metric's change, what explains it, the whole with its verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

from traceops.core.findings import Check, Evidence, Finding

Outcome = Literal["regression", "improvement", "unchanged", "inconclusive", "waived", "informative"]
Verdict = Literal["regression", "improvement", "no_regression", "inconclusive"]
Family = Literal["time", "ledger", "communication", "exact"]
ChangeKind = Literal["kernel", "operator", "collective", "blocking_call", "environment"]
ChangeStatus = Literal["new", "vanished", "renamed", "changed"]

OUTCOMES: tuple[Outcome, ...] = (
    "regression", "inconclusive", "waived", "improvement", "unchanged", "informative",
)  # fmt: skip


@dataclass(frozen=True)
class Waiver:
    """A regression that is accepted, for a reason and until a day; `limit_pct` bounds how much of it."""

    metric: str
    reason: str
    until: date
    limit_pct: float | None = None


@dataclass(frozen=True)
class CaptureInfo:
    """One capture of a side. `commit` is None where the run does not say; `dirty` likewise."""

    name: str
    path: str
    started_ns: int | None
    commit: str | None
    dirty: bool | None
    steps: int
    unprofiled_steps: int


@dataclass(frozen=True)
class Side:
    """Base or head: its captures, and what its first one says of the run (the `run` object of report.json)."""

    label: str
    captures: tuple[CaptureInfo, ...]
    run: dict[str, Any]


@dataclass(frozen=True)
class MetricChange:
    """One metric on both sides.

    base, head: over all captures and steps, in `unit`; None where it is not known.
    change: head - base in `unit`. change_pct: of the base's value, or of its step time where `of_step`.
    low_pct, high_pct: its interval at the comparison's confidence; None for exact and untested metrics.
    p: two-sided, Holm-corrected over the metrics tested with it; None where nothing was tested.
    mde_pct: the smallest change that this much data finds with the comparison's power.
    threshold_pct: None where the metric is shown and not gated. better: which direction is good.
    samples: steps (captures, for a metric that has one value a capture) on each side.
    reason: why the outcome is what it is, in words.
    """

    metric: str
    label: str
    unit: str
    family: Family
    better: Literal["lower", "higher", "neither"]
    base: float | None
    head: float | None
    outcome: Outcome
    reason: str
    change: float | None = None
    change_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    p: float | None = None
    mde_pct: float | None = None
    threshold_pct: float | None = None
    of_step: bool = False
    samples: tuple[int, int] = (0, 0)
    waiver: Waiver | None = None


def metric_of(metrics: Iterable[MetricChange], name: str) -> MetricChange | None:
    """The metric of this name, None where it was not compared."""
    return next((metric for metric in metrics if metric.metric == name), None)


@dataclass(frozen=True)
class Change:
    """A kernel, operator, collective, blocking call or variable that is not what it was.

    Counts and milliseconds are of one step, the mean over ranks. `head_name` differs from `name` where it was
    renamed. `detail` holds what else tells it apart (shapes, bytes, group size, operator), for people.
    For a variable `base_value` and `head_value` say what it was set to, None if it was not.
    """

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

    @property
    def delta_ms(self) -> float:
        """Milliseconds a step it takes more than it did; 0 where times are not known."""
        return (self.head_ms or 0.0) - (self.base_ms or 0.0)


@dataclass(frozen=True)
class Explanation:
    """One reason for the change of the step: `ms` a step (positive: slower), most important first.

    cause: from `explain.CAUSES`. text: a sentence for people. changes: what it rests on.
    """

    cause: str
    text: str
    ms: float
    buckets: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class OutlierStep:
    """A step far from its capture's median: named, and left in what is compared."""

    side: Literal["base", "head"]
    capture: str
    step: int
    profiled: bool
    ms: float
    median_ms: float


@dataclass(frozen=True)
class StepPoint:
    """One step of a capture as it was compared: of all ranks one duration in ms. `index`: from 0, in time order."""

    side: Literal["base", "head"]
    capture: str
    index: int
    profiled: bool
    ms: float


@dataclass(frozen=True)
class Comparison:
    """The verdict on head against base, and everything it rests on.

    sentence: the verdict in one line, plain text. metrics: gated ones first, then time, ledger,
    communication, exact. unchanged: what stayed as it was, in words. refusals: why the two should not be
    compared (empty unless forced). warnings: what differs and may matter. new_findings, gone_findings: of
    the two reports. findings: TO-R001, one a metric that regressed. paired: captures were taken in turn and
    are compared pair by pair. confidence, power: of intervals and of `mde_pct`. launch_noise_pct: standard
    deviation between captures that was assumed where a side has one capture only, None if it was measured.
    steps: for the figure, every step of both sides, capture by capture.
    """

    verdict: Verdict
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
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    paired: bool = False
    confidence: float = 0.95
    power: float = 0.9
    launch_noise_pct: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    steps: tuple[StepPoint, ...] = ()

    @property
    def gated(self) -> tuple[MetricChange, ...]:
        """The metrics that decide the verdict."""
        return tuple(metric for metric in self.metrics if metric.threshold_pct is not None)
