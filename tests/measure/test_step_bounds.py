"""Where steps begin and end, where the marks alone do not say it."""

from events_builder import build, note, step

from traceops.measure.activity import find_activity
from traceops.measure.steps import NO_STEP, find_steps

MS = 1_000_000


def test_a_mark_on_the_cpu_that_holds_no_operator_is_no_step():
    """A profiler's step() right after another: a program was said to spend 100 % of 14 µs outside torch."""
    work = [note("aten::mm", at * MS, MS, cat="cpu_op") for at in range(2, 12, 2)]
    events = build([step(1, 20 * MS, 14_000), *work])
    steps = find_steps(events, find_activity(events))
    assert (steps.number.tolist(), steps.empty) == ([NO_STEP], (1,))
    assert steps.edges.tolist() == [2 * MS, 11 * MS]


def test_a_mark_with_one_operator_is_a_step():
    events = build([step(1, 0, 10 * MS), note("aten::mm", 2 * MS, MS, cat="cpu_op")])
    assert find_steps(events, find_activity(events)).number.tolist() == [1]
