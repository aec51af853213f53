"""Which steps are typical."""

import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from traceops.measure.steps import typical_steps


@pytest.mark.parametrize(
    ("steps", "unlike"),
    [
        ([2149, 136, 129, 131], [0]),  # a recompilation in the first of four [tests/data/recompile2]
        ([100, 101, 99, 180, 100], [3]),
        ([100, 300, 100, 300], []),  # every other step is long: none is the usual one
        ([100, 1000], []),  # of two steps neither is the usual one
        ([100, 120, 80, 110, 90], []),
        ([100, 100, 100, 149], []),  # below one and a half times the median
        ([60, 100, 140, 100, 170], []),  # they spread that far anyway
        ([100, 100, 10], []),  # a short step costs nothing
        ([5], []),
        ([], []),
    ],
)
def test_far_longer_steps_are_unlike(steps, unlike):
    assert np.flatnonzero(~typical_steps(steps)).tolist() == unlike


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30), st.floats(0.01, 100))
@examples(60)
def test_fewer_than_half_are_left_out_whatever_the_unit(steps, unit):
    typical = typical_steps(steps)
    assert typical.sum() * 2 > len(steps)
    assert typical[int(np.argmin(steps))]
    ordered = np.sort(steps)
    assert (typical_steps(ordered)[:-1] >= typical_steps(ordered)[1:]).all()
    assert typical_steps(np.array(steps) * 2**3).tolist() == typical.tolist()
