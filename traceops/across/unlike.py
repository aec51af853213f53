"""Which steps of a run are unlike the others: long on all ranks, or made long by what one of them did besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.summary import RankSummary
from traceops.measure.typical import typical_steps

_FELT = 0.5  # of what a rank does more in a step: the others wait for that in the next one


def unlike_steps(ranks: Sequence[RankSummary], waits: Mapping[int, Int]) -> tuple[int, ...]:
    """Numbers of the steps that are no measure of the others, in order [docs/metrics.md, the typical step].

    `waits` is what each rank waits for others in each of its steps, ns. A step is unlike the others where its median
    over ranks takes far longer than most; where a rank's own time makes it as long, though the others, already in the
    next step, wait for that rank there; and where they do so.
    """
    steps = {number for summary in ranks for number in summary.step_numbers.tolist()}
    numbers = sorted(steps)
    at = {number: i for i, number in enumerate(numbers)}
    durations, own, waited = (np.full((len(ranks), len(numbers)), np.nan) for _ in range(3))
    for row, summary in enumerate(ranks):
        place = [at[number] for number in summary.step_numbers.tolist()]
        wait = waits[summary.rank]
        durations[row, place] = summary.ledger.duration
        own[row, place] = summary.ledger.duration - wait
        waited[row, place] = wait
    if not numbers:
        return ()
    took = np.nanmedian(durations, axis=0)
    unlike = ~typical_steps(took)
    if len(numbers) > 1:
        # Each rank against itself: a slow rank is as slow in every step.
        more = np.nanmax(np.minimum(_beyond(own), _beyond(durations)), axis=0)
        alone = ~typical_steps(float(np.median(took)) + more)
        more_waiting = np.nanmax(np.minimum(_beyond(waited), _beyond(durations)), axis=0)
        echo = np.concatenate(([False], alone[:-1] & (more_waiting[1:] >= _FELT * more[:-1])))
        unlike |= alone | echo
    return tuple(number for number, odd in zip(numbers, unlike.tolist(), strict=True) if odd)


def _beyond(ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each rank (row) has in a step beyond its median step."""
    more: NDArray[np.float64] = ns - np.nanmedian(ns, axis=1, keepdims=True)
    return more
