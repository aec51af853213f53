"""A host that stands still in torch's allocator waits for the device: that is not its own pace."""

from events_builder import build, call, kernel, note, step

from traceops.measure.activity import find_activity
from traceops.measure.host import measure_host, waiting_calls
from traceops.measure.ledger import find_lane
from traceops.measure.steps import find_steps
from traceops.traces.model import TraceMeta

MS = 1_000_000


def waits(*rows):
    events = build(list(rows))
    done, end, allocating = waiting_calls(events, find_activity(events))
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
    [found] = measure_host(activity, steps, TraceMeta(), find_lane(events, activity, steps)).allocating
    assert (found.count, found.usual, found.usual_ms) == (40, 3, 1.5)
