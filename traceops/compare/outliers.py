"""Steps and captures far from the others of their side: named, and left in what is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from traceops.compare.capture import ComparedCapture, step_numbers, timed_series
from traceops.compare.model import OutlierStep
from traceops.compare.statistics import far_from_median
from traceops.core.units import digits_text


def outlier_steps(side: Literal["base", "head"], captures: Sequence[ComparedCapture]) -> list[OutlierStep]:
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


def odd_captures(base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]) -> list[str]:
    """Captures far above the others of their side: they stay in, and widen every interval."""
    found = []
    for side, captures in (("base", base), ("head", head)):
        first = [(c, next((s for _, s in timed_series(c) if len(s)), None)) for c in captures]
        known = [(capture, series) for capture, series in first if series is not None]
        middles = np.array([float(np.median(series)) for _, series in known])
        for at in far_from_median(middles):
            others = float(np.median(np.delete(middles, at)))
            found.append(
                f"{side}: a step of {known[at][0].info.name} took {digits_text(middles[at])} ms, of the other captures "
                f"{digits_text(others)} ms: something held it up; take it again or leave it out"
            )
    return found
