"""What a host waits for: launches held back, the allocator, collectives of other threads, joins."""

import numpy as np
import pytest
from events_builder import BACKWARD, MAIN, build, call, kernel, note, step

from traceops.measure.activity import COMM, COMPUTE, find_activity
from traceops.measure.host import measure_held, measure_host, measure_host_work, waiting_calls
from traceops.measure.ledger import find_lane, ledger_of
from traceops.measure.program import measure_program
from traceops.measure.steps import find_steps
from traceops.traces.model import TraceMeta

US = 1_000
MS = 1_000_000


def held(*rows):
    """(name, operator): idle ms and calls, of steps of 10 ms."""
    events = build([step(1, 0, 10 * MS), step(2, 10 * MS, 10 * MS), *rows])
    activity = find_activity(events)
    steps = find_steps(events, activity)
    found = measure_held(activity, steps, find_lane(events, activity, steps))
    return {(one.name, one.operator): (one.idle_ns.sum() / MS, one.count.sum()) for one in found}


def op(name, ts, dur, tid=MAIN):
    return note(name, ts, dur, tid, cat="cpu_op")


def launched(at, tid=MAIN, **more):
    """A kernel of 20 µs, launched by an operator of 30 µs."""
    return [op("aten::mul", at - 10 * US, 30 * US, tid), *kernel(at + 12 * US, 20 * US, at, tid=tid, **more)]


def many(begin, end, tid=MAIN):
    """A launch each 100 µs: the device is idle between them."""
    return [row for at in range(begin, end, 100 * US) for row in launched(at, tid)]


def test_a_wait_costs_nothing_that_came_before_it():
    """5 ms of Python behind a short wait were 'idle after' a long one of 2 ms, behind which 1 ms follows."""
    long = [op("aten::mul", 8 * MS, 30 * US), *kernel(8 * MS + 40 * US, 2 * MS, 8 * MS + 10 * US)]
    waits = [call("cudaDeviceSynchronize", at, dur) for at, dur in ((3 * MS, 10 * US), (8_100 * US, 1_960 * US))]
    rows = [*many(100 * US, 3 * MS), *long, *waits, *launched(11 * MS)]
    events = build([step(1, 0, 11_040 * US), *rows])
    activity = find_activity(events)
    steps = find_steps(events, activity)
    [found] = measure_host(activity, steps, TraceMeta(), find_lane(events, activity, steps)).blocking
    assert sum(found.idle_ns) / MS == pytest.approx(1.0, abs=0.1)


def test_idle_time_after_waits_is_a_part_of_that_of_all_blocking():
    """0.34 ms after two waits of 0.21 ms in all: launches that followed late were among it."""
    long = [op("aten::mul", 100 * US, 30 * US), *kernel(140 * US, 2 * MS, 110 * US)]
    waits = [
        call("cudaStreamSynchronize", 112 * US, 21 * US, BACKWARD),
        call("cudaDeviceSynchronize", 150 * US, 1_995 * US),
    ]
    rows = [*long, *waits, *many(2_200 * US, 6 * MS)]
    events = build([step(1, 0, 6 * MS), *rows])
    activity = find_activity(events)
    steps = find_steps(events, activity)
    lane = find_lane(events, activity, steps)
    found = measure_host(activity, steps, TraceMeta(), lane).blocking
    assert [sum(one.idle_ns) for one in found] == [lane.own["idle_sync"].total, 0] == [72 * US, 0]


def test_many_short_launches_are_no_long_thing():
    assert held(*many(100 * US, 20 * MS)) == {}


def test_a_stretch_without_events_is_what_the_trace_does_not_show():
    """Python between two operators that takes 5 ms, once in two steps."""
    found = held(*many(100 * US, 3 * MS), *many(8 * MS, 20 * MS))
    [(key, (ms, count))] = found.items()
    assert (key, count) == (("", ""), 1)
    assert 5.0 <= ms <= 5.2


