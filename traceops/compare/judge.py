"""From numbers to outcomes: what regressed beyond its threshold and beyond noise, and the verdict on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import numpy as np

from traceops.compare.capture import Capture
from traceops.compare.config import CompareConfig
from traceops.compare.metrics import MIN_STEPS, Metric
from traceops.compare.model import MetricChange, Outcome, Verdict
from traceops.compare.statistics import Estimate, Float, estimate, holm

# Standard deviation between launches of one configuration, percent of a step: assumed where a side is a single
# capture, so that nothing measures it. [benchmarks/gate.py: shared CPUs with gloo, H200s with NCCL]
LAUNCH_NOISE_PCT = {"cpu": 6.0, "cuda": 1.5}
WITHIN_NOISE = "within noise"
_LEAST_CAPTURES = 2
_STAND_INS = ("kernels", "collectives")


def measure(
    metrics: Sequence[Metric],
    base: Sequence[Capture],
    head: Sequence[Capture],
    config: CompareConfig,
    *,
    noise_pct: float,
    paired: bool,
    today: date,
) -> tuple[MetricChange, ...]:
    """Each metric on both sides with its outcome; p is corrected over the metrics that gate together."""
    step_ms = _step_ms(metrics, base)
    rows: list[tuple[MetricChange, Estimate | None]] = []
    for metric in metrics:
        threshold = config.threshold(metric.name)
        if metric.exact:
            rows.append((_exact(metric, base, head, threshold), None))
        else:
            rows.append(_timed(metric, base, head, threshold, step_ms, noise_pct, paired, config))
    gated = {
        row.metric: known.p for row, known in rows if known is not None and row.threshold_pct is not None
    }
    shown = {row.metric: known.p for row, known in rows if known is not None and row.threshold_pct is None}
    corrected = {**holm(gated), **holm(shown)}
    judged = [
        row if known is None else _judge(replace(row, p=corrected[row.metric]), config) for row, known in rows
    ]
    return tuple(_waive(row, config, today) for row in _deciding(judged, config))


def _deciding(rows: Sequence[MetricChange], config: CompareConfig) -> list[MetricChange]:
    """The number of kernels and collectives stands for time that could not be measured: where it could, it decides.

    Unless the user has set a threshold for the count itself.
    """
    step = next((row for row in rows if row.metric == "step_time"), None)
    if step is None or step.outcome not in ("regression", "improvement", "unchanged"):
        return list(rows)
    return [
        replace(row, outcome="informative", threshold_pct=None, reason="the step time is known and decides")
        if row.metric in _STAND_INS
        and row.outcome in ("regression", "improvement")
        and row.metric not in config.thresholds
        else row
        for row in rows
    ]


def overall(metrics: Sequence[MetricChange]) -> Verdict:
    """A regression of any gated metric is one; without, what the step time leaves open stays open."""
    gated = [metric for metric in metrics if metric.threshold_pct is not None]
    if any(metric.outcome == "regression" for metric in gated):
        return "regression"
    step = next((metric for metric in metrics if metric.metric == "step_time"), None)
    if step is None or step.outcome == "inconclusive" or step.base is None or step.head is None:
        return "inconclusive"
    return "improvement" if any(metric.outcome == "improvement" for metric in gated) else "no_regression"


def _step_ms(metrics: Sequence[Metric], base: Sequence[Capture]) -> float | None:
    metric = next(m for m in metrics if m.name == "profiled_step_time")
    values = [float(np.median(series)) for c in base if len(series := metric.series(c))]
    return float(np.mean(values)) if values else None


def _empty(metric: Metric, threshold: float | None, base: float | None, head: float | None) -> MetricChange:
    return MetricChange(
        metric.name, metric.label, metric.unit, metric.family, metric.better, base, head,
        outcome="informative", reason="", threshold_pct=threshold, of_step=metric.of_step,
    )  # fmt: skip


def _timed(
    metric: Metric,
    base: Sequence[Capture],
    head: Sequence[Capture],
    threshold: float | None,
    step_ms: float | None,
    noise_pct: float,
    paired: bool,
    config: CompareConfig,
) -> tuple[MetricChange, Estimate | None]:
    """Base, head and the interval of one metric; the outcome is still open."""
    series = [[metric.series(capture) for capture in side] for side in (base, head)]
    samples = tuple(sum(len(s) for s in side) for side in series)
    values = [float(np.mean([metric.location(s) for s in side if len(s)])) if any(map(len, side)) else None
              for side in series]  # fmt: skip
    row = replace(_empty(metric, threshold, *values), samples=(samples[0], samples[1]))
    if values[0] is None or values[1] is None:
        sides = [name for name, value in zip(("base", "head"), values, strict=True) if value is None]
        if len(sides) == 2:
            return replace(row, threshold_pct=None, reason="not known on either side"), None
        return replace(row, outcome=_open(threshold), reason=f"not known for {sides[0]}"), None
    scale = step_ms if metric.of_step else abs(values[0])
    row = replace(row, change=values[1] - values[0])
    if not scale:
        return replace(row, reason="the base's value is 0, so there is no percentage"), None
    row = replace(row, change_pct=100.0 * (values[1] - values[0]) / scale)
    per_step = len(series[0][0]) > 1 or len(series[1][0]) > 1
    if min(samples) < MIN_STEPS and (per_step or min(map(len, series)) < 2):
        reason = (
            f"{min(samples)} step{'s' if min(samples) != 1 else ''} on one side, {MIN_STEPS} needed"
            if metric.family != "communication" or per_step
            else "one value a capture: it takes several captures a side"
        )
        return replace(row, outcome=_open(threshold), reason=reason), None
    known = estimate(series[0], series[1], metric.location, noise_pct / 100.0 * scale, paired=paired)
    assert known is not None
    half = 100.0 * known.half_width(config.confidence) / scale
    assert row.change_pct is not None
    return (
        replace(
            row,
            low_pct=row.change_pct - half,
            high_pct=row.change_pct + half,
            mde_pct=100.0 * known.detectable(config.confidence, config.power) / scale,
        ),
        known,
    )


def _open(threshold: float | None) -> Outcome:
    return "informative" if threshold is None else "inconclusive"


def _judge(row: MetricChange, config: CompareConfig) -> MetricChange:
    """The outcome of a metric with an interval: size and certainty both."""
    assert row.change_pct is not None and row.p is not None
    assert row.low_pct is not None and row.high_pct is not None
    certain = row.p < 1.0 - config.confidence
    worse_pct = _worse(row, row.change_pct)
    most_pct = max(_worse(row, row.low_pct), _worse(row, row.high_pct))
    if row.threshold_pct is None:
        if not certain:
            return replace(row, outcome="informative", reason=WITHIN_NOISE)
        return replace(row, outcome="informative", reason="worse" if worse_pct > 0 else "better")
    if certain and worse_pct >= row.threshold_pct and worse_pct > 0:
        return replace(row, outcome="regression", reason=f"beyond {row.threshold_pct:g} % and beyond noise")
    if certain and -worse_pct >= row.threshold_pct and worse_pct < 0:
        return replace(row, outcome="improvement", reason=f"beyond {row.threshold_pct:g} % and beyond noise")
    if worse_pct >= row.threshold_pct:
        return replace(row, outcome="inconclusive", reason="beyond the threshold, but so is noise")
    if most_pct >= row.threshold_pct and not certain:
        return replace(row, outcome="inconclusive",
                       reason=f"up to {most_pct:.1f} % worse cannot be ruled out")  # fmt: skip
    if certain and worse_pct > 0:
        return replace(row, outcome="unchanged", reason=f"worse, but less than {row.threshold_pct:g} %")
    return replace(row, outcome="unchanged", reason=f"{row.threshold_pct:g} % or more is ruled out"
                   if most_pct < row.threshold_pct else "within the threshold")  # fmt: skip


def _exact(
    metric: Metric, base: Sequence[Capture], head: Sequence[Capture], threshold: float | None
) -> MetricChange:
    """A count: a change counts where no value of one side is among the other's."""
    values = [[s for c in side if len(s := metric.series(c))] for side in (base, head)]
    if not all(values):
        sides = [name for name, side in zip(("base", "head"), values, strict=True) if not side]
        return replace(_empty(metric, None, *(_middle(side) for side in values)),
                       reason=f"not known for {' and '.join(sides)}")  # fmt: skip
    old, new = _middle(values[0]), _middle(values[1])
    assert old is not None and new is not None
    spans = [(min(float(s.min()) for s in side), max(float(s.max()) for s in side)) for side in values]
    pct = 100.0 * (new - old) / old if old else None
    row = replace(
        _empty(metric, threshold, old, new), change=new - old, change_pct=pct,
        samples=(sum(map(len, values[0])), sum(map(len, values[1]))),
    )  # fmt: skip
    if new == old:
        return replace(row, outcome="unchanged", reason="the same")
    worse = new > old if metric.better == "lower" else new < old
    apart = spans[1][0] > spans[0][1] or spans[1][1] < spans[0][0]
    if (
        metric.per_capture
        and min(row.samples) < _LEAST_CAPTURES
        and (threshold is None or abs(pct or 0) >= threshold)
    ):
        return replace(row, outcome=_open(threshold),
                       reason="it can differ between launches of the same code; two captures a side tell")  # fmt: skip
    if not apart:
        return replace(row, outcome="unchanged", reason="it varies from step to step by as much")
    if threshold is None:
        return replace(row, reason="worse" if worse else "better")
    if pct is not None and abs(pct) < threshold:
        return replace(row, outcome="unchanged", reason=f"less than {threshold:g} %")
    return replace(
        row, outcome="regression" if worse else "improvement", reason="exact: no noise in this number"
    )


def _middle(side: Sequence[Float]) -> float | None:
    return float(np.median(np.concatenate(side))) if side else None


def _worse(row: MetricChange, pct: float) -> float:
    return -pct if row.better == "higher" else pct


def _waive(row: MetricChange, config: CompareConfig, today: date) -> MetricChange:
    """A waived regression is said and does not fail, as long as it stays below the waiver's own limit."""
    waiver = config.waiver(row.metric, today)
    if row.outcome != "regression" or waiver is None:
        return row
    worse = abs(row.change_pct) if row.change_pct is not None else float("inf")
    if waiver.limit_pct is not None and worse > waiver.limit_pct:
        return replace(row, waiver=waiver,
                       reason=f"{row.reason}; the waiver covers {waiver.limit_pct:g} % only")  # fmt: skip
    return replace(
        row, outcome="waived", waiver=waiver, reason=f"waived until {waiver.until}: {waiver.reason}"
    )
