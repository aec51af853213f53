"""Where a thread waits for a backend's threads: joins without a GPU, and operators that wait inside."""

import numpy as np
import pytest
from events_builder import MAIN, build, note, step

from traceops.measure.activity import COMM, COMPUTE, find_activity
from traceops.measure.ledger import find_lane, ledger_of
from traceops.measure.program import measure_program
from traceops.measure.steps import find_steps

GLOO, OTHER_GLOO = 3, 4  # the backend's threads
MS = 1_000_000


def op(start_ms, end_ms, name="aten::mm", tid=MAIN):
    return note(name, round(start_ms * MS), round((end_ms - start_ms) * MS), tid, "cpu_op")


def gloo(start_ms, end_ms, tid=GLOO):
    return note("gloo:all_reduce", round(start_ms * MS), round((end_ms - start_ms) * MS), tid)


def joins(*rows):
    """(start, end, end of the collective waited for) of each join of one step of 100 ms, and unheld time, in ms."""
    events = build([step(3, 0, 100 * MS), *rows])
    activity = find_activity(events)
    steps = find_steps(events, activity)
    lane = find_lane(events, activity, steps)
    comm = np.flatnonzero(activity.kind == COMM)
    comm = comm[np.argsort(activity.start[comm], kind="stable")]
    program = measure_program(events, activity, steps, lane, comm)
    ends = activity.end[comm][program.join_comm]
    found = zip(program.join_start.tolist(), program.join_end.tolist(), ends.tolist(), strict=True)
    return [tuple(t / MS for t in one) for one in found], program.unheld.total / MS


def test_a_thread_that_is_woken_a_little_late_waited_though_another_collective_goes_on():
    rows = [op(0, 10), gloo(8, 60), gloo(9, 70, OTHER_GLOO), op(60.08, 60.4), op(70.06, 72)]
    found, unheld = joins(*rows)
    assert found == [(10, 60.08, 60), (60.4, 70, 70)]
    assert unheld == 0


def test_a_thread_that_goes_on_before_the_backend_recorded_the_end_waited():
    found, _ = joins(op(0, 10), gloo(8, 61.3), op(60, 72))
    assert found == [(10, 60, 61.3)]


def test_a_thread_that_goes_on_in_the_middle_of_a_collective_did_not_wait_for_it():
    found, unheld = joins(op(0, 10), gloo(8, 90), op(30, 95))
    assert (found, unheld) == ([], 0)


def test_short_breaks_between_operators_are_no_waiting():
    found, unheld = joins(op(0, 10), gloo(8, 90), op(10.4, 20), op(20.3, 95))
    assert (found, unheld) == ([], pytest.approx(0.7))


def test_a_collective_that_was_over_before_the_break_is_not_what_it_waited_for():
    found, _ = joins(op(0, 10), gloo(5, 9.99), gloo(6, 60, OTHER_GLOO), op(10.05, 95))
    assert found == []


def ledger(*rows):
    events = build([step(3, 0, 100 * MS), *rows])
    activity = find_activity(events)
    steps = find_steps(events, activity)
    buckets = ledger_of(find_lane(events, activity, steps), steps).buckets
    return activity, {name: ns[0] / MS for name, ns in buckets.items() if ns[0]}


@pytest.mark.parametrize("call", ["_c10d_functional::wait_tensor", "c10d_functional::wait_tensor", "c10d::allreduce_"])
def test_an_operator_that_waits_inside_for_a_collective_computes_only_in_what_it_calls(call):
    """DTensor's aten::addmm holds the wait for its operand and then the product itself."""
    activity, buckets = ledger(
        op(0, 2, "aten::linear"), gloo(1, 54),
        op(2, 60, "aten::addmm"), op(2.5, 54.1, call), op(54.5, 59.5, "aten::addmm"),
    )  # fmt: skip
    assert buckets == {"compute": 7, "comm": 52, "idle_host": pytest.approx(41)}
    assert (activity.kind == COMPUTE).sum() == 2


def test_waits_of_another_thread_leave_an_operator_whole():
    _, buckets = ledger(op(2, 60, "aten::addmm"), op(2.5, 54.1, "_c10d_functional::wait_tensor", 7))
    assert buckets["compute"] == 58


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("aten::cudnn_convolution", True),
        ("aten::_cudnn_rnn", True),
        ("aten::miopen_batch_norm", True),
        ("aten::_mps_convolution", True),
        ("aten::linear_backward", True),  # of MPS
        ("aten::cudnn_is_acceptable", False),  # asked on a CPU too
        ("aten::mkldnn_convolution", False),
    ],
)
def test_operators_that_run_on_a_gpu_only_tell_that_its_kernels_are_missing(name, lost):
    """A trace that recorded the CPU alone is not one of a run without a GPU."""
    assert find_activity(build([step(3, 0, 100 * MS), op(0, 10, name)])).lost is lost


def test_nested_tensors_on_a_cpu_run_what_else_an_apple_gpu_does():
    rows = [step(3, 0, 100 * MS), op(0, 9, "aten::linear_backward"), op(10, 12, "aten::_nested_tensor_size")]
    assert not find_activity(build(rows)).lost


def test_a_region_of_the_programs_own_is_no_such_operator():
    """record_function("cudnn_warmup") on a CPU was a trace of which the GPU's activity is missing."""
    assert not find_activity(build([step(3, 0, 100 * MS), op(0, 9), note("cudnn_warmup", 0, 10 * MS)])).lost
