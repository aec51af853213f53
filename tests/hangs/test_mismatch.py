"""Calls that part: where they first do, and which of two ranks is out of line."""

import pytest
from generated_hang import write

from traceops.hangs.diagnose import diagnose
from traceops.rules.failures import MISMATCH

STEP = (("all_reduce", 100), ("all_reduce", 100), ("all_reduce", 30), ("all_reduce", 7))
WARM_UP = (("broadcast", 5), ("all_reduce", 230), ("all_reduce", 7))


def dump(calls, finished, ranks=(0, 1)):
    """A rank's record of these (operation, elements), of which so many are finished and the next has started."""
    entries = [
        {
            "record_id": i, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": i + 1,
            "p2p_seq_id": 0, "op_id": i, "profiling_name": f"nccl:{op}", "time_created_ns": 10**18 + i,
            "input_sizes": [[n]], "input_dtypes": ["Float"], "output_sizes": [[n]], "output_dtypes": ["Float"],
            "state": "completed" if i < finished else "started" if i == finished else "scheduled",
            "time_discovered_started_ns": 1, "time_discovered_completed_ns": None, "retired": i < finished,
            "is_p2p": False, "frames": [],
        }
        for i, (op, n) in enumerate(calls)
    ]  # fmt: skip
    status = {"last_enqueued_collective": len(calls), "last_completed_collective": finished}
    group = {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}
    return {"version": "2.10", "pg_config": {"0": group}, "pg_status": {"0": status}, "entries": entries}


def named(found):
    return [(root.rule, root.ranks, root.confidence) for root in found.roots]


@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("fault", ["skip", "size", "op", "extra"])
@pytest.mark.parametrize("limps", [False, True])
def test_of_two_ranks_the_one_that_breaks_the_pattern_is_named(tmp_path, odd, fault, limps):
    good = [*WARM_UP, *STEP * 6, *STEP * 3]
    at = len(WARM_UP) + 6 * len(STEP) + 3
    bad = list(good)
    if fault == "skip":
        del bad[at]
    elif fault == "size":
        bad[at] = ("all_reduce", 9)
    elif fault == "op":
        bad[at] = ("_all_gather_base", 7)
    else:
        bad.insert(at, ("all_reduce", 9))
    # NCCL may let two ranks get through a call that does not belong together, and hang at the very end.
    length = min(len(good), len(bad))
    finished = length - 1 if limps else at
    calls = {odd: bad[:length], 1 - odd: good[:length]}

    found = diagnose(write(tmp_path, {rank: dump(calls[rank], finished) for rank in (0, 1)}))

    assert named(found) == [("TO-H002", (odd,), "high")]
    assert found.roots[0].sequence == at + 1
    assert ("never ended" in found.roots[0].message) == limps


def test_without_a_pattern_both_are_named(tmp_path):
    good = [("all_reduce", n) for n in range(1, 20)]
    bad = [*good[:12], ("all_reduce", 99), *good[12:18]]

    found = diagnose(write(tmp_path, {0: dump(good, 12), 1: dump(bad, 12)}))

    assert named(found) == [("TO-H002", (0, 1), "medium")]
    assert "which call is wrong is unknown" in found.roots[0].message


def test_counts_of_different_groups_are_not_a_mismatch_of_the_past(tmp_path):
    one, other = [("all_reduce", n) for n in range(1, 20)], [("all_reduce", n) for n in range(101, 119)]

    found = diagnose(write(tmp_path, {0: dump([*one, ("barrier", 1)], 19), 1: dump([*other, ("all_reduce", 1)], 19)}))

    assert [root.sequence for root in found.roots] == [20]


def test_sizes_that_may_differ_are_no_mismatch_of_the_past(tmp_path):
    calls = [("all_reduce", 4)] * 8
    one, other = [*calls, ("all_to_all", 5), *calls], [*calls, ("all_to_all", 8), *calls[:-1]]

    found = diagnose(write(tmp_path, {0: dump(one, 16), 1: dump(other, 16)}))

    assert named(found) == [("TO-H001", (1,), "high")]


ABORTED = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 932980 vs 699052. "
    "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?\n"
)
REPORT = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_23:52:17\n  host      : localhost\n"
    "  rank      : {rank} (local_rank: {rank})\n  exitcode  : -6 (pid: 2998)\n"
)


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_rank_that_gloo_aborts_is_not_blamed_for_the_call_of_another(tmp_path, odd, ended):
    good = [*WARM_UP, *STEP * 6]
    calls = {rank: [*good, ("all_reduce", 999 if rank == odd else 100)] for rank in range(3)}
    alive = [rank for rank in range(3) if rank != ended]
    folder = write(tmp_path, {rank: dump(calls[rank], len(good), ranks=(0, 1, 2)) for rank in alive})
    (folder / f"rank_{ended}.stderr.log").write_text(ABORTED)
    (folder / "torchrun.log").write_text(REPORT.format(rank=ended))

    found = diagnose(folder)

    assert [(root.rule, root.ranks) for root in found.roots] == [("TO-H002", (odd,))]


@pytest.mark.parametrize(
    ("said", "exit_code", "rule"), [(ABORTED, -6, "TO-H002"), ("ValueError: boom\n", 3, "TO-H004")]
)
def test_a_rank_that_was_ended_before_it_wrote_its_record_is_no_root(tmp_path, said, exit_code, rule):
    """As `traceops run` left it on a busy machine: rank 1 ended, rank 2 was ended for it, rank 0 saved its record."""
    good = [*WARM_UP, *STEP * 6]
    record = dump([*good, ("all_reduce", 100)], len(good), ranks=(0, 1, 2))
    folder = write(tmp_path, {0: record})
    (folder / "rank_1.stderr.log").write_text(said)
    also = "  rank      : {rank} (local_rank: {rank})\n  exitcode  : -15 (pid: {rank})\n"
    first = REPORT.format(rank=1).replace("-6", str(exit_code))
    (folder / "torchrun.log").write_text(f"Failures:\n[1]:\n{also.format(rank=0)}[2]:\n{also.format(rank=2)}{first}")

    found = diagnose(folder)

    assert [(root.rule, root.ranks) for root in found.roots] == [(rule, (1,))]


def test_the_advice_points_to_nothing_that_may_not_be_shown():
    """Dumps without stacks, and logs, name no line of code."""
    assert "above" not in MISMATCH.advice and "below" not in MISMATCH.advice
