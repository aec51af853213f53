"""Passes over columns: the compiled ones answer what NumPy does, sets of intervals what a bitmap does."""

from __future__ import annotations

import functools
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from traceops.core import arrays
from traceops.core.arrays import (
    Bars,
    Intervals,
    bars_of,
    clip,
    empty,
    fewer,
    intersect,
    is_in,
    median,
    merge,
    nanmedian,
    numbered,
    percentiles,
    shares,
    split_at,
    subtract,
    union,
    uniques,
)
from traceops.measure import host_rows as nesting
from traceops.measure import hta_tables, recording
from traceops.measure.host_rows import find_nesting
from traceops.measure.summary import summarize
from traceops.pipeline.mapping.summary_file import encode
from traceops.traces.discover import discover

compiled = pytest.mark.skipif(arrays.native is None, reason="the compiled passes were not built")
RUNS = Path(__file__).parents[1] / "data"
PATCHED = (arrays, nesting, hta_tables, recording)


@contextmanager
def numpy_alone():
    with pytest.MonkeyPatch.context() as patch:
        for module in PATCHED:
            patch.setattr(module, "native", None)
        yield


def check(make, *given):
    """That both ways make the same columns."""
    compiled = make(*given)
    with numpy_alone():
        plain = make(*given)
    for one, other in zip(as_columns(compiled), as_columns(plain), strict=True):
        assert np.array_equal(one, other), (make, given)


def as_columns(made):
    if isinstance(made, Bars):
        return made.start, made.end, made.name, made.count, made.busy
    return (made.start, made.end) if isinstance(made, arrays.Intervals) else (made,)


def each_of(count):
    """One test of so many seeds."""

    def of(test):
        def every_seed():
            for seed in range(count):
                test(seed)

        return every_seed

    return of


def drawn(seed):
    """Moments within a span that is narrow for some seeds, so that many are equal, and wide for others."""
    rng = np.random.default_rng(seed)
    return rng, int(rng.choice([5, 40, 1000]))


