"""The flight recorder's dumps: versions, sizes, damage, odd files, and what a collective carries."""

import json
import os
import pickle
import random
from pathlib import Path

import pytest
from generated_hang import Fault, Job, Step, dumps, random_job, run, write

from traceops.cli import main
from traceops.core.errors import InputError
from traceops.core.rank_text import first_ranks, ranks_in, runs_of, runs_text, runs_without
from traceops.hangs import given as run_files
from traceops.hangs.diagnose import diagnose
from traceops.hangs.in_report import evidence_hint
from traceops.hangs.job import World, world_of
from traceops.hangs.readers.flight_recorder import is_dump, read_dump
from traceops.pipeline.analyze import find_traces
from traceops.report.hang_text import root_sentence
from traceops.traces.run_manifest import MOST_RANKS

DATA = Path(__file__).parents[1] / "data" / "hangs"


def entry(number, op="all_reduce", state="completed", **more):
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 10**18 + number,
        "input_sizes": [[8, 2]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8, 2]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": 10**18 + number if state != "scheduled" else None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
        **more,
    }


def dump(entries, ranks="[0, 1]", **more):
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "comm_lib_version": "2.28.9",
        "pg_status": {"0": {"last_enqueued_collective": len(entries), "last_completed_collective": len(entries)}},
        "entries": entries,
        **more,
    }


@pytest.fixture
def read(tmp_path):
    def run(content, name="fr_0"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=2))
        return read_dump(path, 0)

    return run


def test_an_operation_has_what_the_dump_tells(read):
    record, damage = read(dump([entry(0), entry(1, state="started")]))

    assert damage == ""
    operation = record.operations[1]
    assert (operation.op, operation.sequence, operation.state) == ("all_reduce", 2, "started")
    assert operation.sizes_in == ((8, 2),)
    assert operation.dtypes_in == ("Float",)
    assert str(operation.frames[0]) == "step (train.py:7)"
    assert record.groups["0"].ranks == (0, 1)
    assert record.nccl_version == "2.28.9"
    assert record.whole
    assert record.timed


def test_json_and_pickle_tell_the_same(read):
    document = dump([entry(0), entry(1, state="scheduled")])

    from_pickle, _ = read(document)
    from_json, _ = read(json.dumps(document).encode(), "fr_0.json")

    assert from_json.operations == from_pickle.operations
    assert from_json.groups == from_pickle.groups
    assert from_json.status == from_pickle.status


def test_numbers_as_text_in_json_status(read):
    document = dump([entry(0)], pg_status={"0": {"last_enqueued_collective": "7", "last_completed_collective": "6"}})

    record, _ = read(json.dumps(document).encode())

    assert (record.status["0"].enqueued, record.status["0"].completed) == (7, 6)


def test_gloo_tells_the_end_by_retiring(read):
    record, _ = read(dump([entry(0, state="scheduled", retired=True), entry(1, state="scheduled")]))

    assert [operation.state for operation in record.operations] == ["completed", "scheduled"]


def test_gloo_lists_no_members(read):
    record, _ = read(dump([entry(0)], pg_config={"": {"name": "", "desc": "", "ranks": "[]"}}))

    assert record.groups["0"].ranks is None
    assert record.groups["0"].description == "default_pg"


def test_the_first_form_was_a_list_with_one_count(read):
    old = {key: value for key, value in entry(0).items() if key not in ("process_group", "collective_seq_id")}

    record, _ = read([{**old, "seq_id": 5}])

    assert record.operations[0].sequence == 5
    assert record.operations[0].group == "0"


@pytest.mark.parametrize(
    ("name", "op", "peer"), [("send 0->1", "send", 9), ("recv 0<-1", "recv", 9), ("send 1->0", "send", 4)]
)
def test_the_peer_of_a_message_is_counted_inside_its_group(read, name, op, peer):
    record, _ = read(dump([entry(0, name, is_p2p=True, p2p_seq_id=3)], ranks="[4, 9]"))

    operation = record.operations[0]
    assert (operation.op, operation.peer, operation.sequence, operation.is_p2p) == (op, peer, 3, True)


