"""Flight-recorder dumps: forms of all torch versions, damage, and pickles that want to run something."""

import json
import os
import pickle
from pathlib import Path

import pytest

from traceops.core.errors import InputError
from traceops.hangs.readers.flight_recorder import is_dump, read_dump

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