@compiled
@each_of(300)
def test_sets_of_intervals(seed):
    rng, span = drawn(seed)
    start = rng.integers(-span, span, rng.integers(0, 30))
    start = np.sort(start) if seed % 2 else start
    end = start + rng.integers(-2, span // 2 + 2, len(start))
    check(union, start, end)
    one = union(start, end)
    other = rng.integers(-span, span, rng.integers(0, 30))
    other = split_at(union(other, other + rng.integers(0, 9, len(other))), rng.integers(-span, span, 5))
    for make in (intersect, subtract):
        check(make, one, other)
        check(make, other, one)
    moments = rng.integers(-span - 3, span + 3, 17)
    moments = np.sort(moments) if seed % 3 else moments
    check(one.holds, moments)
    check(one.covered_before, moments)
    check(one.covered_before, moments.reshape(1, 17))
    check(one.within, moments, moments + rng.integers(0, 5, 17))


@compiled
@each_of(300)
def test_operators_in_operators(seed):
    rng, span = drawn(seed)
    count, asked = int(rng.integers(1, 25)), 10
    ts = rng.integers(0, span, count + asked)
    dur = rng.integers(0, span // 3 + 1, count + asked)  # these also overlap, and have no length
    if seed % 2:
        dur[:count] = rng.choice([0, 1, 2, 4, 8, 16, 64], count)
        ts[:count] -= ts[:count] % np.maximum(dur[:count], 1)
    events = SimpleNamespace(tid=rng.integers(1, 4, count + asked), ts=ts, dur=dur)

    def around():
        lying = find_nesting(events, np.arange(count))
        rows = np.arange(count, count + asked)
        found = (lying.depth.astype(int), lying.parent.astype(int), lying.outermost)
        return np.concatenate((*found, lying.innermost_around(rows), lying.outermost_around(rows)))

    check(around)


@compiled
@each_of(60)
def test_few_uniques_many_rows(seed):
    rng, span = drawn(seed)
    column = rng.integers(-span, span, rng.integers(0, 90))
    check(uniques, column)
    check(lambda: np.concatenate(numbered(column)))


@compiled
@each_of(60)
def test_the_gap_that_stands_at_a_quantile(seed):
    rng, span = drawn(seed)
    kind, length = rng.integers(0, 5, 80).astype(np.uint8), rng.integers(0, span, 80)
    at = np.array([int(0.85 * (count - 1)) if count else -1 for count in np.bincount(kind, minlength=6).tolist()])
    found = np.zeros(6, dtype=np.int64)
    least = arrays.native.select(kind, length, at, found)
    assert least == min((ns for ns in length.tolist() if ns > 0), default=0)
    for number in range(6):
        own = sorted(length[kind == number].tolist())
        assert found[number] == (own[at[number]] if own else 0)


@compiled
@each_of(100)
def test_bars_drawn_together(seed):
    rng, span = drawn(seed)
    count = int(rng.integers(2, 60))
    edges = np.sort(rng.integers(0, 1000 * span, 2 * count))
    bars = Bars(edges[::2], edges[1::2], rng.integers(0, 9, count), np.ones(count, dtype=np.int32), np.diff(edges)[::2])
    check(fewer, bars, int(rng.integers(1, count)))


@compiled
@each_of(100)
def test_statistics_of_hta(seed):
    rng, _ = drawn(seed)
    name, values = rng.integers(0, 6, 50).astype(np.int32), rng.random(50) * 10.0 ** rng.integers(-3, 9, 50)
    check(lambda: np.array(list(hta_tables._statistics(name, values, np.bincount(name, minlength=7)).values())))
    check(hta_tables._sum, values)
    left, right = rng.integers(0, 9, 20), rng.integers(0, 9, 12)
    check(lambda: np.concatenate(hta_tables.join(left, right, 9)))


@compiled
@each_of(200)
def test_times_in_which_kinds_of_kernels_run(seed):
    rng, span = drawn(seed)
    parts = []
    for _ in range(3):
        ts = rng.integers(0, 5 * span, 12).astype(float)
        parts.append(hta_tables.busy_times(ts, rng.integers(seed % 2, 9, 12).astype(float)))
    kinds = {kind: busy for (kind, _), busy in zip(hta_tables._KINDS, parts, strict=True)}
    check(lambda: np.array(list(hta_tables.kernel_types(kinds).values()), dtype=object))
    check(lambda: np.array(hta_tables.overlap(0, parts[0], parts[1])["comp_comm_overlap_pctg"], dtype=object))


@compiled
@pytest.mark.parametrize("run", ["ddp4", "slow_loader4", "item_sync4"])
def test_summaries_of_recorded_ranks_are_the_same(run):
    for file in discover(str(RUNS / run)).latest.files[:2]:
        compiled = encode(summarize(file))
        with numpy_alone():
            assert encode(summarize(file)) == compiled


# Interval sets against a bitmap of every nanosecond, and statistics of columns against NumPy's own.


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


def check_bits(intervals, bits):
    """Holds exactly these bits, as sorted intervals that neither touch nor are empty."""
    assert bits_of(intervals).tolist() == bits.tolist()
    assert intervals.total == bits.sum()
    assert (intervals.end > intervals.start).all()
    assert (intervals.start[1:] > intervals.end[:-1]).all()
    assert intervals.start.dtype == intervals.end.dtype == np.int64


@given(PAIRS)
def test_union(pairs):
    check_bits(as_set(pairs), bitmap(pairs))


@given(PAIRS, PAIRS)
def test_set_operations(a, b):
    one, other = bitmap(a), bitmap(b)
    check_bits(merge(as_set(a), as_set(b)), one | other)
    check_bits(intersect(as_set(a), as_set(b)), one & other)
    check_bits(subtract(as_set(a), as_set(b)), one & ~other)


@given(PAIRS, st.integers(-3, SPAN + 3), st.integers(-3, SPAN + 3))
def test_clip(pairs, start, end):
    inside = (np.arange(SPAN) >= start) & (np.arange(SPAN) < end)
    check_bits(clip(as_set(pairs), start, end), bitmap(pairs) & inside)


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


@given(st.lists(st.integers(-5, 30), max_size=20), st.lists(st.integers(-5, 30), max_size=9))
def test_membership_is_numpys(values, among):
    own = array(values), array(among)
    np.testing.assert_array_equal(is_in(*own), np.isin(*own), strict=True)


def test_measuring_a_rank_imports_no_masked_arrays():
    """16 ms of CPU in every process that reads traces: np.isin, and np.unique of nothing else, bring them."""
    code = (
        "import sys\n"
        "from traceops.measure.summary import summarize\n"
        "from traceops.pipeline.analyze import find_traces\n"
        "for run in sys.argv[1:]:\n"
        "    summarize(find_traces(run).latest.files[0])\n"
        "sys.exit('numpy.ma' in sys.modules)"
    )
    runs = [str(RUNS / run) for run in ("ddp4", "runs/zero3/rank_0")]
    subprocess.run([sys.executable, "-c", code, *runs], check=True)


# Fewer bars say the same of a row: no event is lost, no time invented, and what can be seen keeps its name.


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
