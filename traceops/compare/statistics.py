"""How much a metric changed between two sides and how sure that is: block bootstrap, t intervals, Holm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.core.arrays import Int, begins_far, far_from_median

# Student's t distribution, as far as an interval needs it.

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


Float = NDArray[np.float64]
Location = Callable[..., Float]  # np.median or np.mean, with axis

DRAWS = 2000
LEAST_FREEDOM = 3  # with fewer degrees of freedom an interval is so wide that it says nothing
LEAST_PAIRS = 5  # fewer pairs leave so few degrees of freedom that treating the sides apart finds more
_MANY = 20_000  # steps: then a tenth of the draws does
_MOST_AT_ONCE = 4_000_000  # values drawn at once: 32 MB
_MOST_KEPT = 200_000  # values whose places are kept: series of up to 100 steps, 1.6 MB each
_SEED = 20_240_607  # the same input gives the same interval


class Estimate(Struct, frozen=True):
    """Base and head over all captures and the change between them, in the metric's unit. error: standard error of the
    change; df: its degrees of freedom, math.inf where it rests on an assumption. noise_assumed: nothing here says how
    much captures differ, so the caller's figure stands in for it."""

    base: float
    head: float
    error: float
    df: float
    noise_assumed: bool
    paired: bool

    @property
    def change(self) -> float:
        """Head less base."""
        return self.head - self.base

    @property
    def p(self) -> float:
        """Two-sided: how often a change this large comes of noise alone."""
        if self.error <= 0.0:
            return 1.0 if self.change == 0.0 else 0.0
        return two_sided_p(self.change / self.error, self.df)

    def half_width(self, confidence: float) -> float:
        """The change's interval reaches this far to both sides."""
        return quantile(0.5 + confidence / 2.0, self.df) * self.error

    def detectable(self, confidence: float, power: float, threshold: float = 0.0) -> float:
        """The smallest change that would stand out of noise, and be estimated beyond `threshold`, with `power`."""
        likely = quantile(power, self.df) * self.error
        return max(self.half_width(confidence), threshold) + likely


def estimate(
    base: Sequence[Float],
    head: Sequence[Float],
    location: Location,
    noise: float | None,
    *,
    paired: bool = False,
    floor: float = 0.0,
    ratio: bool = False,
) -> Estimate | None:
    """The change between two sides of one or more captures, each an array of steps in time order.

    ratio: of positive values the logarithm of head ÷ base, with `noise` and `floor` as shares. What disturbs a step
    takes a share of it: in its unit the noise of a slower side would hide the change.

    Unit of certainty are captures where a side has several: steps of one capture share whatever that launch
    met, so more steps cannot make up for launches. Their spread is pooled over both sides (paired: taken
    over the differences of pairs), but never less than steps alone make it. Where it has fewer than
    LEAST_FREEDOM degrees of freedom, `noise` (a standard deviation between launches, in the metric's unit)
    stands in, or the spread if that is larger; if it is None nothing does, and the interval is as wide as few
    degrees of freedom make it. The error is never less than `floor`. None where
    a side has nothing.

    The bootstrap over whole captures has the variance (k−1)/k · s²/k; with its factor k/(k−1) and a t
    quantile it is the interval used here. With three to ten captures its percentiles would be too narrow
    [Hesterberg 2015; Davison and Hinkley 1997, 3.8: resample the outer level only].
    """
    if paired:
        pairs = [(b, h) for b, h in zip(base, head, strict=True) if len(b) and len(h)]
        if paired := len(pairs) >= LEAST_PAIRS:
            base, head = zip(*pairs, strict=True)
    sides = [[series for series in side if len(series)] for side in (base, head)]
    if not all(sides):
        return None
    at = [np.array([float(location(series)) for series in side]) for side in sides]
    before, after = float(at[0].mean()), float(at[1].mean())
    if ratio:
        old, new = ([series / value for series in side] for side, value in zip(sides, (before, after), strict=True))
        known = estimate(old, new, location, noise, paired=paired, floor=floor)
        return None if known is None else replace(known, base=math.log(before), head=math.log(after))
    within = [_step_errors(side, location) for side in sides]
    inner = math.sqrt(sum(float((errors**2).sum()) / len(errors) ** 2 for errors in within))
    counts = [len(side) for side in sides]
    if paired:
        differences = at[1] - at[0]
        error = float(differences.std(ddof=1)) / math.sqrt(counts[0])
        return Estimate(before, after, max(error, inner), counts[0] - 1, False, True)
    df = sum(counts) - 2
    squares = float(((at[0] - before) ** 2).sum()) + float(((at[1] - after) ** 2).sum())
    share = 1 / counts[0] + 1 / counts[1]
    measured = math.sqrt(squares / df * share) if df else 0.0
    if df >= LEAST_FREEDOM or (noise is None and df):
        error = max(measured, inner, floor)
        return Estimate(before, after, error, df, False, False)
    error = max(math.sqrt(inner**2 + share * (noise or 0.0) ** 2), measured)
    return Estimate(before, after, error, _welch(within, sides[0], sides[1], error), True, False)


def _welch(within: Sequence[Float], base: Sequence[Float], head: Sequence[Float], error: float) -> float:
    """Welch and Satterthwaite's degrees of freedom of the steps' own errors; the assumed part has no limit."""
    spread = sum(
        (float(own) / len(errors)) ** 4 * len(errors) ** 2 / max(len(series) - 1, 1)
        for errors, side in zip(within, (base, head), strict=True)
        for own, series in zip(errors, side, strict=True)
    )
    return error**4 / spread if spread > 0 else math.inf


