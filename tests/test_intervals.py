"""Interval sets against a bitmap of every nanosecond, and statistics of columns against NumPy's own."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceops.core.arrays import (
    Intervals,
    clip,
    empty,
    intersect,
    median,
    merge,
    nanmedian,
    percentiles,
    split_at,
    subtract,
    union,
    uniques,
)

SPAN = 60
PAIRS = st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN)), max_size=12)  # in any order, some inverted
CUTS = st.lists(st.integers(-2, SPAN + 2), max_size=8)


def array(values):
    return np.array(values, dtype=np.int64)


def as_set(pairs):
    return union(array([a for a, _ in pairs]), array([b for _, b in pairs]))


def bitmap(pairs):
    bits = np.zeros(SPAN, dtype=bool)
    for a, b in pairs:
        bits[a:b] = True  # nothing where b <= a
    return bits


def bits_of(intervals):
    return bitmap(zip(intervals.start.tolist(), intervals.end.tolist(), strict=True))


def check(intervals, bits):
    """Holds exactly these bits, as sorted intervals that neither touch nor are empty."""
    assert bits_of(intervals).tolist() == bits.tolist()
    assert intervals.total == bits.sum()
    assert (intervals.end > intervals.start).all()
    assert (intervals.start[1:] > intervals.end[:-1]).all()
    assert intervals.start.dtype == intervals.end.dtype == np.int64


@given(PAIRS)
def test_union(pairs):
    check(as_set(pairs), bitmap(pairs))


@given(PAIRS, PAIRS)
def test_set_operations(a, b):
    one, other = bitmap(a), bitmap(b)
    check(merge(as_set(a), as_set(b)), one | other)
    check(intersect(as_set(a), as_set(b)), one & other)
    check(subtract(as_set(a), as_set(b)), one & ~other)


@given(PAIRS, st.integers(-3, SPAN + 3), st.integers(-3, SPAN + 3))
def test_clip(pairs, start, end):
    inside = (np.arange(SPAN) >= start) & (np.arange(SPAN) < end)
    check(clip(as_set(pairs), start, end), bitmap(pairs) & inside)


@given(PAIRS, CUTS)
def test_split_at_keeps_the_time_and_starts_anew_at_every_cut_inside(pairs, cuts):
    whole, bits = as_set(pairs), bitmap(pairs)
    parts = split_at(whole, array(cuts))
    assert bits_of(parts).tolist() == bits.tolist()
    assert parts.total == whole.total
    assert (parts.start[1:] >= parts.end[:-1]).all()
    inside = {cut for cut in cuts if 0 <= cut < SPAN and bits[cut]}
    assert set(parts.start.tolist()) == set(whole.start.tolist()) | inside


@given(PAIRS, CUTS)
def test_holds_and_covered_before(pairs, moments):
    intervals, bits, t = as_set(pairs), bitmap(pairs), array(moments)
    assert intervals.holds(t).tolist() == [0 <= m < SPAN and bool(bits[m]) for m in moments]
    assert intervals.covered_before(t).tolist() == [int(bits[: max(m, 0)].sum()) for m in moments]


@given(PAIRS, st.lists(st.tuples(st.integers(-2, SPAN + 2), st.integers(0, 20)), max_size=8))
def test_time_within_bins(pairs, bins):
    start, length = array([a for a, _ in bins]), array([n for _, n in bins])
    expected = [int(bitmap(pairs)[max(a, 0) : max(a + n, 0)].sum()) for a, n in bins]
    assert as_set(pairs).within(start, start + length).tolist() == expected


def test_empty_sets_work_everywhere():
    some = Intervals(array([1]), array([5]))
    assert len(merge(empty(), empty())) == len(intersect(empty(), some)) == len(subtract(empty(), some)) == 0
    assert subtract(some, empty()).total == 4
    assert empty().within(array([0]), array([9])).tolist() == [0]
    assert len(split_at(empty(), array([3]))) == 0


def test_lengths_are_exact_at_times_no_float_holds():
    base = 1_790_857_026_000_000_001
    intervals = union(array([base, base + 10]), array([base + 3, base + 11]))
    assert intervals.total == 4
    assert intervals.within(array([base + 1]), array([base + 11])).tolist() == [3]


EACH = st.one_of(st.integers(-(2**40), 2**40), st.floats(-1e9, 1e9), st.just(np.nan))
NUMBERS = st.lists(EACH, min_size=1, max_size=9)


@given(NUMBERS, st.integers(1, 4), st.lists(st.integers(0, 100), min_size=1, max_size=4))
@pytest.mark.filterwarnings("ignore:All-NaN")
def test_statistics_are_numpys_to_the_last_digit(numbers, rows, percents):
    values = np.array(numbers)
    table = np.stack([np.roll(values, row) * (row + 1) for row in range(rows)])
    same = functools.partial(np.testing.assert_array_equal, strict=False)
    same(median(values), np.median(values))
    for axis in (0, 1):
        same(median(table, axis=axis), np.median(table, axis=axis))
        same(nanmedian(table, axis=axis), np.nanmedian(table, axis=axis))
    known = values[~np.isnan(values)]
    same(uniques(known, known[:1]), np.unique(known))
    if len(known):
        same(median(known.astype(np.int64)), np.median(known.astype(np.int64)))
        same(percentiles(known, percents), [np.percentile(known, one) for one in percents])