def test_where_the_program_names_its_own_ranges_the_stretch_is_in_them():
    """As above, half of it in the innermost of two ranges, whose time was 'not shown' all the same."""
    ranges = [note("next video", 2_900 * US, 2_600 * US), note("frames", 3_000 * US, 2_500 * US)]
    found = held(*many(100 * US, 3 * MS), *ranges, *many(8 * MS, 20 * MS))
    assert {key: count for key, (_, count) in found.items()} == {("", "frames"): 1, ("", ""): 1}
    assert [round(ms, 1) for ms, _ in found.values()] == pytest.approx([2.5, 2.5], abs=0.2)


def test_what_torch_compile_names_is_shown():
    """As above, and the trace says that torch.compile was at work."""
    compiles = note("OutputGraph.call_user_compiler (dynamo_timed)", 3_200 * US, 4_500 * US)
    found = held(*many(100 * US, 3 * MS), compiles, *many(8 * MS, 20 * MS))
    assert list(found) == [("OutputGraph.call_user_compiler (dynamo_timed)", "")]


def test_a_call_with_several_stretches_counts_once():
    """One operator of 6 ms, with a short one in its middle."""
    long = op("aten::cudnn_convolution", 3 * MS, 6 * MS)
    found = held(*many(100 * US, 3 * MS), long, op("aten::empty", 5 * MS, 10 * US), *many(9_100 * US, 20 * MS))
    ms, count = found["aten::cudnn_convolution", ""]
    assert count == 1 and 5.9 <= ms <= 6.2


def test_what_runs_beside_the_device_holds_nothing_up():
    busy = kernel(2 * MS, 6 * MS, launched=2 * MS - 12 * US)
    assert held(*many(100 * US, 2 * MS - 100 * US), *busy, *many(8 * MS, 20 * MS)) == {}


def test_an_operator_that_computes_on_the_cpu_is_named():
    long = op("aten::add", 3 * MS, 4 * MS)
    found = held(*many(100 * US, 3 * MS), long, *many(7 * MS + 50 * US, 20 * MS))
    assert found == {("aten::add", ""): (4.0, 1)}


def test_the_innermost_operator_is_named_and_none_that_holds_many_short_ones():
    around = op("Optimizer", 2 * MS, 10 * MS)
    inner = [op("aten::plan", 3 * MS, 4 * MS), op("aten::plan_inner", 4 * MS, 2 * MS)]
    rows = [*many(100 * US, 3 * MS), *many(7 * MS + 50 * US, 20 * MS)]
    assert held(*rows, around, *inner) == {("aten::plan", ""): (2.0, 1), ("aten::plan_inner", ""): (2.0, 1)}


def test_a_call_is_named_with_the_operator_around_it():
    rows = [op("aten::empty", 3 * MS, 4 * MS), call("cudaMalloc", 3 * MS + US, 4 * MS - 2 * US)]
    found = held(*many(100 * US, 3 * MS), *rows, *many(7 * MS + 50 * US, 20 * MS))
    assert found == {("cudaMalloc", "aten::empty"): (3.998, 1)}


def test_a_thread_that_waits_for_backward_is_no_long_thing():
    """loss.backward() leaves nothing on the main thread, and an operator of it may be around all that."""
    rows = [*many(100 * US, 3 * MS), *many(3 * MS, 8 * MS, BACKWARD), *many(8 * MS, 20 * MS)]
    assert held(*rows) == {}
    assert held(*rows, op("Compiled", 3 * MS, 5 * MS)) == {}


def test_of_an_operator_around_backward_only_what_backward_leaves_counts():
    """Backward launches for 3 of the 5 ms of it, and does nothing for 2."""
    rows = [*many(100 * US, 3 * MS), *many(3 * MS, 6 * MS, BACKWARD), *many(8 * MS, 20 * MS)]
    [(key, (ms, count))] = held(*rows, op("Compiled", 3 * MS, 5 * MS)).items()
    assert (key, count) == (("Compiled", ""), 1)
    assert 2.0 <= ms <= 2.1


def test_a_thread_that_only_copies_is_not_what_holds_launches_up():
    """A prefetching thread works for 4 ms in an operator; the main thread is in nothing recorded."""
    copy = kernel(500 * US, 10 * US, launched=450 * US, name="Memcpy HtoD", cat="gpu_memcpy", tid=9)
    rows = [*many(100 * US, 3 * MS), op("aten::stack", 3 * MS, 4 * MS, 9), *copy, *many(7 * MS, 20 * MS)]
    assert list(held(*rows)) == [("", "")]