def _step_errors(side: Sequence[Float], location: Location) -> Float:
    return np.array([step_error(series, location) for series in side])


def step_error(series: Float, location: Location) -> float:
    """Standard error of a series' location by the circular block bootstrap; 0 for a single value. Blocks keep
    neighbours together [Künsch 1989; Politis and Romano 1992]. Their length follows the correlation ρ of neighbours,
    (√6 · ρ/(1−ρ²))^(2/3) · n^(1/3) [Carlstein 1986], at least ⌈n^(1/3)⌉."""
    n = len(series)
    if n < 2 or float(np.ptp(series)) == 0.0:
        return 0.0
    rho = _neighbours(series)
    longer = (math.sqrt(6.0) * rho / (1.0 - rho**2)) ** (2 / 3) * n ** (1 / 3)
    length = min(max(math.ceil(n ** (1 / 3)), math.ceil(longer)), max(n // 2, 1))
    picks = _kept_picks(n, length) if DRAWS * n <= _MOST_KEPT else _picks(n, length)
    drawn = [location(series[taken], axis=1) for taken in picks]
    # A sample's own spread is n/(n-1) too small, as for the mean of independent values.
    return float(np.concatenate(drawn).std()) * math.sqrt(n / (n - 1))


def _picks(n: int, length: int) -> Iterator[Int]:
    """Places of the steps that each draw takes, draws × n, some draws at a time."""
    rng = np.random.default_rng(_SEED)
    blocks = math.ceil(n / length)
    at_once = max(1, min(DRAWS, _MOST_AT_ONCE // n))
    draws = DRAWS if n <= _MANY else DRAWS // 10
    for first in range(0, draws, at_once):
        start = rng.integers(0, n, size=(min(at_once, draws - first), blocks, 1))
        taken = (start + np.arange(length)) % n
        yield taken.reshape(len(start), -1)[:, :n]


@lru_cache(maxsize=8)
def _kept_picks(n: int, length: int) -> tuple[Int, ...]:
    """As `_picks`: all metrics of a capture have as many steps, and the same seed draws the same of them."""
    return tuple(_picks(n, length))


def _neighbours(series: Float) -> float:
    """Correlation of neighbouring steps, corrected for its bias in short series, from 0 to 0.95 [Kendall 1954]."""
    n = len(series)
    centred = series - series.mean()
    rho = float((centred[1:] * centred[:-1]).sum() / (centred**2).sum())
    return min(max(rho + (1.0 + 4.0 * rho) / n, 0.0), 0.95)


def harmonic_mean(values: Float, axis: int | None = None) -> Float:
    """The rate of all steps together, from each step's own: what outliers cost is in it."""
    rate: Float = 1.0 / np.mean(1.0 / values, axis=axis)
    return rate


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction: each p such that the chance of any false alarm stays below a bound on it."""
    ordered = sorted(p, key=lambda name: p[name])
    corrected: dict[str, float] = {}
    least = 0.0
    for position, name in enumerate(ordered):
        least = max(least, min(1.0, p[name] * (len(ordered) - position)))
        corrected[name] = least
    return corrected


def taken_in_turn(base: Sequence[int | None], head: Sequence[int | None]) -> bool:
    """Whether captures (by start time) were taken pair by pair, each pair one of either side. Then drift of the machine
    hits both members of a pair alike: the i-th of base belongs to the i-th of head."""
    if len(base) != len(head) or len(base) < 2 or None in base or None in head:
        return False
    starts = sorted([(t or 0, "base") for t in base] + [(t or 0, "head") for t in head])
    if any(first[0] == second[0] for first, second in pairwise(starts)):
        return False
    sides = [side for _, side in starts]
    return all(sides[i] != sides[i + 1] for i in range(0, len(sides), 2))


def detectable_pct(captures: int, noise_pct: float, confidence: float = 0.95, power: float = 0.9) -> float:
    """The smallest change that so many captures a side find with `power`, where launches differ by `noise_pct`."""
    df = 2 * captures - 2
    error = noise_pct * math.sqrt(2 / captures)
    own = Estimate(100.0, 100.0, error, df if df >= LEAST_FREEDOM else math.inf, df < LEAST_FREEDOM, False)
    return own.detectable(confidence, power)


_STRETCHES = 8


def drift(series: Float) -> float:
    """The standard deviation of the mean step from stretch to stretch of a run, single steps far above left out. What
    cancels out within a stretch is not in it: a loader whose two workers deliver in pairs makes every second step
    short, and no run of them faster than another."""
    level = np.delete(series, far_from_median(series))
    return float(np.std([np.mean(part) for part in np.array_split(level, _STRETCHES)], ddof=1))


_UNEVEN = 0.1  # of the median step
_ROUND = 12  # steps: of two, three, four or six workers that deliver in turn


def rounds_of(series: Float) -> Float:
    """Of each step what a step of its round takes on average, where steps differ by turns: then no single step, nor the
    median, tells the pace. A round is as long as far steps are apart; where other steps are unlike, a few of them."""
    gaps = np.diff(begins_far(series))
    regular = len(gaps) > 2 and float(gaps.std()) < float(gaps.mean()) / 2
    level = series if regular else np.delete(series, far_from_median(series))
    size = int(np.median(gaps)) if regular else _ROUND
    if 4 * size > len(series) or abs(float(level.mean()) / float(np.median(series)) - 1) < _UNEVEN:
        return series
    return np.convolve(series, np.full(size, 1.0 / size), "valid")
