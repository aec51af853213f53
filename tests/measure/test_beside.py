"""What compute kernels take longer because communication runs beside them, and what a cure makes of that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from events_builder import build, kernel, step

from traceops.core.arrays import spread_before
from traceops.measure.activity import COMM, find_activity
from traceops.measure.breakdown import _quartiles, measure_beside
from traceops.measure.steps import find_steps
from traceops.pipeline.analyze import analyze

UNEVEN = Path(__file__).parents[1] / "data" / "uneven_batch2"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def held_up(*kernels: list[dict[str, object]]) -> list[int]:
    """Of the communication among the kernels of one step, in order."""
    events = build([step(1, 0, 100_000), *(row for rows in kernels for row in rows)])
    activity = find_activity(events)
    comm = np.flatnonzero(activity.kind == COMM)
    steps = find_steps(events, activity, (1,))
    return measure_beside(events, activity, steps, comm[np.argsort(activity.start[comm])]).tolist()


def test_a_kernel_that_takes_longer_beside_communication_is_told_apart_from_a_larger_one() -> None:
    alone = [kernel(1000 * i, 500, 10 + i) for i in range(3)]
    beside = kernel(10_000, 800, 100)
    other = kernel(20_000, 3000, 200, name="another")  # never alone: nothing tells what it takes so
    comm = [
        kernel(9_000, 1400, 50, name=NCCL, stream=9),
        kernel(10_400, 900, 60, name=NCCL, stream=9),
        kernel(20_000, 3000, 70, name=NCCL, stream=9),
    ]
    # Of 300 ns more half is beside the first of the two.
    assert held_up(*alone, beside, other, *comm) == [150, 150, 0]
    assert held_up(*alone[:1], beside, *comm) == [0, 0, 0]
    sizes = [kernel(1000 * i, 300 + 300 * i, 10 + i) for i in range(3)]
    assert held_up(*sizes, beside, *comm) == [0, 0, 0]


def test_kernels_that_vary_are_not_said_to_be_slowed_by_communication() -> None:
    """The longer half of them counted, so that all that vary looked slowed."""
    alone = [kernel(1000 * i, 480 + 10 * i, 10 + i) for i in range(5)]
    beside = [kernel(10_000 + 1000 * i, 470 + 20 * i, 100 + i) for i in range(4)]
    comm = kernel(10_000, 4_000, 50, name=NCCL, stream=9)
    assert held_up(*alone, *beside, comm) == [0]
    slowed = [kernel(10_000 + 1000 * i, 570 + 20 * i, 100 + i) for i in range(4)]
    assert held_up(*alone, *slowed, comm) == [400]


def test_amounts_spread_over_intervals_that_overlap_add_up() -> None:
    start, end = np.array([0, 50, 70, 5]), np.array([100, 150, 70, 9])
    amounts = np.array([100, 200, 40, 0])  # what lies in an interval of no length counts for nothing
    moments = np.array([-5, 0, 50, 100, 150, 999])
    assert spread_before(start, end, amounts, moments).tolist() == [0, 0, 50, 200, 300, 300]


def test_work_shared_evenly_is_predicted_without_what_waiting_did_to_the_kernels_beside_it() -> None:
    """DDP of linear layers, 70 % of the rows on one of two H200s; with half a rank it takes 17.4 ms (measured)."""
    report = analyze(UNEVEN)
    (shared,) = [row for row in report.what_if if row.change == "work shared evenly"]
    assert shared.predicted_step_time_ms == pytest.approx(17.4, rel=0.04)
    assert shared.predicted_least_ms is not None
    assert 0.94 * 17.4 < shared.predicted_least_ms < 17.4 < shared.predicted_step_time_ms


def test_a_late_rank_is_cured_without_what_waiting_did_to_the_others_kernels() -> None:
    """FSDP2 on four H200s, rank 1 with extra products: 79.4 ms a step, of which they cost 17.5 (measured)."""
    report = analyze(UNEVEN.parent / "slow_hsdp4")
    (cured,) = [row for row in report.what_if if row.change == "rank 1 as its peers"]
    assert cured.predicted_step_time_ms == pytest.approx(79.4 - 17.5, rel=0.04)


@pytest.mark.parametrize("count", range(1, 14))
def test_quartiles_are_those_of_numpy(count: int) -> None:
    took = np.random.default_rng(count).integers(0, 10**6, count)
    assert _quartiles(took) == pytest.approx(tuple(np.percentile(took, (25, 50, 75))), rel=1e-15)
