"""From numbers to outcomes: what regressed beyond its threshold and beyond noise, and the verdict on all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.compare.capture import Captures, step_numbers, step_series, timed_series
from traceops.compare.changes import say
from traceops.compare.config import CompareConfig
from traceops.compare.metrics import MIN_STEPS, Metric
from traceops.compare.model import (
    ComparisonVerdict,
    Explanation,
    MetricChange,
    MetricOutcome,
    OutlierStep,
    Samples,
    metric_of,
)
from traceops.compare.statistics import Estimate, Float, drift, estimate, holm
from traceops.core.arrays import far_from_median
from traceops.core.units import digits_text

# What recorded steps tell of a change whatever the profiler costs.
#
# It makes no step shorter, and the device's own work no longer.

_WORK = ("compute", "memory")  # of the device itself; communication may wait


class StepBound(Struct, frozen=True):
    """A side's devices work for longer in each step than the other's whole recorded steps take. least_ms: their work in
    the step that has least of it, or (whole) that step itself. most_ms: the longest step of the other side. pct: by how
    much the step time changed at least; positive where head is slower."""

    least_ms: float
    most_ms: float
    pct: float
    whole: bool = False

    @property
    def text(self) -> str:
        """Why that is certain."""
        longer, other = ("head", "base") if self.pct > 0 else ("base", "head")
        least, most = digits_text(self.least_ms), digits_text(self.most_ms)
        return say("steps_apart" if self.whole else "devices_apart", longer=longer, other=other, least=least, most=most)


def step_bound(base: Captures, head: Captures) -> StepBound | None:
    """None where the recorded steps leave the change open, or are too few; hosts' own work is none of a device."""
    if any(capture.run.device_type != "cuda" for capture in (*base, *head)):
        return None
    works = [[step_series(capture, *_WORK) for capture in side] for side in (base, head)]
    takes = [[step_series(capture, "duration_ms") for capture in side] for side in (base, head)]
    if any(sum(map(len, side)) < MIN_STEPS or not all(map(len, side)) for side in (*works, *takes)):
        return None
    least = [min(float(np.min(series)) for series in side) for side in works]
    most = [max(float(np.max(series)) for series in side) for side in takes]
    return _beyond(least, most, whole=False)


def _beyond(least: Sequence[float], most: Sequence[float], *, whole: bool) -> StepBound | None:
    """Of base and head the least and the most; None where neither lies beyond the other."""
    if least[1] > most[0] > 0:
        return StepBound(least[1], most[0], 100 * (least[1] / most[0] - 1), whole)
    if least[0] > most[1] > 0:
        return StepBound(least[0], most[1], 100 * (most[1] / least[0] - 1), whole)
    return None


# Launches of one code were never seen to lie beyond each other by more than this many times what they are taken to
# differ by, or, of few steps on GPUs, by this much [benchmarks/compare/RESULTS.md].
_MANY_STEPS = 20
_FEW_STEPS = 3
_APART = 2.0
_FEW_APART_PCT = 50.0


def apart(base: Sequence[Float], head: Sequence[Float], *, noise_pct: float | None, on_gpus: bool) -> StepBound | None:
    """Every step of one side takes longer than any of the other, by more than launches of one code differ. base, head:
    steps of each capture, ms. Single steps that something held up are left out."""
    series = [[np.delete(own, far_from_median(own)) for own in side if len(own)] for side in (base, head)]
    if not all(series):
        return None
    steps = min(len(own) for side in series for own in side)
    bound = _beyond(
        [min(map(np.min, side)) for side in series], [max(map(np.max, side)) for side in series], whole=True
    )
    if bound is None or steps < (_FEW_STEPS if on_gpus else _MANY_STEPS):
        return None
    least_pct = _APART * noise_pct if steps >= _MANY_STEPS and noise_pct is not None else _FEW_APART_PCT
    return bound if abs(bound.pct) >= least_pct * (1.0 if bound.pct > 0 else bound.most_ms / bound.least_ms) else None


# Steps and captures far from the others of their side: named, and left in what is compared.


