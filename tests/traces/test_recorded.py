"""What the capture adds to a trace of gloo's collectives is found again at the events it is of."""

import json

import pytest

from traceops.capture.trace_file import add_to_trace
from traceops.core.rank_files import COLLECTIVES
from traceops.traces.kineto import load_trace

BASE = 1_700_000_000_000_000_000
GROUPS = {
    "rank": 1,
    "world_size": 4,
    "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
        {"pg_name": "1", "pg_desc": "mesh_dp", "ranks": [1, 3]},
        {"pg_name": "3", "pg_desc": "mesh_tp", "ranks": [0, 1]},
    ],
}


def traced(tmp_path, names, rows):
    """A trace in which these events begin 10 µs apart, with `rows` added as the capture does."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 2, "ts": 10.0 * number, "dur": 5.0}
        for number, name in enumerate(names)
    ]
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps({"baseTimeNanoseconds": BASE, "distributedInfo": GROUPS, "traceEvents": events, "traceName": "x"})
    )
    add_to_trace(path, rows)
    assert json.loads(path.read_text()).get(COLLECTIVES, []) == rows
    trace = load_trace(str(path))
    assert not trace.damage
    return trace.events.comm


def row(name, group, description, sequence, at_us):
    return [name, group, description, sequence, 8, 16, "Float", BASE + 1000 * at_us]


def test_collectives_of_several_groups_get_theirs(tmp_path):
    rows = [
        row("gloo:all_reduce", "0", "default_pg", 1, -5000),  # before the window
        row("gloo:all_reduce", "1", "mesh_dp", 7, 0),
        row("gloo:all_reduce", "3", "mesh_tp", 9, 8),
        row("gloo:all_to_all", "3", "mesh_tp", 10, 19),
        row("gloo:all_reduce", "0", "default_pg", 2, 9000),  # called when the window was over
    ]
    comm = traced(tmp_path, ["gloo:all_reduce", "gloo:all_reduce", "gloo:all_to_all"], rows)
    assert [(c.op, c.group_ranks, c.group_description, c.sequence) for _, c in sorted(comm.items())] == [
        ("all_reduce", (1, 3), "mesh_dp", 7),
        ("all_reduce", (0, 1), "mesh_tp", 9),
        ("all_to_all", (0, 1), "mesh_tp", 10),
    ]
    assert (comm[0].elements_in, comm[0].elements_out, comm[0].dtype) == (8, 16, "Float")


def test_what_does_not_fit_the_calls_is_left(tmp_path):
    """The first event would have begun 3 ms before it was called."""
    rows = [row("gloo:all_reduce", "1", "mesh_dp", number, at) for number, at in ((1, 3000), (2, 3500))]
    assert not traced(tmp_path, ["gloo:all_reduce", *["x"] * 500, "gloo:all_reduce"], rows)
    assert len(traced(tmp_path, [*["x"] * 400, "gloo:all_reduce", *["x"] * 100, "gloo:all_reduce"], rows)) == 2


def unfollowed(groups, *, calls=12, unseen=(4, 8)):
    """Calls 10 ms apart, taking turns of these groups; between two, another thread's of the default group."""
    rows = [row("gloo:all_reduce", *groups[n % len(groups)], n + 1, 10_000 * n + 20_000) for n in range(calls)]
    return rows + [row("gloo:all_reduce", "0", "default_pg", n, 10_000 * n + 25_000) for n in unseen]


EVERY_10_MS = [name for _ in range(12) for name in ("gloo:all_reduce", *["x"] * 999)]


def test_calls_that_a_thread_made_out_of_the_profilers_sight_do_not_shift_the_others(tmp_path):
    """A checkpoint saved in a thread of its own gathers over a group of its own, and leaves no events."""
    events = [*["x"] * 2001, *EVERY_10_MS]
    one = traced(tmp_path, events, unfollowed([("1", "mesh_dp")]))
    assert [(c.group_description, c.sequence) for _, c in sorted(one.items())] == [
        ("mesh_dp", n + 1) for n in range(12)
    ]
    two = traced(tmp_path, events, unfollowed([("1", "mesh_dp"), ("3", "mesh_tp")]))
    assert [(c.group_description, c.sequence) for _, c in sorted(two.items())] == [
        (("mesh_dp", "mesh_tp")[n % 2], n + 1) for n in range(12)
    ]


@pytest.mark.parametrize(
    "rows",
    [
        5,
        "x",
        [5],
        [["gloo:all_reduce"]],
        [[1, 2, 3, 4, 5, 6, 7, 8]],
        [["gloo:a", "b", "c", None, None, None, None, -1]],
    ],
)
def test_what_is_no_record_is_not_believed(tmp_path, rows):
    assert not traced(tmp_path, ["gloo:all_reduce", "gloo:a"], rows)


def test_nothing_is_added_where_nothing_was_recorded(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    add_to_trace(path, [])
    assert path.read_text() == '{"traceEvents": []}'
