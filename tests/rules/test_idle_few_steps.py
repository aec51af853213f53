"""TO-I003 where the host waited in one of the recorded steps only: a window does not tell how often that comes."""

from types import SimpleNamespace

import numpy as np
import pytest

from traceops.rules.idle_time import few_steps


@pytest.mark.parametrize(
    "took, few",
    [
        ((0, 0, 61, 0), 1),  # a loss that is read, and a cache that is emptied, behind every tenth step
        ((9, 8, 9, 10), None),
        ((0, 12, 0, 12), None),  # every second step: as often as the window says
        ((0, 0, 0, 0), None),
        ((0, 61), None),
    ],
    ids=["one of four", "each", "every second", "none", "too few steps"],
)
def test_what_lies_in_few_steps_is_told_as_that(took, few):
    times = SimpleNamespace(buckets={"idle_sync": np.array(took)}, typical=np.ones(len(took), dtype=bool))
    assert few_steps(times, "idle_sync") == few
