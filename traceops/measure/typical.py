"""Which steps are like the others, so that what is said of a step is true of most of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

FAR = 1.5  # times the median: a shorter step is never unlike the others
_SPREADS = 5.0  # and this many times what the steps spread by
_NORMAL = 1.4826  # median absolute deviation to standard deviation [Rousseeuw and Croux 1993]
_NEAR = 1.2
_LEAST = 3  # steps: of two, neither is the usual one


def typical_steps(durations: ArrayLike) -> NDArray[np.bool_]:
    """Mask of the steps that take about as long as most do; `durations` in any unit, in any order.

    A step is left out where it takes more than 1.5 times the median and lies far beyond what the steps
    spread by. Fewer than half can be left out. A short step is not: work that is missing is no cost.
    """
    steps = np.asarray(durations, dtype=float)
    if len(steps) < _LEAST:
        return np.ones(len(steps), dtype=bool)
    return ~far_beyond(steps, steps)


def far_beyond(durations: ArrayLike, most: ArrayLike) -> NDArray[np.bool_]:
    """Mask of the steps that take far longer than `most` of them, by the median and the spread of those."""
    steps = np.asarray(most, dtype=float)
    middle = float(np.median(steps))
    spread = _NORMAL * float(np.median(np.abs(steps - middle)))
    far: NDArray[np.bool_] = np.asarray(durations, dtype=float) > max(FAR * middle, middle + _SPREADS * spread)
    return far


def usual_steps(durations: ArrayLike) -> NDArray[np.bool_]:
    """Of the typical steps, those that take up to 1.2 times the median; all where that leaves out over a third.

    A few steps say what most are like only without an evaluation or a neighbour's noise among them. Where steps come
    in kinds, each kind counts.
    """
    steps = np.asarray(durations, dtype=float)
    like = typical_steps(steps)
    near: NDArray[np.bool_] = like & (steps <= _NEAR * float(np.median(steps))) if len(steps) else like
    return near if 3 * int(near.sum()) >= 2 * int(like.sum()) else like


def spells(odd: Sequence[bool]) -> int:
    """How often something came: neighbouring steps are one time, as what straddles their boundary is long in both."""
    return sum(now and not before for before, now in zip((False, *odd), odd, strict=False))
