"""Fewer bars say the same of a row: no event is lost, no time invented, and what can be seen keeps its name."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from traceops.core.arrays import bars_of, fewer, shares

_EVENTS = st.lists(
    st.tuples(st.integers(0, 300), st.one_of(st.integers(1, 20), st.integers(1, 100_000)), st.integers(0, 5)),
    min_size=1,
    max_size=120,
)


def row_of(events: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Events one behind the other: (gap before, duration, name)."""
    gaps, lasts, names = np.array(events, dtype=np.int64).T
    end = np.cumsum(gaps + lasts)
    return end - lasts, end, names


@examples(60)
@given(events=_EVENTS, most=st.integers(1, 60))
def test_nothing_is_lost_and_nothing_invented(events: list[tuple[int, int, int]], most: int) -> None:
    start, end, names = row_of(events)
    whole = bars_of(start, end, names)
    few = fewer(whole, most)
    assert len(few) <= max(most, 1)
    assert few.count.sum() == len(events)
    assert few.busy.sum() == (end - start).sum()
    assert (few.start[1:] >= few.end[:-1]).all()
    assert (few.busy <= few.end - few.start).all()
    assert set(few.start.tolist()) <= set(start.tolist()) and set(few.end.tolist()) <= set(end.tolist())
    at = np.searchsorted(few.start, start, side="right") - 1
    alone = few.count[at] == 1
    assert (few.name[at][alone] == names[alone]).all(), "a bar of one event has that event's name"
    longest = [max(range(len(at)), key=lambda i: (at[i] == bar, end[i] - start[i])) for bar in range(len(few))]
    assert all(
        end[i] - start[i] == max((end - start)[(at == bar) & (names == few.name[bar])]) for bar, i in enumerate(longest)
    )


def test_long_bars_stay_and_short_ones_beside_each_other_are_one() -> None:
    start = np.array([0, 1000, 1002, 1004, 5000])
    end = np.array([900, 1001, 1003, 1005, 6000])
    few = fewer(bars_of(start, end, np.arange(5)), 4)
    assert few.start.tolist() == [0, 1000, 5000]
    assert few.end.tolist() == [900, 1005, 6000]
    assert few.count.tolist() == [1, 3, 1]
    assert few.busy.tolist() == [900, 3, 1000]


def test_overlapping_events_of_a_row_are_cut_and_nested_ones_left_out() -> None:
    bars = bars_of(np.array([50, 0, 10]), np.array([150, 100, 20]), np.array([2, 0, 1]))
    assert bars.start.tolist() == [0, 100]
    assert bars.end.tolist() == [100, 150]
    assert bars.name.tolist() == [0, 2]
    assert len(bars_of(*np.empty((3, 0), dtype=np.int64))) == 0


@pytest.mark.parametrize(
    ("counts", "most", "given"),
    [([5, 100, 200], 105, [5, 50, 50]), ([3, 3], 100, [3, 3]), ([10], 4, [4]), ([9, 9, 9], 2, [1, 1, 1])],
)
def test_rows_with_few_bars_keep_them(counts: list[int], most: int, given: list[int]) -> None:
    assert shares(counts, most) == given