def test_what_the_host_computes_itself_is_work_on_the_cpu():
    """A mel spectrogram in the training process: many operators, each short, none of which launches anything."""
    work = [op("aten::stft", at, 90 * US) for at in range(2 * MS, 8 * MS, 100 * US)]
    views = [op("aten::view", at, 5 * US) for at in range(9 * MS, 10 * MS, 10 * US)]
    views += [op("aten::split_with_sizes", 11 * MS, 6 * MS)]  # thousands of views of one tensor
    events = build(
        [step(1, 0, 10 * MS), step(2, 10 * MS, 10 * MS), *launched(1 * MS), *work, *views, *launched(19 * MS)]
    )
    activity = find_activity(events)
    steps = find_steps(events, activity)
    found = measure_host_work(activity, steps, find_lane(events, activity, steps))
    assert (found.idle_ns.sum() / MS, found.names) == (5.4, ("aten::stft",))


# A host that stands still in torch's allocator waits for the device: that is not its own pace.


def waits(*rows):
    events = build(list(rows))
    done, end, allocating, _ = waiting_calls(events, find_activity(events))
    return [(at / MS, over / MS) for at, over in zip(done, end, strict=True)], allocating.total / MS


def test_an_allocation_that_fails_waits_until_the_device_is_done():
    """1,000 ms for events of freed blocks that CUPTI does not record; what the frees take then is the host's own."""
    rows = [
        *kernel(MS, 999 * MS, launched=MS // 2),
        note("aten::cat", 2 * MS, 1100 * MS, cat="cpu_op"),
        call("cudaMalloc", 3 * MS, 2 * MS),
        call("cudaFree", 1001 * MS, 6 * MS),
        call("cudaFree", 1007 * MS, 6 * MS),
        call("cudaMalloc", 1013 * MS, 6 * MS),
    ]
    assert waits(*rows) == ([(1000, 1000)], 997)


def test_an_allocation_that_succeeds_waits_for_nothing_once_the_device_is_done():
    rows = [*kernel(MS, MS, launched=MS // 2), note("aten::cat", 2 * MS, 90 * MS, cat="cpu_op")]
    assert waits(*rows, call("cudaMalloc", 3 * MS, 20 * MS)) == ([], 0)
    launched = call("cudaLaunchKernel", 30 * MS, 10)
    assert waits(*rows, call("cudaMalloc", 3 * MS, 2 * MS), launched, call("cudaFree", 60 * MS, MS)) == ([], 0)


def test_a_host_in_the_allocator_beside_communication_is_not_late_by_itself():
    """Of 45 ms in which the next kernel was not launched while ranks waited, 30 went to cudaMalloc."""
    rows = [
        step(3, 0, 100 * MS),
        *kernel(2 * MS, 6 * MS, launched=MS),
        *kernel(10 * MS, 85 * MS, launched=9 * MS, name="ncclDevKernel_SendRecv", stream=20),
        note("aten::cat", 12 * MS, 34 * MS, cat="cpu_op"),
        call("cudaMalloc", 15 * MS, 30 * MS),
        *kernel(55 * MS, 10 * MS, launched=54 * MS),
    ]
    events = build(rows)
    activity = find_activity(events)
    steps = find_steps(events, activity)
    comm = np.flatnonzero(activity.kind == COMM)
    program = measure_program(events, activity, steps, find_lane(events, activity, steps), comm)
    assert program.unheld.within(np.array([10 * MS]), np.array([55 * MS])) == [45 * MS]
    assert (program.allocating.start.tolist(), program.allocating.end.tolist()) == ([15 * MS], [45 * MS])


def test_calls_for_memory_of_the_first_steps_are_none_of_a_usual_one():
    """34, 3 and 3 calls were 13.3 a step."""
    rows = []
    for number, calls in enumerate((34, 3, 3)):
        begin = number * 100 * MS
        rows += [step(number, begin, 100 * MS), *kernel(begin + 90 * MS, 9 * MS, launched=begin + 89 * MS)]
        rows += [call("cudaMalloc", begin + (1 + at) * MS, MS // 2) for at in range(calls)]
    events = build(rows)
    activity = find_activity(events)
    steps = find_steps(events, activity)
    host = measure_host(activity, steps, TraceMeta(), find_lane(events, activity, steps))
    assert host.allocating == (3, 1.5 * MS)


# Where a thread waits for a backend's threads: joins without a GPU, and operators that wait inside.


GLOO, OTHER_GLOO = 3, 4  # the backend's threads


def op_ms(start_ms, end_ms, name="aten::mm", tid=MAIN):
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
    rows = [op_ms(0, 10), gloo(8, 60), gloo(9, 70, OTHER_GLOO), op_ms(60.08, 60.4), op_ms(70.06, 72)]
    found, unheld = joins(*rows)
    assert found == [(10, 60.08, 60), (60.4, 70, 70)]
    assert unheld == 0


def test_a_thread_that_goes_on_before_the_backend_recorded_the_end_waited():
    found, _ = joins(op_ms(0, 10), gloo(8, 61.3), op_ms(60, 72))
    assert found == [(10, 60, 61.3)]


def test_a_thread_that_goes_on_in_the_middle_of_a_collective_did_not_wait_for_it():
    found, unheld = joins(op_ms(0, 10), gloo(8, 90), op_ms(30, 95))
    assert (found, unheld) == ([], 0)


def test_short_breaks_between_operators_are_no_waiting():
    found, unheld = joins(op_ms(0, 10), gloo(8, 90), op_ms(10.4, 20), op_ms(20.3, 95))
    assert (found, unheld) == ([], pytest.approx(0.7))


def test_a_collective_that_was_over_before_the_break_is_not_what_it_waited_for():
    found, _ = joins(op_ms(0, 10), gloo(5, 9.99), gloo(6, 60, OTHER_GLOO), op_ms(10.05, 95))
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
        op_ms(0, 2, "aten::linear"), gloo(1, 54),
        op_ms(2, 60, "aten::addmm"), op_ms(2.5, 54.1, call), op_ms(54.5, 59.5, "aten::addmm"),
    )  # fmt: skip
    assert buckets == {"compute": 7, "comm": 52, "idle_host": pytest.approx(41)}
    assert (activity.kind == COMPUTE).sum() == 2


def test_waits_of_another_thread_leave_an_operator_whole():
    _, buckets = ledger(op_ms(2, 60, "aten::addmm"), op_ms(2.5, 54.1, "_c10d_functional::wait_tensor", 7))
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
    assert find_activity(build([step(3, 0, 100 * MS), op_ms(0, 10, name)])).lost is lost


def test_nested_tensors_on_a_cpu_run_what_else_an_apple_gpu_does():
    rows = [step(3, 0, 100 * MS), op_ms(0, 9, "aten::linear_backward"), op_ms(10, 12, "aten::_nested_tensor_size")]
    assert not find_activity(build(rows)).lost


def test_a_region_of_the_programs_own_is_no_such_operator():
    """record_function("cudnn_warmup") on a CPU was a trace of which the GPU's activity is missing."""
    assert not find_activity(build([step(3, 0, 100 * MS), op_ms(0, 9), note("cudnn_warmup", 0, 10 * MS)])).lost


# What the host was in, without what it waits for inside: an operator that waits for a collective is no longer one.


def region_ms(start_ms, end_ms, name):
    return note(name, start_ms * MS, (end_ms - start_ms) * MS, MAIN, "cpu_op")


def test_what_dtensors_operators_wait_for_inside_is_no_time_of_theirs():
    """`aten::add` waited 137 ms a step for a late peer, its peers 27: a host late in that region, and no remark."""
    rows = [
        region_ms(0, 40, "aten::add"),
        region_ms(1, 39, "_c10d_functional::wait_tensor"),
        region_ms(50, 60, "aten::mm"),
    ]
    events = build([step(3, 0, 100 * MS), *rows])
    activity = find_activity(events)
    steps = find_steps(events, activity)
    told = dict(measure_host(activity, steps, TraceMeta(), find_lane(events, activity, steps)).regions)
    assert told["aten::add"] == 2 and told["aten::mm"] == 10
