"""Sends and receives launched together, groups of one rank, and ranks that cannot be."""

import pickle

from traceops.hangs.diagnose import diagnose

NS = 1_700_000_000_000_000_000


def entry(number, name, state, sequence, *, p2p=False, group=("0", "default_pg"), pg_id=0):
    return {
        "record_id": number, "pg_id": pg_id, "process_group": group, "collective_seq_id": 0 if p2p else sequence,
        "p2p_seq_id": sequence if p2p else 0, "op_id": number + 1, "profiling_name": f"nccl:{name}",
        "time_created_ns": NS + number, "input_sizes": [[8]], "input_dtypes": ["Float"], "output_sizes": [[8]],
        "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": NS, "is_p2p": p2p,
        "retired": state == "completed", "frames": [],
    }  # fmt: skip


def dump(entries, groups):
    config = {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, (desc, ranks) in groups.items()}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def write(folder, dumps):
    for rank, content in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder


def ring(rank, states):
    """batch_isend_irecv around four ranks: a launch of a send and a receive for each of `states`."""
    entries = []
    for sequence, state in enumerate(states, 1):
        names = (f"send {rank}->{(rank + 1) % 4}", f"recv {rank}<-{(rank - 1) % 4}")
        for name in names:
            entries.append(entry(len(entries), name, "scheduled", sequence, p2p=True))
        entries.append(entry(len(entries), "coalesced", state, sequence, p2p=True))
    return dump(entries, {"0": ("default_pg", [0, 1, 2, 3])})


def named(found):
    return [(root.rule, root.ranks, root.confidence, root.waiting) for root in found.roots]


def test_a_ring_waits_for_the_one_that_sends_nothing(tmp_path):
    """The pair of ranks on its far side has come together; their launches wait for it all the same."""
    dumps = {rank: ring(rank, ["completed"] * 3 + ["started"] * (rank != 2)) for rank in range(4)}

    assert named(diagnose(write(tmp_path, dumps))) == [("TO-H001", (2,), "high", (0, 1, 3))]


def test_a_ring_in_which_one_gpu_does_not_start(tmp_path):
    dumps = {rank: ring(rank, ["completed"] * 3 + ["scheduled" if rank == 2 else "started"]) for rank in range(4)}

    assert named(diagnose(write(tmp_path, dumps))) == [("TO-H003", (2,), "high", (0, 1, 3))]


def test_a_ring_that_all_run_is_the_network(tmp_path):
    dumps = {rank: ring(rank, ["completed"] * 3 + ["started"]) for rank in range(4)}

    assert named(diagnose(write(tmp_path, dumps))) == [("TO-H006", (0, 1, 2, 3), "high", ())]


def test_a_collective_of_one_rank_needs_no_network(tmp_path):
    dumps = {}
    for rank in range(3):
        groups = {"0": ("default_pg", [0, 1, 2])} | ({"1": ("OWN", [0])} if rank == 0 else {})
        own = entry(1, "all_reduce", "started", 1, group=("1", "OWN"), pg_id=1)
        second = own if rank == 0 else entry(1, "all_reduce", "started", 2)
        dumps[rank] = dump([entry(0, "all_reduce", "completed", 1), second], groups)

    assert named(diagnose(write(tmp_path, dumps))) == [("TO-H003", (0,), "high", (1, 2))]


def test_a_rank_that_cannot_be_makes_no_world_of_a_billion(tmp_path):
    for rank in range(3):
        entries = [entry(0, "all_reduce", "completed", 1), entry(1, "all_reduce", "started", 2)]
        content = dump(entries, {"0": ("default_pg", [0, 1, 2, 999_999_999])})
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    (tmp_path / "hang.0.json").write_text(
        '{"kind": "step", "stalled_s": 3, "ranks": [{"rank": 1000000000}, {"rank": -5}]}'
    )

    found = diagnose(tmp_path)

    assert found.evidence.world_size == 3
    assert len(found.ranks) < 10


def test_parts_of_finished_launches_in_a_dump_of_unfinished_operations(tmp_path):
    """Only the launch has an end; its sends and receives stay listed as if they still ran."""
    dumps = {rank: ring(rank, ["completed"] * 3 + ["started"] * (rank != 2)) for rank in range(4)}
    for content in dumps.values():
        content["entries"] = [entry for entry in content["entries"] if entry["state"] != "completed"]

    (root,) = diagnose(write(tmp_path, dumps)).roots

    assert (root.rule, root.ranks, root.waiting) == ("TO-H001", (2,), (0, 1, 3))
    assert root.sequence == 4


def test_a_launch_whose_parts_the_ring_forgot_accuses_no_network(tmp_path):
    dumps = {rank: ring(rank, ["completed"] * 3 + ["started"]) for rank in range(4)}
    for content in dumps.values():
        content["entries"] = content["entries"][-1:]

    assert {root.confidence for root in diagnose(write(tmp_path, dumps)).roots} == {"low"}
