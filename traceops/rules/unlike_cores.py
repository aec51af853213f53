"""TO-T001 where a rank waits for a core in the long steps, by what it told of its recorded steps."""

from __future__ import annotations

import numpy as np

from traceops.across.core_waits import core_waits
from traceops.rules.inputs import Inputs

CAUSE = "shared_cores"
WAITS_BEYOND = "waits for a core beyond typical steps"  # in evidence, with the rank that does
_MOST_OF_IT = 0.5  # of what the steps take longer


def held_up(inputs: Inputs, longer_ms: float) -> tuple[int, float] | None:
    """The rank that waits for a core in the steps unlike the others, and for how long in each beyond its typical ones.

    longer_ms: what these steps take longer, all together. None where that is less than half of it.
    """
    run, waits = inputs.run, core_waits(inputs.observed).of_rank
    more: dict[int, float] = {}
    for times in run.ranks:
        own = waits.get(times.summary.rank)
        typical = times.summary.step_numbers[times.typical].tolist()
        if own is not None and typical:
            usual = float(np.mean([own.get(step, 0) for step in typical]))
            more[times.summary.rank] = sum(own.get(step, 0) - usual for step in run.unlike) / 1e6
    rank = max(more, key=lambda one: more[one], default=None)
    if rank is None or more[rank] < _MOST_OF_IT * longer_ms:
        return None
    return rank, more[rank] / len(run.unlike)
