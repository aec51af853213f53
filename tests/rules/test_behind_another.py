"""A rank that others hide behind, and ranks that share cores: who is late is told where the waits leave no doubt."""

from types import SimpleNamespace

import pytest
from changed import replace
from generated_run import SlowHost, ddp, simulate
from measured_runs import across, program

from traceops.across.host_difference import Longer
from traceops.measure.host_places import CodePlace
from traceops.rules import whole_run_hosts
from traceops.rules.clocks import judge_clocks
from traceops.rules.shared import MOST_OUT_OF_STEP_PCT, out_of_step_pct
from traceops.rules.stragglers import judge_stragglers


def on_cpus(*slow, end_jitter_us=0.0):
    made = replace(program(ddp, device="cpu", steps=6), end_jitter_us=end_jitter_us)
    return across(simulate(made, 3, slow))


@pytest.mark.parametrize(("extra_us", "named"), [(20_000, [2]), (2_000, [])])
def test_a_late_rank_on_crowded_cores_is_named_where_the_waits_are_far_longer_than_ends_differ(extra_us, named):
    """Ends lay within 5.03 % of the step: the rank that all waited for, 106 to 170 ms of 207, was not named."""
    run = on_cpus(SlowHost(2, extra_us=extra_us), end_jitter_us=4000.0)
    assert out_of_step_pct(run) > MOST_OUT_OF_STEP_PCT
    late = [rank for verdict in judge_stragglers(run, None) for one in verdict.findings for rank in one.ranks]
    assert late == named
    assert bool(judge_clocks(run).findings) == (not named)


@pytest.mark.parametrize(
    ("slow", "told"),
    [
        ((SlowHost(0, extra_us=10_000), SlowHost(2, extra_us=40_000)), False),  # hidden behind rank 2
        ((SlowHost(0, extra_us=10_000),), True),
        ((SlowHost(0, extra_us=10_000), SlowHost(2, extra_us=12_000)), True),  # about as late
    ],
)
def test_a_line_of_a_rank_that_itself_waits_as_long_for_another_is_not_told(monkeypatch, slow, told):
    """'Its peers none, while they wait for it' led the report of a run in which all waited for another rank."""
    line = Longer(0, CodePlace("weigh", "train.py", 27, "sleep(s)"), 10.0, 0.0, 40, None)
    monkeypatch.setattr(whole_run_hosts, "longer_on_one", lambda whole, late: [line])
    inputs = SimpleNamespace(run=on_cpus(*slow), whole=SimpleNamespace())
    assert bool(whole_run_hosts.seen_longer(inputs)) == told
    assert whole_run_hosts.seen_longer(inputs, late=(0,)) == [line], "who is known to be late keeps its line"