def test_messages_of_one_batch_have_the_state_of_their_launch(read):
    entries = [
        entry(0, "send 0->1", "scheduled", is_p2p=True, p2p_seq_id=1),
        entry(1, "recv 0<-1", "scheduled", is_p2p=True, p2p_seq_id=1),
        entry(2, "coalesced", "completed", is_p2p=True, p2p_seq_id=1),
    ]

    record, _ = read(dump(entries))

    assert [(operation.op, operation.state) for operation in record.operations] == [
        ("send", "completed"),
        ("recv", "completed"),
    ]


def test_collectives_of_one_launch_are_one_operation(read):
    entries = [
        entry(0, "_all_gather_base", "scheduled", collective_seq_id=4),
        entry(1, "_all_gather_base", "scheduled", collective_seq_id=4),
        entry(2, "coalesced", "started", collective_seq_id=4),
    ]

    record, _ = read(dump(entries))

    (operation,) = record.operations
    assert (operation.op, operation.state, operation.sequence) == ("_all_gather_base", "started", 4)
    assert operation.sizes_in == ((8, 2), (8, 2))


def test_the_status_of_a_group_with_messages_counts_both_so_entries_are_asked(read):
    entries = [
        entry(0, "all_reduce", collective_seq_id=29, p2p_seq_id=13998),
        entry(1, "send 0->1", "scheduled", is_p2p=True, collective_seq_id=29, p2p_seq_id=13999),
    ]
    status = {"0": {"last_enqueued_collective": 13999, "last_completed_collective": 13998}}

    record, _ = read(dump(entries, pg_status=status))

    assert record.status["0"].enqueued == 29
    assert record.status["0"].completed == 29
    assert record.status["0"].messages == 13999


def test_a_ring_that_has_wrapped_is_not_whole(read):
    record, _ = read(dump([entry(5), entry(6)]))

    assert not record.whole
    assert not record.active_only


def test_only_active_operations(read):
    record, _ = read(dump([entry(5, state="scheduled"), entry(9, state="scheduled")]))

    assert record.active_only


def test_nothing_in_a_pickle_is_executed(read, tmp_path):
    class Hostile:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'ran'}",))

    with pytest.raises(InputError, match=r"fr_0 is not a flight-recorder dump and was not opened: it asks for"):
        read(dump([entry(0), Hostile()]))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nsystem\n(S'true'\ntR.",  # a global
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",  # the same, by stack
        b"\x80\x02\x82\x01.",  # an extension
        b"\x80\x02Ppersistent\n.",
        b"\x80\x02(ios\nsystem\n.",  # an instance
        b"\x80\x05\x97.",  # an out-of-band buffer
    ],
)
def test_every_way_out_of_a_pickle_is_closed(read, data):
    with pytest.raises(InputError, match="fr_0"):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02}r\xf0\xff\xff\xff.",  # a memo of 4 billion places
        b"\x80\x02\x8b\xff\xff\xff\x7f",  # a number of 2 GB
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f",  # a text of 8 EB
        b"\x80\x02" + b"(" * 100_000,
        b"\x80\x02" + b"]" * 50_000 + b"a" * 50_000 + b".",
        b"\x80",
        b"\x80\x02.",
        b"\x80\x02N.",
        b"\x80\x02K\x05.",
    ],
)
def test_garbage_is_an_error_that_names_the_file(read, data):
    with pytest.raises(InputError, match="fr_0"):
        read(data)


def test_a_list_that_holds_itself(read):
    entries = [entry(0)]
    entries.append(entries)

    record, damage = read({"entries": entries})

    assert len(record.operations) == 1
    assert "1 of its entries" in damage


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_cut_off_pickle_gives_what_came_before_the_cut(read, share):
    data = pickle.dumps(dump([entry(i) for i in range(40)]), protocol=2)

    record, damage = read(data[: int(len(data) * share)])

    assert "cut off" in damage
    assert 0 < len(record.operations) < 40
    assert record.operations[0].sequence == 1
    assert record.groups["0"].ranks == (0, 1)
    assert not record.whole


