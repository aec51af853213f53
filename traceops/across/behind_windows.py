"""Where the steps behind a window begin: its light window is near it, and light windows that follow are far away."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NEAR = 3  # steps from the last recorded one to the first of the light window


def last_of_window(recorded: NDArray[np.int64], last: int) -> int:
    """The last recorded step of a window that ends with step `last`, and of the light window right behind it.

    recorded: numbers of the steps in which anything of ours or a profiler of the script's own recorded, in order.
    """
    for step in recorded[recorded > last].tolist():
        if step - last > _NEAR:
            break
        last = step
    return last
