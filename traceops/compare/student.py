"""Student's t distribution, as far as an interval needs it."""

from __future__ import annotations

import math
from statistics import NormalDist

_NORMAL_FROM = 1e6  # degrees of freedom from which the normal distribution is the same to six digits
_TINY = 1e-300


def two_sided_p(t: float, df: float) -> float:
    """Probability that |T| is at least |t| with `df` degrees of freedom (math.inf: normal)."""
    t = abs(t)
    if not math.isfinite(t):
        return 0.0
    if df >= _NORMAL_FROM:
        return 2.0 * (1.0 - NormalDist().cdf(t)) if t < 8 else math.erfc(t / math.sqrt(2.0))
    return _incomplete_beta(df / 2.0, 0.5, df / (df + t * t))


def quantile(probability: float, df: float) -> float:
    """The t below which lies `probability` (above 0.5) of the distribution."""
    if df >= _NORMAL_FROM:
        return NormalDist().inv_cdf(probability)
    wanted = 2.0 * (1.0 - probability)
    low, high = 0.0, 1.0
    while two_sided_p(high, df) > wanted:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if two_sided_p(middle, df) > wanted else (low, middle)
        if high - low <= 1e-12 * high:
            break
    return (low + high) / 2.0


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function by its continued fraction, modified Lentz [DLMF 8.17.22]."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    fraction, c, d = 1.0, 1.0, 0.0
    for i in range(400):
        m = i // 2
        if i == 0:
            numerator = 1.0
        elif i % 2 == 0:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1.0 + numerator * d
        d = 1.0 / (d if abs(d) > _TINY else _TINY)
        c = 1.0 + numerator / c
        c = c if abs(c) > _TINY else _TINY
        fraction *= c * d
        if abs(1.0 - c * d) < 1e-14:
            break
    return front * (fraction - 1.0) / a
