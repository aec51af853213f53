"""Gloo records no sends and receives, though its counts go on: who waits in one is not to be blamed for sure."""

import json
import pickle

import pytest

from traceops.hangs.diagnose import diagnose


def gloo_dump(collectives, messages, pending):
    """As torch 2.13 writes it: a rank with one group, the last collective not retired where it is `pending`."""
    entries = [
        {
            "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number + 1,
            "p2p_seq_id": 0, "op_id": number + 1 + messages, "profiling_name": "gloo:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + number, "input_sizes": [[8]], "input_dtypes": ["Float"],
            "output_sizes": [[8]], "output_dtypes": ["Float"], "state": "scheduled", "is_p2p": False,
            "retired": not (pending and number == collectives - 1), "frames": [],
        }
        for number in range(collectives)
    ]  # fmt: skip
    last = entries[-1]["op_id"]
    return {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
        "pg_status": {"0": {"last_enqueued_collective": last, "last_completed_collective": last - pending}},
        "entries": entries,
    }


@pytest.fixture
def folder(tmp_path):
    """Ranks 1 and 3 are in collective 20; rank 0 sends to rank 2, which never receives."""
    for rank in range(4):
        inside = rank in (1, 3)
        dump = gloo_dump(20 if inside else 19, 0 if inside else 9, inside)
        (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        members = {"rank": rank, "world_size": 4, "groups": {"0": {"ranks": [0, 1, 2, 3]}}}
        (tmp_path / f"groups_{rank}.json").write_text(json.dumps(members))
    return tmp_path


def stack(function, file):
    return (
        "Thread 0x00007f0000000001 (most recent call first):\n"
        f'  File "{file}", line 10 in {function}\n  File "/home/me/train.py", line 5 in <module>\n'
    )


def test_counts_of_all_calls_are_not_taken_for_those_of_collectives(folder):
    (root,) = diagnose(folder).roots

    assert (root.rule, root.ranks, root.confidence) == ("TO-H001", (0, 2), "low")
    assert root.waiting == (1, 3)
    assert "may wait in a send or receive" in root.message


def test_stacks_tell_who_of_them_waits(folder):
    torch = "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
    (folder / "stacks_rank_0.txt").write_text(stack("send", torch))
    (folder / "stacks_rank_2.txt").write_text(stack("load", "/home/me/data.py"))

    (root,) = diagnose(folder).roots

    assert (root.rule, root.ranks, root.confidence) == ("TO-H001", (2,), "high")
    assert root.doing == "in load (data.py:10)"


def test_gloo_has_no_gpu_to_blame(tmp_path):
    for rank in range(4):
        (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(gloo_dump(20, 0, rank == 1), protocol=2))

    (root,) = diagnose(tmp_path).roots

    assert (root.rule, root.ranks, root.confidence) == ("TO-H006", (1,), "low")
    assert "GPU" not in root.message
