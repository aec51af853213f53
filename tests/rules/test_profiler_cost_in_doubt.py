"""TO-V005 where recorded steps may be longer for another reason than the profiler."""

from types import SimpleNamespace

import pytest
from observed_run import Step, write_rank

from traceops.across.plain_step import profiler_cost
from traceops.across.whole_run import whole_run
from traceops.rules.profiler_cost import judge_profiler
from traceops.traces.observed import read_observed

MANIFEST = {"profiled_step_ms": 75.0, "unprofiled_step_ms": 50.0}


def inputs(root, *, waits_ms=0.0, long=0.0, on_gpu=False):
    """Recorded steps of 75 ms that wait for a core; of the others every so many take 80 ms instead of 50."""
    steps = [Step(80 if number % 100 < 100 * long else 50) for number in range(100)]
    for number in range(10, 16):
        steps[number] = Step(75, recorded=True, core_wait_ms=waits_ms)
    write_rank(root, 0, steps)
    observed = (read_observed(str(root), 0)[0],)
    cost = profiler_cost(MANIFEST, observed, whole_run(observed), on_gpu=on_gpu)
    return SimpleNamespace(manifest=MANIFEST, undisturbed=None, plain=None, profiler_cost=cost)


@pytest.mark.parametrize("waits_ms, severity", [(0.0, "warning"), (6.0, "warning"), (15.0, "info"), (24.0, None)])
def test_what_a_rank_waits_for_a_core_is_not_the_profilers(tmp_path, waits_ms, severity):
    """Two runs on two cores were told that the profiler slowed them 1.5 times: 39 % of the steps a rank had no core."""
    given = inputs(tmp_path, waits_ms=waits_ms)
    verdict = judge_profiler(given)
    assert [one.severity for one in verdict.findings] == [severity] * (severity is not None)
    assert given.profiler_cost.slowdown == (None if severity is None else 1.5)
    if severity is None:
        assert "that may be all of it" in verdict.not_evaluated
    else:
        assert ("a part of it may be that" in verdict.findings[0].message) == (waits_ms > 7)


def test_many_steps_without_the_profiler_that_take_as_long(tmp_path):
    """Steps of a loaded machine, or with batches of uneven length: four against four are no measure."""
    verdict = judge_profiler(inputs(tmp_path / "many", long=0.3))
    assert not verdict.findings and "take as long too" in verdict.not_evaluated
    assert judge_profiler(inputs(tmp_path / "few", long=0.1)).findings, "evaluations"
    assert judge_profiler(inputs(tmp_path / "gpu", long=0.3, on_gpu=True)).findings, "the profiler stays there"
