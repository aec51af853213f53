"""How much of what ranks compute would be saved if all of it went at the pace of the one whose sizes suit it best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceops.measure.summary import RankSummary

_DIFFERS = 1.05  # times the blocks a launch of another rank: a kernel whose grid tells how much work it has
_AGREE = 0.10  # of the share of the work: how far the kernels' shares may lie apart
_MOST_AGREE = 0.8  # of their time
_CONSTANT = 1.1  # times the time of another rank's: a kernel of as many blocks that does not grow with the work
_MOST_CONSTANT = 0.15  # of the computation: more, and not all of it is shared


def best_pace(ranks: Sequence[RankSummary], slowed_us: Sequence[float]) -> float:
    """Time of all ranks' work at the best pace of any of them, over what it takes; 1 where the kernels do not tell.

    Kernels whose grid follows the work (elementwise ones) tell each rank's share of it. Those of matrices, whose grid
    is as large as the device, run more or less efficiently by their sizes: time over share is a rank's pace. Only where
    nearly all computation follows the work, as with batches of other sizes. `slowed_us` is what each rank's kernels
    took a step only because communication beside them waited.
    """
    steps = [max(len(summary.step_numbers), 1) for summary in ranks]
    known = [{k.name: k for k in summary.kernels if k.kind == "compute" and k.count} for summary in ranks]
    if len(ranks) < 2 or not all(known):
        return 1.0
    shares, weights, constant = [], [], 0.0
    for name in set.intersection(*(set(own) for own in known)):
        of_rank = [own[name] for own in known]
        if len({k.count / n for k, n in zip(of_rank, steps, strict=True)}) > 1 or min(k.blocks for k in of_rank) <= 0:
            continue
        blocks = np.array([k.blocks / k.count for k in of_rank])
        us = np.array([k.total_us / n for k, n in zip(of_rank, steps, strict=True)])
        if blocks.max() >= _DIFFERS * blocks.min():
            shares.append(blocks / blocks.mean())
            weights.append(float(us.mean()))
        elif blocks.max() == blocks.min() and us.max() < _CONSTANT * us.min():
            constant += float(us.mean())
    whole = np.array([sum(k.total_us for k in own.values()) / n for own, n in zip(known, steps, strict=True)])
    whole -= np.array(slowed_us)
    if not shares or constant > _MOST_CONSTANT * whole.mean():
        return 1.0
    share = np.average(shares, axis=0, weights=weights)
    apart = np.abs(np.array(shares) - share).max(axis=1)
    if np.array(weights)[apart <= _AGREE].sum() < _MOST_AGREE * sum(weights):
        return 1.0
    best = constant + float(((whole - constant) / share).min())
    return min(best / float(whole.mean()), 1.0)
