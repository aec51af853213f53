"""The compiled passes over columns answer what NumPy does in their place, in order or not, overlapping, empty."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from traceops.core import arrays
from traceops.core.arrays import Bars, fewer, intersect, numbered, split_at, subtract, union, uniques
from traceops.measure import hta_tables, nesting, recording
from traceops.measure.nesting import find_nesting
from traceops.measure.summary import summarize
from traceops.pipeline.mapping.summary_file import encode
from traceops.traces.discover import discover

pytestmark = pytest.mark.skipif(arrays.native is None, reason="the compiled passes were not built")
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


@each_of(60)
def test_few_uniques_many_rows(seed):
    rng, span = drawn(seed)
    column = rng.integers(-span, span, rng.integers(0, 90))
    check(uniques, column)
    check(lambda: np.concatenate(numbered(column)))


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


@each_of(100)
def test_bars_drawn_together(seed):
    rng, span = drawn(seed)
    count = int(rng.integers(2, 60))
    edges = np.sort(rng.integers(0, 1000 * span, 2 * count))
    bars = Bars(edges[::2], edges[1::2], rng.integers(0, 9, count), np.ones(count, dtype=np.int32), np.diff(edges)[::2])
    check(fewer, bars, int(rng.integers(1, count)))


@each_of(100)
def test_statistics_of_hta(seed):
    rng, _ = drawn(seed)
    name, values = rng.integers(0, 6, 50).astype(np.int32), rng.random(50) * 10.0 ** rng.integers(-3, 9, 50)
    check(lambda: np.array(list(hta_tables._statistics(name, values, np.bincount(name, minlength=7)).values())))
    check(hta_tables._sum, values)
    left, right = rng.integers(0, 9, 20), rng.integers(0, 9, 12)
    check(lambda: np.concatenate(hta_tables.join(left, right, 9)))


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


@pytest.mark.parametrize("run", ["ddp4", "slow_loader4", "item_sync4"])
def test_summaries_of_recorded_ranks_are_the_same(run):
    for file in discover(str(RUNS / run)).latest.files[:2]:
        compiled = encode(summarize(file))
        with numpy_alone():
            assert encode(summarize(file)) == compiled
