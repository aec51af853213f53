"""Autograd's anomaly detection in a trace: behind each function of backward the host reads whether it is NaN."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceops.core.arrays import Int
from traceops.measure.host_rows import BACKWARD_NAME, HostRows
from traceops.measure.steps import StepBounds

# What the engine itself calls beside a function, by version of torch. No function of backward is among these: what it
# calls lies in its own row.
_LOOKS = ("aten::isnan", "aten::ne", "aten::any", "aten::_is_any_true")
_READS = "aten::item"


@dataclass(frozen=True)
class AnomalyChecks:
    """By step: how often the engine read whether a result is NaN, and what the host took for it, ns."""

    count: Int
    host_ns: Int


def measure_anomaly(host: HostRows, steps: StepBounds) -> AnomalyChecks | None:
    """None where nothing of it is in the trace."""
    names = host.events.names
    if _READS not in names or not any(look in names for look in _LOOKS):
        return None
    of_engine = np.array([bool(BACKWARD_NAME.search(name)) for name in names], dtype=bool)
    looks = np.array([name in _LOOKS for name in names], dtype=bool)
    reads = np.array([name == _READS for name in names], dtype=bool)
    nesting = host.nesting
    name = host.events.name[nesting.rows]
    at = np.flatnonzero((looks | reads)[name] & (nesting.parent >= 0))
    at = at[of_engine[name[nesting.parent[at]]]]
    if not looks[name[at]].any() or not reads[name[at]].any():
        return None
    rows = nesting.rows[at]
    step = np.searchsorted(steps.host_start, host.events.ts[rows], side="right") - 1
    inside = (step >= 0) & (host.events.ts[rows] < steps.host_end[np.maximum(step, 0)])
    step, rows, read = step[inside], rows[inside], reads[name[at[inside]]]
    took = np.bincount(step, host.events.dur[rows], len(steps)).astype(np.int64)
    return AnomalyChecks(np.bincount(step[read], minlength=len(steps)), took)
