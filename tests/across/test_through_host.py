"""Ranks on GPUs whose hosts exchange the data (gloo): who is late, why, and what it costs."""

import numpy as np
import pytest
from changed import replace
from fault_runs import unpacked
from generated_run import Size, SlowCompute, SlowCopy, SlowHost, SlowInput, ddp, fsdp2, simulate
from measured_runs import CAUSES, across, findings, predicted, program, true_step

from traceops.across.replay.what_if import rank_change
from traceops.pipeline.analyze import analyze

SIZE = Size(kernel_us=400.0, bandwidth_gbs=8.0)
ALONE_MS = 102.8  # a step of group_stranger without the stranger, as its own traces have it
HEALTHY_MS = 80.3  # of a run of the same model without a fault, without the profiler
FAULTS = [SlowCompute(1, 1.5), SlowHost(1, 6000.0), SlowInput(1, 6000.0), SlowCopy(1, 6000.0)]


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
    assert measured.ranks[1].wait_ns < 0.2 * min(times.wait_ns for times in measured.ranks if times.summary.rank != 1)


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


def test_two_h200_over_gloo(tmp_path):
    """Rank 1's loader sleeps. Nothing was matched, and rank 0's host was said to wait for its device (TO-I003)."""
    report = analyze(unpacked("through_host_loader", tmp_path))
    assert report.summary.matching.matched_pct == 100.0
    told = {found.rule: found for found in report.findings}
    late = told["TO-S001"]
    assert (late.severity, late.ranks, late.cause) == ("error", (1,), "input")
    assert report.summary.step_time_ms.typical - late.impact_ms == pytest.approx(HEALTHY_MS, rel=0.05)
    assert "TO-C003" in told and not told.keys() & {"TO-I003", "TO-C001"}
    assert report.ranks[0].comm_wait_ms == pytest.approx(28.0, abs=1.0)
    assert report.ranks[1].comm_wait_ms < 1.0


def test_a_stranger_on_the_gpu_of_half_the_ranks(tmp_path):
    """Four ranks of eight share GPU 1 with another process: a group whose GPUs take longer for the same work."""
    report = analyze(unpacked("group_stranger", tmp_path))
    told = {found.rule: found for found in report.findings}
    group = told["TO-S003"]
    assert (group.severity, group.ranks, group.cause) == ("error", (4, 5, 6, 7), "gpu_compute")
    assert group.computes_longer == "slower" and "same work" in group.message
    assert report.summary.step_time_ms.typical - group.impact_ms == pytest.approx(ALONE_MS, rel=0.03)
    assert "TO-S001" not in told
