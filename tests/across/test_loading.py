"""How many DataLoader workers would keep up, and whether that is so on trainings with a planted slow loader."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from traceops.across.loading import cores_of_rank, loading_need, told_workers
from traceops.core.claims import claim_of
from traceops.pipeline.analyze import analyze
from traceops.rules.idle_claims import InputBound

ALONE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def rank(name: str, step_ms: float, idle_ms: float, input_ms: float, unlike: int = 0) -> Any:
    """A rank of ten steps as the measures hand it on."""
    host = SimpleNamespace(input_names=(name,), input_ms=10 * input_ms)
    return SimpleNamespace(
        step_ms=step_ms, duration=np.zeros(10), mean_ms=lambda bucket: {"idle_input": idle_ms}[bucket],
        summary=SimpleNamespace(host=host), typical=np.arange(10) >= unlike,
    )  # fmt: skip


def test_without_workers_loading_is_measured() -> None:
    need = loading_need(rank(ALONE, 200.0, 160.0, 160.0), None)
    assert need is not None
    assert (need.now, need.load_ms, need.rest_ms, need.workers) == (0, 160.0, 40.0, 5)  # a tenth to spare on 4


def test_what_an_evaluation_loads_needs_no_workers_in_typical_steps() -> None:
    """HF's Trainer, one recorded step of four with an evaluation: 367 ms of loading in steps of 243, and 6 workers."""
    need = loading_need(rank(ALONE, 243.0, 122.3, 366.5, unlike=1), None, step_ms=196.7)
    assert need is not None and (need.load_ms, need.workers) == (122.3, 2)


def test_workers_that_are_behind_load_all_the_time() -> None:
    need = loading_need(rank(WORKERS, 80.0, 40.0, 41.0), None, workers=2)
    assert need is not None and (need.now, need.load_ms, need.rest_ms, need.workers) == (2, 160.0, 40.0, 5)
    untold = loading_need(rank(WORKERS, 80.0, 40.0, 41.0), None)
    assert untold is not None and untold.workers is None and untold.times == pytest.approx(2.2)


def test_long_steps_that_wait_for_the_same_loader_make_a_range() -> None:
    """12 of 29 steps waited 400 ms longer, and '1.2 times as many would keep up' was of the others alone."""
    some = rank(WORKERS, 172.4, 12.2, 216.0, unlike=4)
    some.buckets = {"idle_input": np.array([400, 400, 400, 400, *[12] * 6]) * 1_000_000}
    need = loading_need(some, None)
    assert need is not None and need.times == pytest.approx(1.18, abs=0.01)
    assert need.most_times == pytest.approx(1.1 * (160.2 + 167.2) / 160.2, abs=0.01)


def test_what_may_be_recording_makes_a_range() -> None:
    """Lightning on an H200: 3 workers were told by the recorded step. Without the profiler the rest takes 10.0 ms."""
    need = loading_need(rank(ALONE, 50.87, 37.05, 37.05), None, recording_ms=7.49)
    assert need is not None and (need.workers, need.most_workers) == (3, 7)
    assert need.workers < 1.1 * 37.05 / 10.0 < need.most_workers
    workers = loading_need(rank(WORKERS, 80.0, 40.0, 41.0), None, workers=2, recording_ms=10.0)
    assert workers is not None and (workers.workers, workers.most_workers) == (5, 6)
    known = loading_need(rank(ALONE, 172.2, 103.6, 103.3), 103.6, step_ms=137.2)
    assert known is not None and known.workers == known.most_workers == 4
    no_rest = loading_need(rank(ALONE, 50.0, 37.0, 37.0), None, recording_ms=20.0)
    assert no_rest is not None and no_rest.most_workers == no_rest.workers, "nothing is left to tell a most by"


def test_the_replay_decides_what_is_left_of_a_step() -> None:
    need = loading_need(rank(ALONE, 200.0, 160.0, 160.0), 120.0)
    assert need is not None and need.rest_ms == 80.0 and need.workers == 3


def test_nothing_is_said_of_loading_that_is_no_dataloaders_or_all_of_a_step() -> None:
    assert loading_need(rank("load_batch", 200.0, 160.0, 160.0), None) is None
    assert loading_need(rank(ALONE, 200.0, 200.0, 200.0), None) is None


def test_what_run_json_tells_of_workers_and_cores() -> None:
    assert told_workers({"training": {"config": {"workers": 3}}}) == 3
    assert told_workers({"training": {"num_workers": 0}}) == 0
    for odd in ({}, {"training": []}, {"training": {"workers": True}}, {"training": {"workers": -1}}):
        assert told_workers(odd) is None
    ranks = [{"rank": 0, "host": "a", "cores": 6}, {"rank": 1, "host": "a", "cores": 6}, {"rank": 2, "host": "b"}, 7]
    assert cores_of_rank({"ranks": ranks}, 1) == 3.0
    assert cores_of_rank({"ranks": ranks}, 2) is None and cores_of_rank({}, 0) is None
    need = loading_need(rank(ALONE, 200.0, 160.0, 160.0), None, cores=3.0)
    assert need is not None and not need.fits


def test_a_starved_training_gains_what_was_promised_with_as_many_workers() -> None:
    """A recorded training on gloo whose samples take 20 ms, eight to a batch, and the same with two workers."""
    report = analyze(Path(__file__).parents[1] / "data" / "starved_loader2")
    (found,) = (one for one in report.findings if one.rule == "TO-I002")
    need = claim_of(found, InputBound).need
    assert (need.count, need.now, need.cores) == (2, 0, 1)
    before, with_two_workers = (270.788, 110.550)  # steps without the profiler, measured by `traceops sweep` in turn
    assert report.summary.unprofiled_step_time_ms == before
    assert found.impact_ms == pytest.approx(before - with_two_workers, rel=0.2)
