"""Steps of a whole run in which a rank calls a function that it calls in each so many steps, and in no other.

What takes less than a typical step (a short save, an evaluation of few batches) leaves its steps within the spread of
all on a busy machine: their length alone does not tell them. Looks at the host do: a function that is seen in every
fourth step, and never in between, is no part of a typical one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import gcd

import numpy as np

from traceops.across.run_steps import Floats, Mask

_LEAST_SEEN = 5  # steps in which it is seen: of fewer, chance makes a rhythm
_LEAST_APART = 4  # steps from one to the next, for the same
_MOST_MISSED = 0.25  # of the steps of the rhythm: a look may fall beside what is short
_LEAST_PART = 0.1  # of a step: what the function takes where it is seen
_FELT = 0.5  # of that: what these steps take longer than the others
_LONGER = 0.75  # of these steps: so many take longer than the median of the others

Seen = Mapping[int, float]  # by index of the step what looks at a function took in it, ms


def in_rhythm(step_ms: Floats, timed: Mask, functions: Iterable[Seen]) -> Mask:
    """The timed steps that hold such a function. `step_ms` and `timed` are of each step of the run."""
    found = np.zeros(len(step_ms), dtype=bool)
    for seen in functions:
        rhythm = _rhythm(seen, timed)
        if rhythm is not None and _felt(step_ms, timed, rhythm, seen):
            found |= rhythm
    return found


def _rhythm(seen: Seen, timed: Mask) -> Mask | None:
    """All timed steps of the rhythm in which a function was seen; None where it was seen in none."""
    at = sorted(step for step in seen if timed[step])
    if len(at) < _LEAST_SEEN:
        return None
    apart = gcd(*(b - a for a, b in pairwise(at)))
    if apart < _LEAST_APART:
        return None
    rhythm = timed & (np.arange(len(timed)) % apart == at[0] % apart)
    return rhythm if len(at) >= (1 - _MOST_MISSED) * rhythm.sum() else None


def _felt(step_ms: Floats, timed: Mask, rhythm: Mask, seen: Seen) -> bool:
    """Whether its steps are longer by a good part of what it was seen to take."""
    own, others = step_ms[rhythm], step_ms[timed & ~rhythm]
    if not len(others):
        return False
    usual = float(np.median(others))
    took = float(np.median([ms for step, ms in seen.items() if rhythm[step]]))
    longer = float(np.median(own)) - usual
    often = float((own > usual).mean()) >= _LONGER
    return took >= _LEAST_PART * usual and longer >= max(_FELT * took, _LEAST_PART * usual) and often
