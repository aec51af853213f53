"""When each step of a rank ended, by its host's clock."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceops.traces.observed import Observed

_GAP_US = 1000  # of the capture between two steps: what takes longer counts as none of them


def step_ends_ns(one: Observed) -> NDArray[np.float64]:
    """Unix time of the end of each step. The first one holds the program's start."""
    own = one.steps["own_us"].astype(np.float64)
    took = one.steps["host_us"].astype(np.float64) + np.where(own > _GAP_US, own, 0.0)
    ends: NDArray[np.float64] = one.began_ns + 1e3 * np.cumsum(took)
    return ends
