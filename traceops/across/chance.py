"""How likely it is that ranks which are alike look as late as one does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceops.across.replay.graph import Steps

MOST_COMPARED = 128  # peers in the permutation test
_SHUFFLES = 2000
_SEED = 20200


def chance(own: Steps, others: NDArray[np.float64]) -> float:
    """Probability that some rank looks as late as this one if (rank, step) cells were dealt at random.

    A permutation test on the largest mean over a rank's steps; `others` has shape (ranks, steps). [Good 2005]
    """
    if not len(others) or not own.sum():
        return 1.0
    thinned = others[:: len(others) // MOST_COMPARED + 1]
    cells = np.concatenate((own[None, :], thinned))
    observed = float(own.mean())
    random = np.random.default_rng(_SEED)
    flat = np.tile(cells.ravel(), (_SHUFFLES, 1))
    dealt = random.permuted(flat, axis=1).reshape(_SHUFFLES, *cells.shape)
    hits = int((dealt.mean(axis=2).max(axis=1) >= observed * (1 - 1e-9)).sum())
    return (hits + 1) / (_SHUFFLES + 1)
