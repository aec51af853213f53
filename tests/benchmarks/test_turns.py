"""Jobs that train step by step in turn, and what is made of their steps (benchmarks/observed_ranks/turns.py)."""

from __future__ import annotations

import importlib.util
import json
import threading

import pytest

from benchmarks import ROOT
from benchmarks.observed_ranks.turns import ONE_RANK, RANKS, folder_of
from benchmarks.observed_ranks.turns_table import blocks_of, ratios, spread, step_of


@pytest.fixture(scope="module")
def site():
    path = ROOT / "benchmarks/observed/site/sitecustomize.py"
    spec = importlib.util.spec_from_file_location("site_of_observed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_jobs_step_in_turn_and_every_other_round_in_the_other_order(site, tmp_path):
    jobs, ranks, block, rounds = 3, 2, 2, 3
    shared = tmp_path / "turns"
    shared.write_bytes(bytes(jobs * ranks))
    seen: list[int] = []

    def trains(job: int, rank: int) -> None:
        turns = site._Turns(f"{shared}:{job}:{jobs}:{ranks}:{block}:{rounds}", rank)
        for step in range(1, 2 + block * rounds):
            if step > 1:
                seen.append(job)
            turns.step(step, int)
        assert not turns.late

    threads = [threading.Thread(target=trains, args=(job, rank)) for job in range(jobs) for rank in range(ranks)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    turn = block * ranks
    assert seen == [job for order in ((0, 1, 2), (2, 1, 0), (0, 1, 2)) for job in order for _ in range(turn)]


def test_nobody_waits_for_a_job_that_has_ended(site, tmp_path):
    shared = tmp_path / "turns"
    shared.write_bytes(bytes([0, 255]))
    turns = site._Turns(f"{shared}:0:2:1:2:3", 0)
    for step in range(1, 8):
        turns.step(step, int)
    assert not turns.late and shared.read_bytes()[0] == 4


def test_a_block_is_its_mean_step_without_what_comes_right_behind_a_turn_and_what_cupti_recorded(tmp_path):
    """Two rounds of 24 steps behind the first; round 2 has an odd step, and CUPTI records from step 40 on."""
    steps = [900.0] + [10.0] * 47  # of steps 2 to 49
    steps[24] = 5000.0  # step 26: it stood before
    steps[30] = 80.0  # step 32
    steps[38:] = [300.0] * 10
    told = {"device_ms": steps, "host_ms": [], "turns": [24, 2, False]}
    told["windows"] = [{"first": 39, "last": 49}]
    for rank in range(2):
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(told))
    blocks = blocks_of(tmp_path)
    assert blocks == pytest.approx([10.0, 10.0])
    assert step_of([99.0, 10.0, 12.0, 14.0]) == 12.0
    assert spread(ratios([1, 10.0, 12.0], [1, 10.0, 10.0])) == "1.10 (1.00 to 1.20)"


def test_each_job_has_a_folder_and_each_program_is_there(tmp_path):
    for turn in (*RANKS, *ONE_RANK):
        assert (ROOT / "benchmarks" / turn.path).exists()
        assert len({folder_of(turn, job, tmp_path) for job in turn.jobs}) == turn.alone + turn.traced
    assert folder_of(RANKS[0], "alone1+A=1", tmp_path).name == "tensor_parallel.alone1_A_1"
