"""Hosts that the profiler slows: what they were ahead when the window began is all that tells how fast they are."""

import pytest
from fault_runs import unpacked

from traceops.core.claims import claim_of
from traceops.pipeline.analyze import analyze
from traceops.rules.stragglers_claims import Late

# FSDP2 on 2 H200, measured without the profiler. A step's launches take the host 53 ms, under the profiler 65 to 87.
HEALTHY_MS, SLOW_MS = 61.1, 77.7


def report_of(name, folder):
    return analyze(unpacked(name, folder))


def test_a_rank_that_computes_longer_is_named_where_the_profiler_slows_the_hosts(tmp_path):
    """'They would hardly be faster without it: its cure saves 0.00 of 77.51 ms', where 16.5 are true."""
    report = report_of("slow_fsdp2", tmp_path)
    [found] = [one for one in report.findings if one.rule == "TO-S001"]
    assert (found.severity, found.ranks, found.cause) == ("error", (0,), "gpu_compute")
    assert found.impact_ms == pytest.approx(SLOW_MS - HEALTHY_MS, abs=1.5)
    [cure] = [row for row in report.what_if if row.ranks == (0,)]
    assert cure.predicted_step_time_ms == pytest.approx(HEALTHY_MS, rel=0.05)
    # How fast hosts are without the profiler is not known, so this is the most.
    assert report.summary.replay.hosts_unknown == (1,)
    assert "or more instead of" in found.message and "(up to 22 % less)" in found.message
    assert claim_of(found, Late).doubt.kind == "hosts_slower"


def test_a_healthy_run_whose_hosts_the_profiler_slows_is_told_no_rank_and_no_longer_steps(tmp_path):
    """'Input free: 66.1 instead of 63.2 ms'; 'rank 1 is late … 64.86 instead of 63.18 (-3 % less)'."""
    report = report_of("healthy_fsdp2", tmp_path)
    assert not [one for one in report.findings if one.rule in ("TO-S001", "TO-S002")]
    for row in report.what_if:
        assert row.predicted_step_time_ms <= row.step_time_ms + 0.01, row.change
    [check] = [one for one in report.checks if one.rule == "TO-S002"]
    assert check.status == "clear" and "of 61.39 ms would be saved (bound 10 %)" in check.reason
