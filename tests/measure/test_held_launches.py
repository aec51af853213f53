"""What the host was in for long while the device waited for a launch."""

from events_builder import BACKWARD, MAIN, build, call, kernel, note, step

from traceops.measure.activity import find_activity
from traceops.measure.host import measure_held, measure_host_work
from traceops.measure.ledger import find_lane
from traceops.measure.steps import find_steps

US = 1_000
MS = 1_000_000


def held(*rows):
    """(name, operator): idle ms and stretches, of steps of 10 ms."""
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


def test_many_short_launches_are_no_long_thing():
    assert held(*many(100 * US, 20 * MS)) == {}


def test_a_stretch_without_events_is_what_the_trace_does_not_show():
    """Python between two operators that takes 5 ms, once in two steps."""
    found = held(*many(100 * US, 3 * MS), *many(8 * MS, 20 * MS))
    [(key, (ms, count))] = found.items()
    assert (key, count) == (("", ""), 1)
    assert 5.0 <= ms <= 5.2


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
    assert held(*rows, around, *inner) == {("aten::plan", ""): (2.0, 2), ("aten::plan_inner", ""): (2.0, 1)}


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
