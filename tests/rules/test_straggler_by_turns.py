"""TO-S002 of ranks whose late steps are followed by early ones."""

from types import SimpleNamespace

import numpy as np
import pytest

from traceops.rules.stragglers_conditions import lost_again


@pytest.mark.parametrize(
    ("saved_ms", "lost"),
    [
        ((-5.4, 11.86, 5.2, -10.4), True),  # as nanoGPT on a GPU that two ranks share: 0.31 of 36 ms a step in the mean
        ((0.1, 12.0, 0.0, -0.3), False),
        ((3.0, 12.0, 11.0, 2.0), False),
    ],
)
def test_what_other_steps_would_lose_is_no_gain(saved_ms, lost):
    """'Rank 0 is late in steps 11, 12' was a warning in a healthy run, with a step that would be 1 % shorter."""
    assert lost_again(SimpleNamespace(saved=np.array(saved_ms) * 1e6)) is lost
