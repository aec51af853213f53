"""Data loading that bounds the step hides a rank whose GPU is late: its cure alone saves nothing, both save much."""

from pathlib import Path

import pytest
from fault_runs import unpacked

from traceops.pipeline.analyze import analyze

FAULTS = Path(__file__).parents[1] / "data" / "faults"
# DDP on 2 H200: 67 ms a step; with 45 ms in the loading of every rank and 20 ms of products on rank 1: 92.7 ms.
HEALTHY_MS = 66.7


def test_a_rank_that_loading_hides_is_told_with_what_both_cures_give(tmp_path):
    """TO-I002 said 28 ms of waiting for input, of which 5 would be saved, and nothing said why."""
    report = analyze(unpacked("starved_slow", tmp_path))
    assert report.findings[0].rule == "TO-I002"
    [late] = [one for one in report.findings if one.rule == "TO-S001"]
    assert (late.severity, late.ranks, late.cause, late.impact_ms) == ("info", (1,), "gpu_compute", None)
    assert late.kind == "late_behind_loading"
    told = {one.metric: one.value for one in late.evidence}
    in_time = report.summary.step_time_ms.typical - told["saved with batches in time"]
    assert in_time - told["saved at its peers' pace too"] == pytest.approx(HEALTHY_MS, rel=0.02)


def test_loading_that_hides_nobody_names_nobody():
    report = analyze(FAULTS.parent / "starved_loader2")
    assert not [one for one in report.findings if one.rule == "TO-S001"]