def outlier_steps(side: Literal["base", "head"], captures: Captures) -> list[OutlierStep]:
    """Steps far above the median of their capture."""
    found = []
    for capture in captures:
        numbers = step_numbers(capture)
        for profiled, series in timed_series(capture):
            if not len(series):
                continue
            middle = sorted(series)[len(series) // 2]
            found += [
                OutlierStep(
                    side, capture.info.name, numbers[at] if profiled else int(at), profiled,
                    float(series[at]), float(middle),
                )
                for at in far_from_median(series)
            ]  # fmt: skip
    return found


def odd_captures(base: Captures, head: Captures) -> list[str]:
    """Captures far above the others of their side: they stay in, and widen every interval."""
    found = []
    for side, captures in (("base", base), ("head", head)):
        first = [(c, next((s for _, s in timed_series(c) if len(s)), None)) for c in captures]
        known = [(capture, series) for capture, series in first if series is not None]
        middles = np.array([float(np.median(series)) for _, series in known])
        for at in far_from_median(middles):
            others = float(np.median(np.delete(middles, at)))
            took, usual = digits_text(middles[at]), digits_text(others)
            found.append(say("odd_capture", side=side, capture=known[at][0].info.name or ".", took=took, usual=usual))
    return found


# Standard deviation between launches of one configuration, percent of a step: assumed where too few captures measure
# it. On H200s 0.3 to 1.8 were measured [benchmarks/compare/gate.py]. On CPUs launches differ as the pace of each drifts
# while it runs: what changes from one stretch of a run to the next also differs from run to run
# [benchmarks/compare/pairs.py]; a machine that is busy from launch to launch in another way shows in the time for which
# main threads wait for a core.
LAUNCH_NOISE_PCT = {"cpu": 2.0, "cuda": 1.5}
_OF_DRIFT = 1.5  # with a margin
_LEAST_CAPTURES = 2


def launch_noise_pct(sides: Sequence[tuple[Sequence[Float], float]], device: str) -> float | None:
    """What launches of one code may differ by here, percent of a step; None where several captures must show it. sides:
    of base and head the steps of each capture, ms, and the percent of its time for which a main thread waits for a
    core. Noise is a share of the step, so that a slower side counts no more than the other."""
    if device != "cpu":
        return LAUNCH_NOISE_PCT["cuda"]
    if any(len(own) < _MANY_STEPS for series, _ in sides for own in series):
        return None
    drifts = [_OF_DRIFT * 100 * float(np.mean([drift(own) / np.median(own) for own in series])) for series, _ in sides]
    noise = [max(LAUNCH_NOISE_PCT["cpu"], waited, own) for own, (_, waited) in zip(drifts, sides, strict=True)]
    return math.sqrt(float(np.mean(np.square(noise))))


def steps_needed(device: str) -> int:
    """How many timed steps each of two captures needs."""
    return _MANY_STEPS if device == "cpu" else MIN_STEPS


def shows_from_pct(steps: Float, device: str, waited: float, config: CompareConfig) -> float | None:
    """The smallest change that this capture and one more would show; None where two do not suffice."""
    noise_pct = launch_noise_pct([([steps], waited)], device)
    if noise_pct is None or len(steps) < steps_needed(device):
        return None
    alike = estimate([steps], [steps], np.median, noise_pct / 100, ratio=True)
    assert alike is not None
    threshold = math.log1p((config.threshold("step_time") or 0.0) / 100)
    return 100 * math.expm1(alike.detectable(config.confidence, config.power, threshold))


def waited_pct(captures: Captures) -> float:
    """For how much of its time the main thread that waits most for a core does so."""
    rows = [row for capture in captures if capture.report.whole_run for row in capture.report.whole_run.machine]
    return max((row.waited_pct or 0.0 for row in rows), default=0.0)


def measure(
    metrics: Sequence[Metric],
    base: Captures,
    head: Captures,
    config: CompareConfig,
    *,
    noise_pct: float | None,
    paired: bool,
    floor_pct: float,
    today: date,
    unlike: Mapping[str, str] = MappingProxyType({}),
    bound: StepBound | None = None,
) -> tuple[MetricChange, ...]:
    """Each metric on both sides with its outcome; p is corrected over the metrics that gate together. floor_pct: of the
    step, what the standard error of a change is at least, however little captures differ. unlike: metrics of which the
    two sides say nothing, and why. bound: what they say of the step time even so, and where noise leaves it open."""
    step_ms = _step_ms(metrics, base)
    rows: list[tuple[MetricChange, Estimate | None, float | None]] = []
    for metric in metrics:
        threshold = config.threshold(metric.name)
        if metric.exact:
            rows.append((_exact(metric, base, head, threshold), None, None))
        else:
            rows.append(_timed(metric, base, head, threshold, step_ms, noise_pct, paired, floor_pct, config))
    gated = {row.metric: known.p for row, known, _ in rows if known is not None and row.threshold_pct is not None}
    shown = {row.metric: known.p for row, known, _ in rows if known is not None and row.threshold_pct is None}
    corrected = {**holm(gated), **holm(shown)}
    judged = []
    for row, known, scale in rows:
        if known is not None:
            tests = len(gated if row.threshold_pct is not None else shown)
            # The smallest p of all tests must stand out: Bonferroni bounds Holm.
            strict = 1.0 - (1.0 - config.confidence) / tests
            if scale is None:
                least = known.detectable(strict, config.power, math.log1p((row.threshold_pct or 0.0) / 100.0))
                found = 100.0 * math.expm1(least)
            else:
                least = known.detectable(strict, config.power, (row.threshold_pct or 0.0) / 100.0 * scale)
                found = 100.0 * least / scale
            row = _judge(replace(row, p=corrected[row.metric], mde_pct=found), config)
        if row.metric in unlike:
            open_ = _left_open(row, unlike[row.metric])
            row = _bounded(open_, bound) if row.metric == "step_time" and bound is not None else open_
        elif row.metric == "step_time" and row.outcome == "inconclusive" and bound is not None:
            row = replace(_bounded(row, bound), change=row.change, change_pct=row.change_pct)
        judged.append(row)
    return tuple(_waive(row, config, today) for row in _deciding(judged, config, unlike))


def _left_open(row: MetricChange, why: str) -> MetricChange:
    """A metric of steps that are not of one kind: its numbers are shown, and nothing is claimed of them."""
    if row.threshold_pct is None:
        return replace(row, outcome="informative", reason=why, mde_pct=None)
    return replace(row, outcome="inconclusive", reason=why, p=None, low_pct=None, high_pct=None, mde_pct=None)


def _bounded(row: MetricChange, bound: StepBound) -> MetricChange:
    """A step time that was left open, by what is certain of it; open still where that is within its threshold."""
    if row.threshold_pct is None or abs(bound.pct) < row.threshold_pct:
        return row
    ends = {"low_pct": bound.pct, "high_pct": None} if bound.pct > 0 else {"low_pct": None, "high_pct": bound.pct}
    outcome: MetricOutcome = "regression" if bound.pct > 0 else "improvement"
    return replace(row, outcome=outcome, reason=bound.text, change=None, change_pct=None, **ends)


def _deciding(rows: Sequence[MetricChange], config: CompareConfig, unlike: Mapping[str, str]) -> list[MetricChange]:
    """Counts stand for time that could not be measured: where it could, it decides, and where it looks better too.
    Bytes cost more on a larger cluster, so that only a step that is faster for certain excuses them. A threshold that
    the user has set for a count holds whatever the time says."""
    if (step := metric_of(rows, "step_time")) is None:
        return list(rows)
    known = step.outcome in ("regression", "improvement", "unchanged", "waived")
    better = "step_time" not in unlike and step.change_pct is not None and step.change_pct < 0
    excused = {"kernels", "collectives"} if known or better else set()
    if step.outcome == "improvement":
        excused.add("collective_bytes")
    return [
        replace(row, outcome="informative", threshold_pct=None,
                reason=say("time_decides" if known else "looks_faster"))
        if row.metric in excused and row.outcome in ("regression", "improvement", "inconclusive")
        and row.metric not in config.thresholds
        else row
        for row in rows
    ]  # fmt: skip


def worse_for_certain(row: MetricChange, confidence: float) -> bool:
    """Whether a metric is worse beyond noise, though by less than its threshold."""
    if row.outcome != "unchanged" or row.p is None or row.change_pct is None:
        return False
    return row.p < 1.0 - confidence and _worse(row, row.change_pct) > 0


def overall(metrics: Sequence[MetricChange]) -> ComparisonVerdict:
    """A regression of any gated metric is one; without, what the step time leaves open stays open."""
    gated = [metric for metric in metrics if metric.threshold_pct is not None]
    if any(metric.outcome == "regression" for metric in gated):
        return "regression"
    step = metric_of(metrics, "step_time")
    if step is None or step.outcome == "inconclusive" or step.base is None or step.head is None:
        return "inconclusive"
    return "improvement" if any(metric.outcome == "improvement" for metric in gated) else "no_regression"


def _step_ms(metrics: Sequence[Metric], base: Captures) -> float | None:
    metric = next(m for m in metrics if m.name == "profiled_step_time")
    values = [float(np.median(series)) for c in base if len(series := metric.series(c))]
    return float(np.mean(values)) if values else None


def _open(threshold: float | None) -> MetricOutcome:
    return "informative" if threshold is None else "inconclusive"


def _empty(metric: Metric, threshold: float | None, base: float | None, head: float | None) -> MetricChange:
    return MetricChange(
        metric.name, metric.label, metric.unit, metric.family, metric.better, base, head,
        outcome="informative", reason="", threshold_pct=threshold, of_step=metric.of_step,
    )  # fmt: skip


def _timed(
    metric: Metric,
    base: Captures,
    head: Captures,
    threshold: float | None,
    step_ms: float | None,
    noise_pct: float | None,
    paired: bool,
    floor_pct: float,
    config: CompareConfig,
) -> tuple[MetricChange, Estimate | None, float | None]:
    """Base, head and the interval of one metric; the outcome is still open. Parts of a step, which may be zero, are
    estimated by their difference, and a percent is of the step that is returned; all else by its ratio, with None."""
    series = [[metric.series(capture) for capture in side] for side in (base, head)]
    samples = tuple(sum(len(s) for s in side) for side in series)
    values = [float(np.mean([metric.location(s) for s in side if len(s)])) if any(map(len, side)) else None
              for side in series]  # fmt: skip
    old, new = values
    row = replace(_empty(metric, threshold, old, new), samples=Samples(*samples))
    if old is None and new is None:
        return replace(row, threshold_pct=None, reason=say("unknown_on_both")), None, None
    if old is None or new is None:
        unknown = say("unknown_for", sides="base" if old is None else "head")
        return replace(row, outcome=_open(threshold), reason=unknown), None, None
    row = replace(row, change=new - old)
    scale = step_ms if metric.of_step else old
    if not scale or (not metric.of_step and min(old, new) <= 0):
        return replace(row, reason=say("base_is_zero")), None, None
    row = replace(row, change_pct=100.0 * (new - old) / scale)
    if why := _too_few(metric, series, noise_pct):
        return replace(row, outcome=_open(threshold), reason=why), None, None
    unit = scale if metric.of_step else 1.0  # of noise: a part of a step has the step's, all else a share of its own
    known = estimate(
        series[0], series[1], metric.location, None if noise_pct is None else noise_pct / 100.0 * unit,
        paired=paired, floor=floor_pct / 100.0 * unit, ratio=not metric.of_step,
    )  # fmt: skip
    assert known is not None and row.change_pct is not None
    half = known.half_width(config.confidence)
    if metric.of_step:
        half *= 100.0 / scale
        return replace(row, low_pct=row.change_pct - half, high_pct=row.change_pct + half), known, scale
    low, high = (100.0 * math.expm1(known.change + end) for end in (-half, half))
    return replace(row, low_pct=low, high_pct=high), known, None


def _too_few(metric: Metric, series: Sequence[Sequence[Float]], noise_pct: float | None) -> str:
    """Why so few steps and captures decide nothing; empty where they may."""
    samples = [sum(map(len, side)) for side in series]
    per_step = any(len(side[0]) > 1 for side in series)
    if min(samples) < MIN_STEPS and (per_step or min(map(len, series)) < 2):
        few = "few_steps" if metric.family != "communication" or per_step else "one_value_a_capture"
        where = "a side" if samples[0] == samples[1] else "on one side"
        return say(few, steps=f"{min(samples)} step{'s' if min(samples) != 1 else ''}", where=where, needed=MIN_STEPS)
    if noise_pct is None and sum(bool(len(own)) for side in series for own in side) <= 2:
        return say("launches_differ", needed=_MANY_STEPS)
    return ""


def _judge(row: MetricChange, config: CompareConfig) -> MetricChange:
    """The outcome of a metric with an interval: size and certainty both."""
    assert row.change_pct is not None and row.p is not None
    assert row.low_pct is not None and row.high_pct is not None
    certain = row.p < 1.0 - config.confidence
    worse_pct = _worse(row, row.change_pct)
    most_pct = max(_worse(row, row.low_pct), _worse(row, row.high_pct))
    threshold, worse = row.threshold_pct, worse_pct > 0
    outcome: MetricOutcome
    if threshold is None:
        outcome, why = "informative", "within_noise" if not certain else "worse" if worse else "better"
    elif certain and abs(worse_pct) >= threshold and worse_pct:
        outcome, why = "regression" if worse else "improvement", "beyond_noise"
    elif worse_pct >= threshold:
        outcome, why = "inconclusive", "among_all" if row.low_pct > 0 or row.high_pct < 0 else "noise_too"
    elif most_pct >= threshold:
        outcome, why = "inconclusive", "worse_and_maybe_more" if certain and worse else "not_ruled_out"
    else:
        outcome, why = "unchanged", "worse_by_less" if certain and worse else "ruled_out"
    return replace(row, outcome=outcome, reason=say(why, threshold=threshold, p=f"{row.p:.2g}", most=f"{most_pct:.1f}"))


def _exact(metric: Metric, base: Captures, head: Captures, threshold: float | None) -> MetricChange:
    """A count, mean over steps: it changed where the steps of one side lie beyond those of the other."""
    values = [[s for c in side if len(s := metric.series(c))] for side in (base, head)]
    means = [float(np.mean(np.concatenate(side))) if side else None for side in values]
    old, new = means
    if old is None or new is None:
        sides = [name for name, side in zip(("base", "head"), values, strict=True) if not side]
        return replace(_empty(metric, None, old, new), reason=say("unknown_for", sides=" and ".join(sides)))
    row = replace(
        _empty(metric, threshold, old, new), change=new - old, change_pct=100.0 * (new - old) / old if old else None,
        samples=Samples(*(sum(map(len, side)) for side in values)),
    )  # fmt: skip
    return _of_count(metric, row, old, new, *(np.sort(np.concatenate(side)) for side in values))


def _of_count(metric: Metric, row: MetricChange, old: float, new: float, before: Float, after: Float) -> MetricChange:
    """Whether a count with these means changed. before, after: all values of base and of head, sorted. Of four steps or
    more the lowest and the highest of a side may lie elsewhere: windows begin and end askew."""
    threshold = row.threshold_pct
    if len(set(before.tolist()) | set(after.tolist())) == 1:
        return replace(row, outcome="unchanged", reason=say("same"))
    small = row.change_pct is not None and abs(row.change_pct) < (threshold or 0.0)
    if threshold is not None and small:
        why = say("less_than" if new != old else "same_mean", threshold=threshold)
        return replace(row, outcome="unchanged", reason=why)
    if metric.per_capture and min(row.samples.base, row.samples.head) < _LEAST_CAPTURES:
        return replace(row, outcome=_open(threshold), reason=say("differs_between_launches"))
    room = 0.5 * (threshold or 0.0) / 100.0 * abs(old) if metric.per_capture else 0.0
    spans = [(side[1], side[-2]) if len(side) >= 4 else (side[0], side[-1]) for side in (before, after)]
    if not (spans[1][0] > spans[0][1] + room or spans[1][1] < spans[0][0] - room):
        which = "launch to launch" if metric.per_capture else "step to step"
        return replace(row, outcome=_open(threshold), reason=say("varies", which=which))
    worse = new > old if metric.better == "lower" else new < old
    if threshold is None:
        return replace(row, reason=say("worse" if worse else "better"))
    return replace(row, outcome="regression" if worse else "improvement", reason=say("exact"))


def _worse(row: MetricChange, pct: float) -> float:
    return -pct if row.better == "higher" else pct


def _waive(row: MetricChange, config: CompareConfig, today: date) -> MetricChange:
    """A waived regression is said and does not fail, as long as it stays below the waiver's own limit."""
    waiver = config.waiver(row.metric, today)
    if row.outcome != "regression" or waiver is None:
        return row
    worse = abs(row.change_pct) if row.change_pct is not None else float("inf")
    if waiver.limit_pct is not None and worse > waiver.limit_pct:
        return replace(row, waiver=waiver, reason=say("beyond_waiver", reason=row.reason, limit=waiver.limit_pct))
    waived = say("waived", until=waiver.until, reason=waiver.reason)
    return replace(row, outcome="waived", waiver=waiver, reason=waived)


_COUNTED_BY = {"collectives": "collectives", "collective_bytes": "collectives"}  # metric -> cause


def reason_for_more(row: MetricChange, explanations: Sequence[Explanation]) -> Explanation | None:
    """Why a metric got worse: of a count what counts it, even if that saves time; else the first if it takes longer."""
    of_step = [one for one in explanations if one.cause != "peak_memory"]
    if row.metric == "kernels":  # what is launched more often accounts for no bucket
        own = next((one for one in of_step if one.cause == "compute" and not one.buckets), None)
    else:
        own = next((one for one in of_step if one.cause == _COUNTED_BY.get(row.metric)), None)
    first = own or next(iter(of_step), None)
    return None if first is None or (own is None and first.ms < 0) else first
