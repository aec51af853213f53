"""What lies beside traces, and what the capture adds to them, is read as far as it can be believed."""

import json
import random

import pytest
from observed_run import STACKS, usual, write_machine, write_rank

from traceops.across.whole_run import whole_run
from traceops.capture.trace_file import add_to_trace
from traceops.core.rank_files import COLLECTIVES, OBSERVED_FILE, RECORD, STEPS_FILE
from traceops.traces.kineto import load_trace
from traceops.traces.observed import read_machines, read_observed
from traceops.traces.run_manifest import ended_cupti, ends_by_calls


def test_what_was_written_is_read(tmp_path):
    write_rank(tmp_path, 3, [usual()] * 20, extra=[["m", 5, 10, 0, 9], ["m", 15, 40, 1, 39]])
    seen, problem = read_observed(str(tmp_path), 3)
    assert problem is None and len(seen.steps) == 20 and seen.rank == 3
    assert len(seen.stacks) == len(STACKS) and seen.samples.shape[1] == 3
    assert seen.allocator.tolist() == [[5, 10, 0, 9], [15, 40, 1, 39]]


def test_nothing_there_is_nothing(tmp_path):
    assert read_observed(str(tmp_path), 0) == (None, None) and read_machines(str(tmp_path)) == []


def test_a_file_that_is_none_is_told(tmp_path):
    write_rank(tmp_path, 0, [usual()])
    (tmp_path / "rank_0" / STEPS_FILE).write_bytes(b"something else")
    seen, problem = read_observed(str(tmp_path), 0)
    assert seen is None and STEPS_FILE in problem


def test_a_record_that_was_cut_off_is_left_out(tmp_path):
    write_rank(tmp_path, 0, [usual()] * 9)
    path = tmp_path / "rank_0" / STEPS_FILE
    path.write_bytes(path.read_bytes()[:-5])
    assert len(read_observed(str(tmp_path), 0)[0].steps) == 8


def test_zeros_at_the_end_are_no_steps(tmp_path):
    """A machine lost its power: steps of no time were the most, and analyze ended with a division by zero."""
    write_rank(tmp_path, 0, [usual()] * 9)
    path = tmp_path / "rank_0" / STEPS_FILE
    whole = path.read_bytes()
    for tail in (whole + bytes(4096), whole[:-5] + bytes(4101)):
        path.write_bytes(tail)
        seen, problem = read_observed(str(tmp_path), 0)
        assert problem is None and len(seen.steps) == 9 and (seen.steps["host_us"] > 0).all()


@pytest.mark.parametrize("garbage", [b"\xff" * 240, b"a text of somebody else's file. " * 9])
def test_what_follows_damage_is_left_out_and_that_is_told(tmp_path, garbage):
    """A disk's garbage was believed: steps of an hour."""
    write_rank(tmp_path, 0, [usual()] * 40)
    path = tmp_path / "rank_0" / STEPS_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[: -20 * RECORD.size] + garbage)
    seen, problem = read_observed(str(tmp_path), 0)
    assert len(seen.steps) == 20 and "is damaged: of its steps the first 20 are used" in problem
    assert seen.steps["host_us"].max() < 60_000_000


def test_damage_costs_what_it_touches(tmp_path):
    write_rank(tmp_path, 0, [usual()] * 40)
    path = tmp_path / "rank_0" / OBSERVED_FILE
    wrong = [
        "no json", "[]", "{}", '["f"]', '["f", 1, 2, 3, 4, 5]', '["s", [10000]]', '["s", "x"]', '["t", [1, 2]]',
        '["t", [0, 99999, 5]]', '["t", [0, -1, 5]]', '["m", 1]', '["m", 1, 2, 3, NaN]', '["c", 1, 2, 3, 4, 5, 6]',
        '["x", 1]', "[" * 5000, '["t", [true, 0, 5]]',
    ]  # fmt: skip
    path.write_text(path.read_text() + "\n".join(wrong) + "\n")
    seen = read_observed(str(tmp_path), 0)[0]
    assert len(seen.samples) and whole_run([seen]).typical_steps == 39


def test_garbage_never_raises(tmp_path):
    write_rank(tmp_path, 0, [usual()] * 30)
    draw = random.Random(11)
    good = {name: (tmp_path / "rank_0" / name).read_bytes() for name in (STEPS_FILE, OBSERVED_FILE)}
    for _ in range(60):
        for name, content in good.items():
            broken = bytearray(content)
            for _ in range(draw.randrange(1, 30)):
                broken[draw.randrange(len(broken))] = draw.randrange(256)
            (tmp_path / "rank_0" / name).write_bytes(bytes(broken))
        seen, _ = read_observed(str(tmp_path), 0)
        if seen is not None:
            whole_run([seen])


def test_a_machines_lines_are_believed_one_by_one(tmp_path):
    good = ["r", 1_800_000_001_000, 0, 100, 5.0, 1.0, 0, 1, 9.0]
    wrong = [
        ["r", 1],
        ["r", "x", 0, 100, 5.0, 1.0, 0, 1, 9.0],
        ["G", 1, 0, 1, 1, 1, 1, 1, 1, 5, []],
        ["g", 0, 1, 2, 3, 4],
    ]
    write_machine(tmp_path, [good, *wrong, ["g", 0, "GPU-a", None, 1980, None]])
    [log] = read_machines(str(tmp_path))
    assert log.ranks == (tuple(good[1:]),) and log.devices == () and log.gpus[0].most_mhz == 1980
    assert json.dumps(log.ranks)


# What the capture adds to a trace of gloo's collectives is found again at the events it is of.


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


# What a run's manifest says of its ranks.


@pytest.mark.parametrize(
    ("ranks", "ended"),
    [
        ([{"detached": {"done": True}}] * 2, True),
        ([{"detached": {"done": True}}], False),
        ([{"detached": {"done": True}}, {"detached": {"done": False}}], False),
        ([{"detached": {"done": True}}, {"detached": {"done": True}, "script_profiler": {"first": 3}}], False),
        ([{}, {}], False),
    ],
)
def test_cupti_was_ended_where_each_rank_of_the_world_says_so(ranks, ended):
    assert ended_cupti({"world_size": 2, "ranks": ranks}) is ended


# Whether a step is a call of the model, as run.json tells.


@pytest.mark.parametrize(
    ("ends", "calls"),
    [
        ([{"LlamaForCausalLM.forward": 384}], True),
        ([{"Sequential.forward": 9}, {}], True),
        ([{"AdamW.step": 40}], False),
        ([{"Net.forward": 9}, {"AdamW.step": 9}], False),
        ([{}], False),
        ([None], False),
    ],
)
def test_steps_end_where_the_model_returns(ends, calls):
    assert ends_by_calls({"ranks": [{"step_ends": one} for one in ends]}) is calls
    assert not ends_by_calls({})
