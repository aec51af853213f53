"""Groups against NumPy's own, for values close together and far apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceops.measure.nesting import distinct, groups

VALUES = st.lists(st.integers(-1, 6), min_size=1, max_size=40)


@given(st.lists(st.integers(-(1 << 62), 1 << 62), max_size=10), st.data())
def test_distinct_values_are_found_whether_they_stand_together_or_not(pool, data):
    values = np.array(data.draw(st.lists(st.sampled_from(pool), max_size=40)) if pool else [], dtype=np.int64)
    found, which = distinct(values)
    assert found.tolist() == sorted(set(values.tolist()))
    assert found[which].tolist() == values.tolist()


@pytest.mark.parametrize("apart", [1, 100_000])
@given(VALUES, st.data())
def test_groups_are_the_different_rows_in_order(apart, first, data):
    second = data.draw(st.lists(st.integers(-1, 3), min_size=len(first), max_size=len(first)))
    columns = (np.array(first, dtype=np.int32), np.array([value * apart if value > 0 else value for value in second]))
    values, group = groups(*columns)
    expected = sorted(set(zip(*(column.tolist() for column in columns), strict=True)))
    assert [tuple(row) for row in values.tolist()] == expected
    assert values[group].tolist() == np.stack(columns, axis=1).tolist()
