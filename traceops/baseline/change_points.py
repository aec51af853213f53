"""Change points of a noisy series: where its level changed for good, how sure that is, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

MAX_P = 0.01  # a change point is reported up to this probability of seeing one as clear in noise
MIN_SEGMENT = 2  # values on each side of a change: one outlier is no new level

_WEAK_P = 0.1  # what the first pass marks, for the second to judge with its neighbours known
_FIRST, _REST = 99, 1900  # permutations: few tell that there is nothing
_CLEARLY_NOTHING = 20  # of the first ones that are as clear as what was seen
_MOST_CELLS = 1 << 21  # of distances in memory at once


@dataclass(frozen=True)
class ChangePoint:
    """The level changed with value number `index`.

    before, after: medians from the change point before it, and to the one after it. p: the share of
    permutations of these values that split as clearly as they do.
    """

    index: int
    before: float
    after: float
    p: float


def change_points(values: NDArray[np.floating] | list[float], *, max_p: float = MAX_P) -> tuple[ChangePoint, ...]:
    """Change points of `values` (n, finite, in time order), in order; the same for the same values.

    E-divisive means: the split with the largest energy distance between its sides, its significance by permutation, and
    the same again in both parts [Matteson and James, "A Nonparametric Approach for Multiple Change Point Analysis of
    Multivariate Data", JASA 2014, eq. 5 to 8, with exponent 1 and the right side up to the next change]. As
    in Hunter, a first pass marks weak ones too, then each is judged between its neighbours and the weakest leaves until
    all that are left have p <= max_p [Fleming et al., "Hunter: Using Change Point Detection to Hunt for Performance
    Regressions", ICPE 2023, sec. 4.2]. No distribution is assumed, only that without a change any order of
    the values is as likely as another: slow drift of a machine counts as a change.
    """
    series = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(0)
    marks = _marks(series, 0, len(series), rng)
    tested: list[float] = []
    while marks:
        tested = []
        for i in range(len(marks)):
            edges = [0, *marks, len(series)]
            at, p = _best_split(series[edges[i] : edges[i + 2]], rng)
            marks[i] = edges[i] + at
            tested.append(p)
        weakest = int(np.argmax(tested))
        if tested[weakest] <= max_p:
            break
        del marks[weakest]
    edges = [0, *marks, len(series)]
    return tuple(
        ChangePoint(
            mark, float(np.median(series[edges[i] : mark])), float(np.median(series[mark : edges[i + 2]])), tested[i]
        )
        for i, mark in enumerate(marks)
    )


def least_values(max_p: float = MAX_P) -> int:
    """Values it takes to find any change at all: with fewer, too many permutations split as clearly as the best."""
    n = 2 * MIN_SEGMENT
    while 2 / comb(n, n // 2) > max_p:  # the two sides, or mirrored
        n += 1
    return n


def _marks(series: Float, start: int, end: int, rng: np.random.Generator) -> list[int]:
    """First pass: weak change points in series[start:end], by splitting."""
    if end - start < 2 * MIN_SEGMENT:
        return []
    at, p = _best_split(series[start:end], rng)
    if p > _WEAK_P:
        return []
    middle = start + at
    return [*_marks(series, start, middle, rng), middle, *_marks(series, middle, end, rng)]


def _best_split(values: Float, rng: np.random.Generator) -> tuple[int, float]:
    """Where the sides lie farthest apart, and the share of permutations whose best split is as clear (p).

    Permutations end early where p is large anyway.
    """
    distances = np.abs(values[:, None] - values[None, :])
    seen = _energy(distances[None])[0]
    at = int(np.argmax(seen))
    bound = seen[at] - 1e-9 * abs(seen[at])
    if seen[at] <= 0:
        return at + MIN_SEGMENT, 1.0
    as_clear = done = 0
    for count in (_FIRST, _REST):
        if done and as_clear >= _CLEARLY_NOTHING:
            break
        as_clear += _as_clear(distances, bound, count, rng)
        done += count
    return at + MIN_SEGMENT, (1 + as_clear) / (1 + done)


def _as_clear(distances: Float, bound: float, count: int, rng: np.random.Generator) -> int:
    """How many of `count` permutations have a split of at least `bound`."""
    n = len(distances)
    found, at_once = 0, max(_MOST_CELLS // n**2, 1)
    for start in range(0, count, at_once):
        orders = rng.permuted(np.tile(np.arange(n), (min(at_once, count - start), 1)), axis=1)
        permuted = distances[orders[:, :, None], orders[:, None, :]]
        found += int(np.count_nonzero(_energy(permuted).max(axis=1) >= bound))
    return found


def _energy(distances: Float) -> Float:
    """Scaled energy distance between the first k values and the rest, for k = MIN_SEGMENT … n - MIN_SEGMENT.

    distances: (batch, n, n). Returns (batch, n - 2 MIN_SEGMENT + 1): k m / (k + m) times twice the mean
    distance across, less the mean distances within, m = n - k.
    """
    n = distances.shape[1]
    upper = np.triu(distances, 1)
    left = np.cumsum(upper.sum(axis=1), axis=1)  # [j]: within the first j + 1
    right = np.cumsum(upper.sum(axis=2)[:, ::-1], axis=1)[:, ::-1]  # [j]: within j and all after it
    k = np.arange(MIN_SEGMENT, n - MIN_SEGMENT + 1)
    m = n - k
    within_left, within_right = left[:, k - 1], right[:, k]
    across = left[:, -1:] - within_left - within_right
    energy: Float = (k * m / n) * (
        2 * across / (k * m) - within_left / (k * (k - 1) / 2) - within_right / (m * (m - 1) / 2)
    )
    return energy
