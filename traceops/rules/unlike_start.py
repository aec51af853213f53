"""TO-T001 where a long step loads kernels, or starts a communicator: that comes once in a process."""

from __future__ import annotations

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.measure.host import ExtraRegion

FIRST_USE = "first_use"
_MOST_OF_IT = 0.5  # of what the region takes longer
_EXPLAINS = 0.5  # of what the step takes longer


def is_first_use(region: ExtraRegion) -> bool:
    """Whether the host is in this region longer because of what is used there for the first time."""
    return region.first_use_ms >= _MOST_OF_IT * region.ms


def first_uses(run: CrossRank) -> tuple[int, ...]:
    """The steps unlike the others that are so because something is used for the first time."""
    most: dict[int, float] = {}
    for times in run.ranks:
        for one in times.summary.host.extra:
            if is_first_use(one):
                most[one.step] = max(most.get(one.step, 0.0), one.ms)
    return tuple(step for step, ms in most.items() if step in run.unlike and ms >= _EXPLAINS * longer_ms(run, step))


def longer_ms(run: CrossRank, number: int) -> float:
    """What a step takes longer than the typical one, ms; 0 where most ranks feel it a step later."""
    return max(step_ms(run, number) - run.step_ms, 0.0)


def step_ms(run: CrossRank, number: int) -> float:
    """A step's duration, ms: the median over the ranks that recorded it."""
    own = [times.duration[times.summary.step_numbers == number] for times in run.ranks]
    return float(np.median(np.concatenate(own))) / 1e6
