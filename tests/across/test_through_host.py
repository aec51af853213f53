"""Ranks on GPUs whose hosts exchange the data (gloo): who is late, why, and what it costs."""

from dataclasses import replace

import numpy as np
import pytest
from generated_run import Size, SlowCompute, SlowCopy, SlowHost, SlowInput, ddp, fsdp2, simulate
from measured_runs import CAUSES, across, findings, predicted, program, true_step

from traceops.across.replay.what_if import rank_change

SIZE = Size(kernel_us=400.0, bandwidth_gbs=8.0)
FAULTS = [
    SlowCompute(1, 1.5),
    SlowHost(1, 6000.0),
    SlowInput(1, 6000.0),
    SlowCopy(1, 6000.0),
]


def through_host(builder, size=SIZE):
    return replace(program(builder, size=size), through_host=True)


@pytest.mark.parametrize("builder", [ddp, fsdp2])
def test_waiting_is_split_from_transfer(builder):
    """The note of a collective begins at its call, long before the device has what goes round."""
    run = simulate(through_host(builder), 4, [SlowCompute(1, 1.5)])
    measured = across(run)
    assert measured.matching.matched_pct == 100.0
    for times, truth in zip(measured.ranks, run.ranks, strict=True):
        own = [a for a in truth.recorded if a.kind == "comm" and a.launch >= truth.window_start]
        took = np.sort([a.end - a.start for a in own])
        assert np.sort(times.summary.comm.end - times.summary.comm.start) == pytest.approx(took, abs=2500)
    assert measured.ranks[1].wait_ns < 0.2 * min(
        times.wait_ns for times in measured.ranks if times.summary.rank != 1
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("builder", [ddp, fsdp2])
def test_the_late_rank_is_named_with_its_cause_and_cost(builder, fault):
    healthy = true_step(simulate(through_host(builder), 4))
    run = simulate(through_host(builder), 4, [fault])
    measured = across(run)
    [found] = findings(measured)
    assert (found.ranks, found.cause) == ((1,), CAUSES[type(fault)])
    assert predicted(measured, rank_change((1,))) == pytest.approx(healthy, rel=0.05)


@pytest.mark.parametrize("builder", [ddp, fsdp2])
def test_nobody_is_named_where_nobody_is_late(builder):
    assert not findings(across(simulate(through_host(builder), 4)))
