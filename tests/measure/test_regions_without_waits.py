"""What the host was in, without what it waits for inside: an operator that waits for a collective is no longer one."""

from events_builder import MAIN, build, note, step

from traceops.measure.activity import find_activity
from traceops.measure.host import measure_host
from traceops.measure.ledger import find_lane
from traceops.measure.steps import find_steps
from traceops.traces.model import TraceMeta

MS = 1_000_000


def op(start_ms, end_ms, name):
    return note(name, start_ms * MS, (end_ms - start_ms) * MS, MAIN, "cpu_op")


def test_what_dtensors_operators_wait_for_inside_is_no_time_of_theirs():
    """`aten::add` waited 137 ms a step for a late peer, its peers 27: a host late in that region, and no remark."""
    rows = [op(0, 40, "aten::add"), op(1, 39, "_c10d_functional::wait_tensor"), op(50, 60, "aten::mm")]
    events = build([step(3, 0, 100 * MS), *rows])
    activity = find_activity(events)
    steps = find_steps(events, activity)
    told = dict(measure_host(activity, steps, TraceMeta(), find_lane(events, activity, steps)).regions)
    assert told["aten::add"] == 2 and told["aten::mm"] == 10
