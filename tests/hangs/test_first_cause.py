"""Whose end a launcher saw first may be an echo: the rank that failed by itself is named."""

import json

import pytest

from traceops.hangs.diagnose import diagnose


def timed_out(rank, sequence=64):
    return (
        f"[rank{rank}]:[E1120 10:00:00.561 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={sequence}, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, "
        f"Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
        f"[rank{rank}]:[E1120 10:00:00.562 ProcessGroupNCCL.cpp:2340] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  "
        f"failure detected by watchdog at work sequence id: {sequence} PG status: last enqueued work: {sequence}, "
        f"last completed work: {sequence - 1}\n"
    )


def raised(rank, text):
    return "".join(
        f"[rank{rank}]: {line}\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/home/me/train.py", line 30, in <module>',
            "    step()",
            text,
        )
    )


def report(root, code, others=()):
    """Torchrun's, of the rank whose end it saw first and the others."""

    def one(rank, its):
        return f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {its} (pid: {100 + rank})\n"

    failures = "".join(f"[{number}]:\n{one(rank, its)}" for number, (rank, its) in enumerate(others))
    return (
        f"train.py FAILED\n-----\nFailures:\n{failures}-----\nRoot Cause (first observed failure):\n[0]:\n"
        f"{one(root, code)}=====\n"
    )


CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:48211"
REMOTE = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
LOST_PEERS = "".join(raised(rank, CLOSED) for rank in (0, 1, 3))
LOST_REMOTE = "".join(raised(rank, REMOTE) for rank in (0, 1, 2))
WAITED = "".join(timed_out(rank) for rank in (0, 2, 3))


@pytest.mark.parametrize(
    ("text", "rank", "confidence", "cause"),
    [
        (LOST_PEERS + raised(2, "ValueError: bad") + report(0, 1, [(1, 1), (2, 1), (3, 1)]), 2, "high", None),
        (LOST_PEERS + raised(2, "ValueError: bad"), 2, "medium", None),
        (LOST_REMOTE + report(0, -6, [(1, -6), (2, -6), (3, -11)]), 3, "high", "native_crash"),
        (WAITED + raised(1, OOM) + report(0, -6, [(2, -6), (1, 1)]), 1, "high", "memory"),
        (WAITED + raised(1, OOM) + report(0, -6, [(2, -6)]), 1, "medium", "memory"),
        (WAITED + raised(1, ILLEGAL) + report(0, -6, [(1, 1), (2, -6)]), 1, "high", "gpu"),
        (report(0, -6, [(1, -6)]), 0, "medium", None),
    ],
)
def test_the_first_cause_and_not_its_echo(tmp_path, text, rank, confidence, cause):
    (tmp_path / "train.log").write_text(text)

    (root,) = diagnose(tmp_path).roots

    assert (root.rule, root.ranks) == ("TO-H004", (rank,))
    assert (root.confidence, root.cause) == (confidence, cause)


def test_a_rank_that_torch_ended_because_the_others_gave_up_did_not_die_first(tmp_path):
    """Rank 2 was elsewhere; its own status says how far it had come, and it is ended last."""
    status = (
        "[rank2]:[E1120 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due "
        "to a collective timeout from rank 0. Last enqueued NCCL work: 63, last completed NCCL work: 63.\n"
    )
    waited = "".join(timed_out(rank) for rank in (0, 1, 3))
    (tmp_path / "train.log").write_text(waited + status + report(0, -6, [(1, -6), (3, -6), (2, -6)]))

    (root,) = diagnose(tmp_path).roots

    assert (root.rule, root.ranks, root.waiting) == ("TO-H001", (2,), (0, 1, 3))


def test_what_a_rank_without_a_record_says_is_evidence(tmp_path):
    stuck = (
        "[rank3]:[F1120 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL's watchdog "
        "got stuck for 480 seconds without making progress in monitoring enqueued collectives.\n"
    )
    waited = "".join(timed_out(rank) for rank in (0, 1, 2))
    (tmp_path / "train.log").write_text(waited + stuck)

    (root,) = diagnose(tmp_path).roots

    assert (root.rule, root.ranks, root.confidence) == ("TO-H001", (3,), "low")
    assert "no evidence" not in root.message
    assert any("got stuck" in text for _, text in root.evidence)