def test_every_cut_is_readable_or_an_error(read):
    data = pickle.dumps(dump([entry(i) for i in range(3)]), protocol=2)

    for end in range(len(data)):
        try:
            record, damage = read(data[:end])
        except InputError as error:
            assert "fr_0" in str(error)
        else:
            assert damage
            assert len(record.operations) <= 3


@pytest.mark.parametrize("change", [{"entries": 5}, {"entries": {"a": 1}}, {"pg_config": [1], "entries": []}])
def test_a_dump_without_entries_or_groups_is_none(read, change):
    with pytest.raises(InputError, match="fr_0"):
        read({**dump([]), "pg_status": {}, **({"pg_config": {}} | change)})


@pytest.mark.parametrize(
    "odd",
    [
        {"record_id": "x"}, {"collective_seq_id": None}, {"input_sizes": 3}, {"input_sizes": [["a"], -1]},
        {"frames": "none"}, {"frames": [1, {"line": "x"}]}, {"process_group": []}, {"process_group": None},
        {"state": 7}, {"input_dtypes": [None]}, {"time_created_ns": "later"}, {"profiling_name": ""},
        {"collective_seq_id": 10**400}, {"collective_seq_id": True}, {"profiling_name": "send 1->"},
    ],
)  # fmt: skip
def test_an_entry_with_odd_fields_hides_no_other(read, odd):
    record, _ = read(dump([entry(0), entry(1, **odd), entry(2)]))

    assert len(record.operations) == 3


def test_only_dumps_look_like_dumps():
    assert is_dump(b"\x80\x02}q\x00")
    assert is_dump(b'{"comm_lib_version":"","entries":[{"coll')
    assert not is_dump(b'{"traceEvents": []}')
    assert not is_dump(b"[rank0]: Traceback")
    assert not is_dump(b"")


