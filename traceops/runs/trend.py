"""What sizes that were measured tell of one that was not, without traces."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def trend_rate(measured: Sequence[tuple[int, float]], ranks: int) -> float:
    """Samples a second of `ranks` ranks, from (ranks, samples a second) of two sizes or more, ascending.

    What a rank gets done is taken as a power of the ranks: the slope is least squares' over all sizes, in logarithms,
    and it goes on from the largest. On public tables the error is in docs/runs.md. Raises ValueError for one size.
    """
    if len(measured) < 2:
        raise ValueError("a trend needs two sizes")
    sizes = [math.log(n) for n, _ in measured]
    each = [math.log(rate / n) for n, rate in measured]
    slope = statistics.linear_regression(sizes, each).slope
    return ranks * math.exp(each[-1] + slope * (math.log(ranks) - sizes[-1]))
