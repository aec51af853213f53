"""Parents and own time of nested operators, against a slow and obvious way to find them."""

import numpy as np
from events_builder import build, note
from hypothesis import given
from hypothesis import strategies as st

from traceops.analyses.nesting import own_time, parents


@st.composite
def trees(draw):
    """Nested intervals on two threads: inside each other or beside each other."""
    rows = []

    def grow(tid, start, end, depth):
        rows.append(note(f"op{len(rows)}", start, end - start, tid, "cpu_op"))
        at = start + draw(st.integers(0, 2))
        while depth and at + 1 < end and draw(st.booleans()):
            stop = draw(st.integers(at + 1, end))
            grow(tid, at, stop, depth - 1)
            at = stop + draw(st.integers(0, 3))

    for tid in (1, 2):
        begin = draw(st.integers(0, 5))
        for _ in range(draw(st.integers(0, 3))):
            length = draw(st.integers(1, 60))
            grow(tid, begin, begin + length, 4)
            begin += length + draw(st.integers(0, 4))
    return rows


def around(events, ops, row):
    """The shortest operator that holds this moment of this thread; of equal ones the later in the file."""
    start, tid = events.ts[row], events.tid[row]
    holding = [
        i for i, op in enumerate(ops)
        if op != row and events.tid[op] == tid and events.ts[op] <= start < events.end[op]
        and (events.dur[op], -op) > (events.dur[row], -row)
    ]  # fmt: skip
    return min(holding, key=lambda i: (events.dur[ops[i]], -ops[i]), default=-1)


@given(trees())
def test_parents_are_the_innermost_around(rows):
    if not rows:
        return
    events = build(rows)
    ops = np.arange(len(rows))
    assert parents(events, ops, ops).tolist() == [around(events, ops, row) for row in ops]


@given(trees())
def test_own_times_add_up_to_the_time_of_the_outermost(rows):
    if not rows:
        return
    events = build(rows)
    ops = np.arange(len(rows))
    outermost = parents(events, ops, ops) < 0
    assert own_time(events, ops).sum() == events.dur[outermost].sum()


def test_a_launch_belongs_to_the_innermost_operator_on_its_thread():
    rows = [
        note("outer", 0, 100, cat="cpu_op"), note("inner", 10, 20, cat="cpu_op"), note("other", 0, 100, 2, "cpu_op"),
        note("launch", 15, 2, cat="cuda_runtime"), note("launch", 50, 2, cat="cuda_runtime"),
        note("launch", 100, 2, cat="cuda_runtime"), note("launch", 20, 2, 2, "cuda_runtime"),
        note("launch", 5, 2, 3, "cuda_runtime"),
    ]  # fmt: skip
    assert parents(build(rows), np.arange(3), np.arange(3, 8)).tolist() == [1, 0, -1, 2, -1]