@pytest.fixture
def folder(tmp_path):
    job = random_job(random.Random(5), 32)
    own = job.own(9)
    fault = Fault("host", 9, own[len(own) // 2])
    return write(tmp_path / "job", dumps(run(job, [fault]), [fault]))


def test_processes_and_none_read_the_same(folder, monkeypatch):
    here = diagnose(folder, jobs=1)
    monkeypatch.setattr(run_files, "_POOL_WORTH_BYTES", 0)

    assert diagnose(folder, jobs=3) == here
    assert [root.ranks for root in here.roots] == [(9,)]


def test_a_bad_dump_costs_itself_only(folder, monkeypatch):
    monkeypatch.setattr(run_files, "_POOL_WORTH_BYTES", 0)
    (folder / "nccl_trace_rank_3").write_bytes(b"\x80\x02cos\nsystem\n.")

    found = diagnose(folder, jobs=3)

    assert [root.ranks for root in found.roots] == [(9,)]
    ((path, problem),) = found.evidence.problems
    assert path.endswith("nccl_trace_rank_3")
    assert "was not opened" in problem


DUMP = {"version": "2.5", "pg_config": {}, "entries": [{"record_id": 0}]}


@pytest.mark.parametrize("name", ["_dump_9", "attempt_0/dump9", "dump_rank_0.json"])
def test_a_dump_is_known_by_what_is_in_it(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(json.dumps(DUMP).encode() if name.endswith("json") else pickle.dumps(DUMP, 2))
    for given in (tmp_path, path):
        with pytest.raises(InputError, match="dump of the flight recorder, though: traceops diagnose"):
            find_traces(str(given))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pickle.dumps({"state": 1}, 2),
        b'{"distributedInfo": {"pg_config": [], "entries": 1}, "traceEvents": [',
        b'{"entries": [1]}',
    ],
)
def test_other_files_are_no_dumps(tmp_path, content):
    (tmp_path / "rank0.json").write_bytes(content)
    assert evidence_hint(str(tmp_path)) == ""


ODD = (
    '{"kind": "step", "stalled_s": 1e400, "ranks": 5}',
    '{"kind": "step", "stalled_s": 3, "limit_s": "x", "noticed_ns": "y", "notes": 5, "ranks": [{"rank": 1, "pid": [1], '
    '"state": {}, "step": "a", "exit_code": [1], "phase": 3, "heartbeat_age_s": "x"}]}',
    '{"kind": "step", "stalled_s": true, "notes": 5, "ranks": {"a": 1}}',
    '{"kind": ["step"], "stalled_s": 1}',
    '{"kind": "step", "stalled_s": NaN, "limit_s": NaN, "ranks": [{"rank": true, "exit_code": 1e10, "step": NaN}]}',
    '{"kind": "step", "stalled_s": 1, "noticed_ns": 1e999, "ranks": [{"rank": 2, "exit_code": 99999999999999999999}]}',
    '{"rank": 1, "groups": {"0": {"ranks": [1, "a"]}, "1": 5, "2": {"ranks": [true, -5]}}, "world_size": -3}',
    '{"rank": -1, "groups": {"0": {"ranks": [1, 2]}}, "world_size": 99999999999999}',
)


@pytest.mark.parametrize("text", ODD)
def test_odd_values_cost_themselves_only(tmp_path, text):
    fault = Fault("host", 2, 4)
    job = run(Job(3, [Step("world", (0, 1, 2))] * 6, {"world": (0, 1, 2)}, ahead=0), [fault])
    folder = write(tmp_path, dumps(job, [fault]))
    (folder / "hang.0.json").write_text(text)
    (folder / "groups_1.json").write_text(text)

    assert [(root.rule, root.ranks) for root in diagnose(folder).roots] == [("TO-H001", (2,))]


def test_a_manifest_with_odd_rows(tmp_path):
    fault = Fault("host", 2, 4)
    job = run(Job(3, [Step("world", (0, 1, 2))] * 6, {"world": (0, 1, 2)}, ahead=0), [fault])
    write(tmp_path / "evidence", dumps(job, [fault]))
    (tmp_path / "run.json").write_text(
        '{"ranks": [1, "a", {"rank": "x"}, {"rank": 1, "host": [1]}], "world_size": "q", "failed_rank": [1]}'
    )

    assert [(root.rule, root.ranks) for root in diagnose(tmp_path).roots] == [("TO-H001", (2,))]


# As torch 2.9 logs a monitored barrier that two ranks did not reach; the second number was put there.
BARRIER = (
    "[rank0]:[E1121 07:50:32.927786212 ProcessGroupGloo.cpp:67] [Rank 0]: Ranks 1, 999999 failed to pass "
    "monitoredBarrier in 1000 ms\n"
)


def written(tmp_path):
    return sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_a_number_in_a_log_makes_no_rows(tmp_path, capsys):
    (tmp_path / "log.txt").write_text(BARRIER)
    assert main(["diagnose", str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    held = json.loads((tmp_path / "out" / "hang.json").read_text())
    assert held["run"]["world_size"] is None
    assert [row["rank"] for row in held["hang"]["ranks"]] == [0, 1, 999_999]
    assert held["hang"]["roots"][0]["ranks"] == [1, 999_999]
    assert written(tmp_path) < 100_000
    assert "1, 999999" in capsys.readouterr().out


def test_a_rank_that_the_job_does_not_have_is_left_out_and_said(tmp_path):
    (tmp_path / "run.json").write_text('{"world_size": 3, "nnodes": 1}')
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0.stderr.log").write_text(BARRIER)
    found = diagnose(tmp_path)
    assert (found.evidence.world_size, [root.ranks for root in found.roots]) == (3, [(1,)])
    ((path, what),) = found.evidence.problems
    assert path.endswith("rank_0.stderr.log")
    assert what == "it names rank 999999, which is not one of the job's 3 ranks (from line 1); that is left out"


def test_a_large_world_is_told_in_runs(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps({"world_size": MOST_RANKS}))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_7.stderr.log").write_text(BARRIER.replace("999999", "9").replace("ank0", "ank7"))
    assert main(["diagnose", str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    run = json.loads((tmp_path / "out" / "hang.json").read_text())["run"]
    assert run["world_size"] == MOST_RANKS and run["ranks_present"] == [7]
    assert run["ranks_missing_runs"] == [[0, 6], [8, MOST_RANKS - 1]]
    assert run["ranks_missing"] == [*range(7), *range(8, 4097)]
    assert f"Nothing is known of ranks 0-6, 8-{MOST_RANKS - 1}." in capsys.readouterr().out
    page = (tmp_path / "out" / "hang.html").read_text()
    assert f"ranks 0–6, 8–{MOST_RANKS - 1}" in page
    assert written(tmp_path) < 200_000


def test_a_large_world_of_a_trace_is_told_in_runs(tmp_path):
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 5, "dur": 1}'
    trace = f'{{"distributedInfo": {{"rank": 2, "world_size": {MOST_RANKS}}}, "traceEvents": [{event}]}}'
    (tmp_path / "rank_2.json").write_text(trace)
    assert main(["analyze", str(tmp_path), "-o", str(tmp_path / "out"), "-q"]) == 0
    run = json.loads((tmp_path / "out" / "report.json").read_text())["run"]
    assert run["ranks_missing_runs"] == [[0, 1], [3, MOST_RANKS - 1]] and len(run["ranks_missing"]) == 4096
    assert f"0–1, 3–{MOST_RANKS - 1}" in (tmp_path / "out" / "summary.html").read_text()
    assert (tmp_path / "out" / "report.json").stat().st_size < 200_000


@pytest.mark.parametrize(
    ("told", "own", "named", "world"),
    [
        ([], [], [], None),
        ([], [], [0, 1, 2], 3),
        ([], [], [500], 501),  # few ranks are believed
        ([], [0], [1500], None),  # so many are not, of two that are known
        ([], range(0, 1600, 10), [1500], 1591),  # but of a tenth of them they are
        ([4], [0], [5], 6),
        ([4], [0], [999_999], 4),
        ([4], [999_999], [], None),
        ([MOST_RANKS], [0], [], MOST_RANKS),
        ([MOST_RANKS + 1, -1, 0], [0], [], 1),
    ],
)
def test_how_many_ranks_the_job_has(told, own, named, world):
    found = world_of([World(size, "run") for size in told], set(own), set(named))
    assert (None if found is None else found.size) == world


def test_runs():
    assert runs_of([3, 1, 2, 2, 7]) == ((1, 3), (7, 7))
    assert runs_without(10, [0, 1, 5, 12, -1]) == ((2, 4), (6, 9))
    assert runs_without(3, []) == ((0, 2),) and runs_without(2, [0, 1]) == () == runs_without(0, [])
    assert ranks_in(((1, 3), (7, 7))) == 4
    assert first_ranks(((0, 1), (5, 10**9)), 4) == (0, 1, 5, 6) and first_ranks((), 4) == ()
    assert runs_text(((0, 1), (5, 10**9)), 1) == "0–1 … (999999998 in all)"


LIKELY = "14,845,952 elements are likely 28996×512, the embedding or head of a vocabulary of 28,996 (bert-base-cased)"


def dump_calls(
    path: Path, rank: int, calls: int, elements: int, *, name: str = "all_reduce", own: bool = False
) -> None:
    file = "/site-packages/torch/distributed/distributed_c10d.py" if own else "/home/me/train.py"
    frames = [{"name": "all_reduce" if own else "step", "filename": file, "line": 7}]
    entries = [
        {
            "frames": frames, "record_id": i, "pg_id": 0, "process_group": ("0", "default_pg"),
            "collective_seq_id": i + 1, "p2p_seq_id": 0, "op_id": i + 1,
            "profiling_name": f"nccl:{name}", "time_created_ns": 10**18 + i,
            "input_sizes": [[elements]], "input_dtypes": ["Float"], "output_sizes": [[elements]],
            "output_dtypes": ["Float"], "is_p2p": False, "timeout_ms": 600000, "retired": i < 2,
            "state": "completed" if i < 2 else "started", "time_discovered_started_ns": 10**18 + i,
            "time_discovered_completed_ns": None,
        }
        for i in range(calls)
    ]  # fmt: skip
    document = {
        "version": "2.10", "entries": entries,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": calls, "last_completed_collective": 2}},
    }  # fmt: skip
    (path / f"dump_rank_{rank}").write_bytes(pickle.dumps(document))


def told(folder: Path, elements: int, *rows: dict[str, object], **options: bool) -> str:
    dump_calls(folder, 0, 3, elements, **options)
    dump_calls(folder, 1, 2, elements, **options)
    if rows:
        (folder / "parameters_0.json").write_text(json.dumps({"rank": 0, "collectives": list(rows)}))
    (root,) = diagnose(folder, jobs=1).roots
    assert (root.rule, root.ranks) == ("TO-H001", (1,))
    return root_sentence(root)


def model(*sizes: int, cap: int = 16_000, **more: object) -> dict[str, object]:
    """Under DDP, of parameters w0, w1, … of so many elements of four bytes."""
    parameters = [(f"w{number}", size, 4 * size) for number, size in enumerate(sizes)]
    return {"strategy": "ddp", "group": "0", "cap_bytes": cap, "parameters": parameters, **more}


def test_a_bucket_is_named_by_its_parameters(tmp_path: Path) -> None:
    said = told(tmp_path, 5000, model(90_000, 4000, 600, 300, 100, 8000))
    assert said.endswith(". The all_reduce has the gradients of w1 and 3 more.")


def test_buckets_of_one_size_are_not_told_apart(tmp_path: Path) -> None:
    assert "the gradients of w0, or of one of 2 other buckets of the same size." in told(
        tmp_path, 5000, model(5000, 5000, 5000, cap=20_000)
    )


@pytest.mark.parametrize(
    "row",
    [
        model(9000, 5000, 9000, group="7"),
        model(9000, 5001, 9000),
        model(9000, 3000, 2000, 9000, cap=40_000),  # a bucket that is not full, and not the model's first parameters
        model(9000, 1000, 4000, 9000, cap=15_000),  # one that had been full before
        {"strategy": "fsdp", "group": "0", "elements": 9000, "shard": 4500, "names": ["w"], "count": 1},
    ],
)
def test_another_group_size_or_kind_is_no_name(tmp_path: Path, row: dict[str, object]) -> None:
    assert "gradients" not in told(tmp_path, 5000, row)


def test_a_collective_that_the_program_called_is_not_ddps(tmp_path: Path) -> None:
    assert "gradients" not in told(tmp_path, 5000, model(5000), own=True)


def test_a_shard_that_is_gathered_has_parameters(tmp_path: Path) -> None:
    row = {"strategy": "fsdp", "group": "0", "elements": 10_000, "shard": 5000, "names": ["attn.wq.weight"], "count": 1}
    said = told(tmp_path, 5000, row, name="_all_gather_base")
    assert said.endswith("The _all_gather_base has the parameters of attn.wq.weight.")


def test_from_a_log_alone_a_likely_shape_is_offered_as_such(tmp_path: Path) -> None:
    line = (
        "[rank0]:[E1120 10:00:00.561 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=64, OpType=ALLREDUCE, NumelIn={0}, NumelOut={0}, Timeout(ms)=600000) ran for 600029 "
        'milliseconds before timing out.\n[rank1]: Traceback (most recent call last):\n[rank1]:   File "/me/train.py", '
        "line 3, in f\n[rank1]: ValueError: bad\n"
    )
    for elements, likely in ((14_845_952, True), (14_845_953, False), (28996 * 500, False)):
        (tmp_path / "train.log").write_text(line.format(elements))
        found = diagnose(tmp_path)
        said = " ".join(root_sentence(root) for root in found.roots)
        assert (LIKELY in said) == likely, said


@pytest.mark.parametrize("text", ['{"rank": 0}', '{"rank": 0, "collectives": [1, {"elements": 5}, {"names": ["a"]}]}'])
def test_a_file_that_tells_nothing_names_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "parameters_0.json").write_text(text)
    assert "gradients" not in told(tmp_path, 5000)
