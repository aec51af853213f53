"""Parents and own time of nested operators, against a slow and obvious way to find them."""

import numpy as np
from events_builder import build, note
from hypothesis import given
from hypothesis import strategies as st

from traceops.measure.nesting import find_nesting

YEARS = 1 << 61  # ns; two threads this wide fit no axis that counts ns


@st.composite
def trees(draw):
    """Nested intervals on two threads, inside each other or beside each other, and calls on three."""
    rows = []

    def grow(tid, start, end, depth):
        rows.append(note(f"op{len(rows)}", start, end - start, tid, "cpu_op"))
        at = start + draw(st.integers(0, 2))
        while depth and at + 1 < end and draw(st.booleans()):
            stop = draw(st.integers(at, end))
            grow(tid, at, stop, depth - 1)
            at = stop + draw(st.integers(0, 3))

    for tid in (1, 2):
        begin = draw(st.integers(0, 5))
        for _ in range(draw(st.integers(0, 3))):
            length = draw(st.integers(0, 60))
            grow(tid, begin, begin + length, 4)
            begin += length + draw(st.integers(0, 4))
    for tid, ts in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 90)), max_size=20)):
        rows.append(note("launch", ts, 1, tid, "cuda_runtime"))
    return build(draw(st.permutations(rows)))


def split(events):
    """Rows of the operators and of the calls."""
    operators = events.in_cats("cpu_op")
    return np.flatnonzero(operators), np.flatnonzero(~operators)


def around(events, ops, row):
    """All operators that hold this moment of this thread, innermost first; of equal ones the later in the file.

    One of no length lies in those that begin as it does if one of them stands before it in the file.
    """
    own = row in ops
    alike = [
        op for op in ops if (events.tid[op], events.ts[op]) == (events.tid[row], events.ts[row]) and events.dur[op]
    ]
    before = own and not events.dur[row] and min(alike, default=row) >= row
    holding = [
        op for op in ops
        if op != row and events.tid[op] == events.tid[row] and events.ts[op] <= events.ts[row] < events.end[op]
        and (not own or (events.dur[op], -op) > (events.dur[row], -row))
        and not (before and op in alike)
    ]  # fmt: skip
    return sorted(holding, key=lambda op: (events.dur[op], -op))


def rows_at(nesting, positions):
    return [int(nesting.rows[at]) if at >= 0 else -1 for at in positions]


@given(trees())
def test_parents_are_the_innermost_around(events):
    ops, _ = split(events)
    nesting = find_nesting(events, ops)
    assert sorted(nesting.rows) == ops.tolist()
    expected = [next(iter(around(events, ops, row)), -1) for row in nesting.rows]
    assert rows_at(nesting, nesting.parent) == expected
    assert nesting.outermost.tolist() == np.flatnonzero(np.array(expected) == -1).tolist()


@given(trees())
def test_a_call_is_inside_the_innermost_and_the_outermost_operator_on_its_thread(events):
    ops, calls = split(events)
    nesting = find_nesting(events, ops)
    inside = [around(events, ops, row) or [-1] for row in calls]
    assert rows_at(nesting, nesting.innermost_around(calls)) == [holding[0] for holding in inside]
    assert rows_at(nesting, nesting.outermost_around(calls)) == [holding[-1] for holding in inside]


@given(trees())
def test_own_times_add_up_to_the_time_of_the_outermost(events):
    ops, _ = split(events)
    nesting = find_nesting(events, ops)
    assert nesting.own_time.sum() == events.dur[nesting.rows[nesting.outermost]].sum()


@given(trees())
def test_times_years_apart_nest_as_well(events):
    ops, calls = split(events)
    calls = calls[np.isin(events.tid[calls], events.tid[ops])]

    def found():
        nesting = find_nesting(events, ops)
        return [
            rows_at(nesting, positions)
            for positions in (
                nesting.parent, nesting.innermost_around(calls), nesting.outermost_around(calls)
            )
        ]  # fmt: skip

    near = found()
    events.ts[events.tid == 2] += YEARS
    events.ts[events.tid == 1] -= YEARS - 1
    assert found() == near


def test_calls_after_what_was_deep_inside_and_beside_the_operators():
    rows = [
        note("outer", 0, 100, cat="cpu_op"), note("inner", 10, 20, cat="cpu_op"), note("inmost", 15, 10, cat="cpu_op"),
        note("last", 20, 5, cat="cpu_op"), note("other", 50, 10, 2, "cpu_op"),
        note("launch", 22, 2, cat="cuda_runtime"), note("launch", 25, 2, cat="cuda_runtime"),
        note("launch", 30, 2, cat="cuda_runtime"), note("launch", 100, 2, cat="cuda_runtime"),
        note("launch", -5, 2, 2, "cuda_runtime"), note("launch", 55, 2, 2, "cuda_runtime"),
        note("launch", 55, 2, 3, "cuda_runtime"),
    ]  # fmt: skip
    nesting, calls = find_nesting(build(rows), np.arange(5)), np.arange(5, 12)
    assert nesting.innermost_around(calls).tolist() == [3, 1, 0, -1, -1, 4, -1]
    assert nesting.outermost_around(calls).tolist() == [0, 0, 0, -1, -1, 4, -1]


def test_operators_that_only_overlap_are_one_stretch_of_the_first():
    rows = [
        note("first", 0, 10, cat="cpu_op"), note("second", 5, 15, cat="cpu_op"), note("third", 20, 5, cat="cpu_op"),
        note("wait", 15, 1, cat="cuda_runtime"), note("wait", 20, 1, cat="cuda_runtime"),
        note("wait", 25, 1, cat="cuda_runtime"),
    ]  # fmt: skip
    nesting = find_nesting(build(rows), np.arange(3))
    assert nesting.outermost.tolist() == [0, 2]
    assert nesting.outermost_around(np.arange(3, 6)).tolist() == [0, 2, -1]
