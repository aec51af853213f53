"""What a worker is told: the job's text, its environment and the order of pairs."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from traceops.doctor.isolate import pair_order
from traceops.doctor.job import STAGES, Job, Rendezvous, WorkerTask, child_environment

_JOB = Job(
    tuple(STAGES), (2, 3), "nccl", {"NCCL_IB_DISABLE": "1"}, ("NCCL_SOCKET_IFNAME",), Rendezvous("node0", 4321, 2, 4),
    {"sweep": 7.0}, (1024, 4096), 3.0,
)  # fmt: skip


def test_a_post_survives_its_text() -> None:
    task = WorkerTask(_JOB, 3, "folder", 99)
    assert WorkerTask.from_text(task.to_text()) == task
    assert task.device == 3


def test_the_environment_is_the_users_but_for_the_launcher_the_change_and_the_log() -> None:
    environ = {
        "RANK": "1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "CUDA_VISIBLE_DEVICES": "4,5", "NCCL_ALGO": "Tree",
        "NCCL_SOCKET_IFNAME": "bad0", "NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "precious.log",
    }  # fmt: skip
    child = child_environment(WorkerTask(_JOB, 3, "folder", 99), environ, Path("logs"))
    assert not {"RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "NCCL_SOCKET_IFNAME"} & set(child)
    kept = {name: child[name] for name in ("CUDA_VISIBLE_DEVICES", "NCCL_ALGO", "NCCL_IB_DISABLE", "NCCL_DEBUG")}
    assert kept == {
        "CUDA_VISIBLE_DEVICES": "4,5", "NCCL_ALGO": "Tree", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "INFO"
    }  # fmt: skip
    assert Path(child["NCCL_DEBUG_FILE"]).parent == Path("logs")


@pytest.mark.parametrize("stages", [("all_reduce",), ("start", "sweep", "pairs"), ("start", "start"), ("start", "x")])
def test_stages_out_of_order_are_refused(stages: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):
        Job(stages, (0, 1), "gloo")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 16])
def test_all_pairs_once_in_rounds_without_a_rank_twice(ranks: int) -> None:
    order = pair_order(ranks)
    assert sorted(order) == list(combinations(range(ranks), 2))
    in_a_round = ranks // 2
    for begin in range(0, len(order), in_a_round or 1):
        members = [rank for pair in order[begin : begin + in_a_round] for rank in pair]
        assert len(members) == len(set(members))


def test_many_ranks_test_neighbours_and_the_far_half() -> None:
    order = pair_order(64)
    assert len(order) == len(set(order)) == 96
    assert {(0, 1), (62, 63), (0, 63), (0, 32), (31, 63)} <= set(order)