def test_an_attempt_before_the_last_explains_only_itself(tmp_path):
    restart = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
    waited = "".join(timed_out(rank, 20) for rank in (0, 2, 3))
    (tmp_path / "train.log").write_text(raised(2, OOM) + restart + waited)

    found = diagnose(tmp_path)

    assert found.roots == () and [rank.rank for rank in found.ranks if rank.state == "waiting"] == [0, 2, 3]
    assert all(event.kind != "memory" for event in found.evidence.log)


def test_members_that_no_log_tells_are_not_all_members(tmp_path):
    """The rank that never came may be the last of all: of it there is no trace."""
    (tmp_path / "train.log").write_text("".join(timed_out(rank) for rank in (0, 1, 2)))

    (root,) = diagnose(tmp_path).roots

    assert root.confidence == "low"
    assert "All 3 members" not in root.message


def test_one_name_of_two_groups_proves_nothing(tmp_path):
    """Split groups share their name: rank 2 waits in one of them, rank 0 is further in another."""
    shard = [timed_out(2, 30), timed_out(0, 33)]
    replica = [timed_out(rank, 10) for rank in (0, 1)]
    text = "".join(line.replace("0(default_pg)", "1(mesh_shard)") for line in shard) + "".join(
        line.replace("0(default_pg)", "2(mesh_replicate)") for line in replica
    )
    (tmp_path / "train.log").write_text(text)

    assert {root.confidence for root in diagnose(tmp_path).roots} == {"low"}


def test_a_rank_that_died_is_told_with_its_own_error_and_line(tmp_path):
    """Not with what another rank raised of the same kind, and memory with its arithmetic."""
    text = raised(0, "KeyError: 'labels'") + raised(1, "ValueError: bad batch").replace("line 30", "line 77")
    (tmp_path / "train.log").write_text(text + report(1, 1, [(0, 1)]))
    root = diagnose(tmp_path).roots[-1]
    assert (root.rule, root.ranks, root.where) == ("TO-H004", (1,), "<module> (train.py:77)")
    assert root.statement == "Rank 1 died: it crashed, at <module> (train.py:77): ValueError: bad batch"

    full = f"{OOM} GPU 1 has a total capacity of 79.10 GiB of which 1.20 GiB is free."
    (tmp_path / "train.log").write_text(raised(1, full) + WAITED + report(0, -6, [(1, 1), (2, -6)]))
    (root,) = diagnose(tmp_path).roots
    assert root.statement.startswith("Rank 1 died while ranks 0, 2–3 wait for it in all_reduce #64 of default_pg: ")
    told = "it ran out of GPU memory, at <module> (train.py:30): it asked for 2.00 GiB with 1.20 GiB free of 79.10 GiB"
    assert told in root.statement


def test_what_the_launcher_noted_of_a_killed_rank_is_no_word_of_its_own(tmp_path):
    manifest = {"world_size": 2, "nnodes": 1, "failed_rank": 1, "status": "failed"}
    ranks = [{"rank": 0, "exit_code": 143}, {"rank": 1, "exit_code": 137, "error": "killed by SIGKILL (often …)"}]
    (tmp_path / "run.json").write_text(json.dumps({**manifest, "ranks": ranks}))
    (root,) = diagnose(tmp_path).roots
    assert (root.ranks, root.cause) == ((1,), "killed") and root.statement.count("SIGKILL") == 1


def test_a_rank_that_crashed_is_why_others_do_not_come_whoever_else_is_silent(tmp_path):
    """Ranks 2–4 say nothing in a log of 8: 'Ranks 2–5 left no record' was the cause, not what rank 5 raised."""
    waiting = "".join(timed_out(rank, 30) for rank in (0, 1))
    (tmp_path / "train.log").write_text(raised(5, "AssertionError: found NaN in loss") + waiting)
    (root,) = diagnose(tmp_path).roots
    assert root.ranks == (5,) and root.waiting == (0, 1) and "NaN" in root.statement

    (tmp_path / "train.log").write_text(raised(5, "RuntimeError: Connection reset by peer") + waiting)
    assert diagnose(tmp_path).roots == ()  # an echo; and of ranks 2 to 4 there is no line
