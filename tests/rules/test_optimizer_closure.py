"""An optimizer that calls a closure, as LBFGS or in Lightning: the forward and the backward pass are in its step."""

from types import SimpleNamespace

import pytest
from events_builder import BACKWARD, MAIN, build, kernel, note

from traceops.measure.activity import find_activity
from traceops.measure.host import measure_host
from traceops.measure.ledger import find_lane
from traceops.measure.steps import find_steps
from traceops.rules.idle_findings import optimizer_time
from traceops.traces.model import TraceMeta

MS = 1_000_000
STEP = "Optimizer.step#LBFGS.step"
BACK = "autograd::engine::evaluate_function: MmBackward0"


def optimized(backward_at):
    """Three steps of 10 ms, of which the optimizer's takes 8; a backward pass somewhere in each."""
    rows = []
    for number in range(3):
        begin = (1 + 10 * number) * MS
        rows += [note(f"ProfilerStep#{number}", begin, 10 * MS), note(STEP, begin + MS, 8 * MS)]
        rows += [note(BACK, begin + backward_at, MS // 10, tid=BACKWARD, cat="cpu_op")]
        rows += kernel(begin + 5 * MS, MS, launched=begin + 4 * MS, tid=MAIN)
    events = build(rows)
    activity = find_activity(events)
    steps = find_steps(events, activity)
    host = measure_host(activity, steps, TraceMeta(), find_lane(events, activity, steps))
    times = SimpleNamespace(duration=[10.0] * 3, step_ms=10.0, summary=SimpleNamespace(host=host))
    return optimizer_time(times, 5.0)


def test_its_time_is_not_the_optimizers_own():
    """109.8 of 125 ms were said to be "the optimizer alone", with advice to fuse LBFGS."""
    assert optimized(backward_at=3 * MS) is None


def test_one_without_a_closure_has_its_time():
    name, took = optimized(backward_at=MS // 2)
    assert name == STEP and took == pytest.approx(8.0)
