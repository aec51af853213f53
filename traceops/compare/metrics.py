"""What is compared: each metric, where its numbers come from, which way is better, and its usual threshold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.links import bus_factor
from traceops.compare.capture import Captures, ComparedCapture, step_series, unprofiled_series
from traceops.compare.model import MetricFamily
from traceops.compare.statistics import Float, Location, harmonic_mean
from traceops.core.words import BUCKETS as BUCKET_WORDS
from traceops.measure.ledger import BUCKETS, COMM_BUCKETS, IDLE_BUCKETS

MIN_STEPS = 6  # a side; below it nothing is claimed of times [docs/metrics.md]

Series = Callable[[ComparedCapture], Float]


class Metric(Struct, frozen=True):
    """A number of a capture. `series` gives one value a step, or one in all; empty where it is not known.

    threshold_pct: change for the worse that fails the gate, None if it is only shown unless asked for.
    of_step: percents are of the base's step time, not of the metric itself (a bucket may be 0).
    exact: the same code gives the same number, so it is compared without statistics.
    per_capture: one value a capture, which launches of the same code do not always share. On H200s 5 % of DDP
    trainings peaked one set of gradients lower than the others, because the allocator's timing differs.
    """

    name: str
    label: str
    unit: str
    family: MetricFamily
    better: Literal["lower", "higher", "neither"]
    series: Series
    threshold_pct: float | None = None
    location: Location = np.median
    of_step: bool = False
    exact: bool = False
    per_capture: bool = False


def _throughput(step_time: Series) -> Series:
    """Samples a second of each step, over all ranks; empty where the run does not say how many samples."""

    def rate(capture: ComparedCapture) -> Float:
        if not (samples := capture.run.samples_per_step):
            return np.empty(0)
        return samples / step_time(capture) * 1e3

    return rate


def _columns(*keys: str) -> Series:
    return lambda capture: step_series(capture, *keys)


def _most_of_ranks(key: str) -> Series:
    def most(capture: ComparedCapture) -> Float:
        known = [getattr(row, key) for row in capture.report.ranks]
        values = [float(value) for value in known if value is not None]
        return np.array([max(values)]) if values and len(values) == len(known) else np.empty(0)

    return most


def _busbw(capture: ComparedCapture) -> Float:
    """Bytes on the bus of all matched collectives ÷ their transfer time, GB/s."""
    moved = spent_ms = 0.0
    for row in capture.report.collectives:
        if row.bytes and row.total_ms:
            moved += row.bytes * row.count * bus_factor(row.op, len(row.ranks))
            spent_ms += row.total_ms
    return np.array([moved / spent_ms / 1e6]) if spent_ms > 0 else np.empty(0)


_PROFILED = _columns("duration_ms")
METRICS: tuple[Metric, ...] = (
    Metric("step_time", "step time", "ms", "time", "lower", unprofiled_series, 5.0),
    Metric(
        "throughput", "throughput", "samples/s", "time", "higher", _throughput(unprofiled_series), 5.0,
        location=harmonic_mean,
    ),
    Metric("profiled_step_time", "step time, profiled", "ms", "time", "lower", _PROFILED),
    *(
        Metric(b, BUCKET_WORDS[b].metric, "ms", "ledger", "lower", _columns(b), location=np.mean, of_step=True)
        for b in BUCKETS
    ),
    Metric(
        "exposed_comm", "exposed communication", "ms", "communication", "lower", _columns(*COMM_BUCKETS),
        location=np.mean, of_step=True,
    ),
    Metric("idle", "idle", "ms", "ledger", "lower", _columns(*IDLE_BUCKETS), location=np.mean, of_step=True),
    Metric("busbw", "bus bandwidth", "GB/s", "communication", "higher", _busbw),
    Metric("kernels", "kernels per step", "", "exact", "lower", _columns("kernels"), 10.0, exact=True),
    Metric("collectives", "collectives per step", "", "exact", "lower", _columns("collectives"), 10.0, exact=True),
    Metric(
        "collective_bytes", "bytes per step", "B", "exact", "lower", _columns("collective_bytes"), 5.0,
        exact=True,
    ),
    Metric(
        "blocking_calls", "blocking calls per step", "", "exact", "lower", _columns("blocking_calls"),
        exact=True,
    ),
    Metric(
        "peak_memory", "peak memory", "B", "exact", "lower", _most_of_ranks("peak_memory_bytes"), 5.0, exact=True,
        per_capture=True,
    ),
    Metric(
        "peak_reserved", "peak memory reserved", "B", "exact", "lower", _most_of_ranks("peak_reserved_bytes"),
        exact=True, per_capture=True,
    ),
)  # fmt: skip
BY_NAME = {metric.name: metric for metric in METRICS}


def enough_unprofiled(captures: Iterable[Captures]) -> bool:
    """Whether every side timed MIN_STEPS steps without the profiler."""
    return all(sum(c.info.unprofiled_steps for c in side) >= MIN_STEPS for side in captures)


def metrics_for(captures: Iterable[Captures]) -> tuple[Metric, ...]:
    """The metrics for comparing these sides: their step time comes from the same kind of steps. Steps without the
    profiler show what the run takes by itself; where any side timed fewer than MIN_STEPS of them, profiled steps are
    used on all."""
    if enough_unprofiled(captures):
        return METRICS
    replaced = {"step_time": _PROFILED, "throughput": _throughput(_PROFILED)}
    return tuple(replace(m, series=replaced[m.name]) if m.name in replaced else m for m in METRICS)
