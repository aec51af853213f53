"""Names for the arrays that columns are made of, and the mean of times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]


def mean_ms(ns: Int) -> float:
    """Mean of times in ns, as ms; 0 without any."""
    return float(np.mean(ns)) / 1e6 if len(ns) else 0.0
