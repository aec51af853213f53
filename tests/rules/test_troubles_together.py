"""Two troubles at once, in generated runs whose truth is known: each is named with its own cost, and neither denied."""

from __future__ import annotations

import numpy as np
import pytest
from changed import replace
from generated_run import SlowCompute, SlowHost, SlowInput, ddp, simulate, step_durations, write_traces
from measured_runs import across, program

from traceops.across.replay.what_if import WORK_SHARED, Prediction
from traceops.across.work import WorkCompared
from traceops.core.claims import claim_of
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.rules.idle_claims import HiddenLoading
from traceops.rules.stragglers import judge_stragglers


def everybody_loads(us, ranks=4):
    return [SlowInput(rank, us) for rank in range(ranks)]


def told(tmp_path, made, faults):
    write_traces(simulate(made, 4, faults), tmp_path)
    return analyze(tmp_path)


def found(report, rule):
    return [one for one in report.findings if one.rule == rule]


def step_ms(made, faults):
    return float(np.median(step_durations(simulate(made, 4, faults)), axis=0).mean()) / 1e6


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_slow_loader_of_all_beside_one_that_is_slower_still(tmp_path, device):
    """Rank 1 was named beside rank 2, because its loading is by chance half as long; ranks 0 and 3 were not."""
    made = program(ddp, sync=True, device=device, layers=6, steps=6)
    report = told(tmp_path, made, [*everybody_loads(5000), SlowInput(2, 5000)])
    [waiting] = found(report, "TO-I002")
    [late] = found(report, "TO-S001")
    assert (late.ranks, late.cause, waiting.ranks) == ((2,), "input", (0, 1, 3))
    assert waiting.severity == "error", "it is not the late rank's doing"
    assert waiting.impact_ms == pytest.approx(5.1, abs=0.2) and late.impact_ms == pytest.approx(5.0, abs=0.2)


def test_loading_that_a_late_rank_hides(tmp_path):
    """A slow GPU hid that all ranks load slowly: TO-I002 was clear, and the cured step has it as its bound."""
    made = program(ddp, layers=6, steps=8)
    report = told(tmp_path, made, [*everybody_loads(6000), SlowCompute(2, 2.5)])
    [late], [hidden] = found(report, "TO-S001"), found(report, "TO-I002")
    assert late.ranks == (2,) and hidden.ranks == (0, 1, 2, 3)
    assert claim_of(hidden, HiddenLoading).late == (2,)
    truth = step_ms(made, everybody_loads(6000)) - step_ms(made, [])
    assert hidden.impact_ms == pytest.approx(truth, rel=0.2)
    assert report.findings[0] == late, "what costs time now comes first"


def test_no_hidden_loading_where_the_loader_is_quick_enough(tmp_path):
    made = program(ddp, layers=6, steps=8)
    assert not found(told(tmp_path, made, [*everybody_loads(3000), SlowCompute(2, 2.5)]), "TO-I002")


def test_a_late_rank_beside_slow_loading_is_not_said_to_save_only_more_than_is_waited(tmp_path):
    """The headline had 'wait 3.03 ms, but at its peers' pace a step would be only 3.75 ms shorter'."""
    made = program(ddp, sync=True, layers=6, steps=6)
    report = told(tmp_path, made, [*everybody_loads(5000), SlowCompute(2, 2.0)])
    assert card_of(report).rule == "TO-I002"
    [row] = [row for row in report.what_if if row.ranks == (2,)]
    assert row.step_time_ms - row.predicted_step_time_ms == pytest.approx(3.75, abs=0.05)


def test_transfer_that_costs_nothing_does_not_come_first(tmp_path):
    """Loading and one rank's GPU bound the step alike; the headline was 22 % exposed transfer, which saves 0.1 ms."""
    made = program(ddp, layers=6, steps=8)
    report = told(tmp_path, made, [*everybody_loads(6000), SlowCompute(2, 1.5)])
    [exposed] = found(report, "TO-O001")
    assert exposed.severity == "info" and exposed.impact_ms < 0.03 * step_ms(made, [])
    assert card_of(report).rule != "TO-O001"


@pytest.mark.parametrize(
    "steps, fires, clear, says",
    [
        (None, 0, 1, "Rank 2 is late in most steps, see TO-S001"),
        ((4,), 1, 0, "Rank 2 is late in some steps only, see TO-S002"),
    ],
)
def test_the_rule_beside_the_one_that_fired_clears_nobody(steps, fires, clear, says):
    """TO-S002 was clear because 'at its peers' pace 3.75 of 13.49 ms would be saved (bound 10 %)', as was TO-S001."""
    run = simulate(program(ddp, layers=6, steps=6, sync=True), 4, [SlowCompute(2, 2.0, steps=steps)])
    verdicts = judge_stragglers(across(run), 1.0)
    assert [one.ranks for one in verdicts[fires].findings] == [(2,)]
    assert verdicts[clear].clear == says


def test_work_shared_evenly_is_of_the_same_steps_as_the_step_beside_it():
    """'102.61 instead of 116.61 ms' stood beside a step of 86.6, and a range of it was of typical steps only."""
    run = across(simulate(program(ddp, layers=6, steps=6, sync=True), 4, [SlowCompute(2, 2.0, steps=(4,))]))
    took = run.replay.what_if.replayed_ns
    shared = Prediction(WORK_SHARED, (), 0.9 * took, (0.9 * took, 0.95 * took))
    work = {2: WorkCompared("more_work", alone_ms=0.0, work=2.0, speed=None)}
    run = replace(run, replay=replace(run.replay, what_if=run.replay.what_if.with_more([shared]), work=work))
    [late] = judge_stragglers(run, 1.0)[1].findings
    step, least, most = (f"{part * took.mean() / 1e6:.2f}" for part in (1.0, 0.9, 0.95))
    assert f"evenly the step would take {least} ms to {most} ms instead of {step} ms (5 % to 10 % less)" in late.message


def test_one_rank_late_in_all_steps_and_one_in_some():
    faults = [SlowCompute(2, 2.0), SlowCompute(0, extra_us=9000, steps=(5,))]
    always, sometimes = judge_stragglers(across(simulate(program(ddp, layers=6, steps=8, sync=True), 4, faults)), 1.0)
    assert [one.ranks for one in always.findings] == [(2,)]
    assert [(one.ranks, one.steps) for one in sometimes.findings] == [((0,), (5,))]


@pytest.mark.parametrize("sync", [False, True])
def test_a_step_in_which_all_compile_again_hides_no_late_rank(tmp_path, sync):
    """It was 'rank 2 looks late, but 8 steps cannot rule out chance': all of chance was in the one long step."""
    made = program(ddp, layers=6, steps=8, sync=sync)
    report = told(tmp_path, made, [SlowCompute(2, 2.0), *(SlowHost(r, 80_000, steps=(5,)) for r in range(4))])
    [late] = found(report, "TO-S001")
    assert (late.ranks, late.cause, late.severity) == ((2,), "gpu_compute", "error")
    assert late.impact_ms == pytest.approx(step_ms(made, [SlowCompute(2, 2.0)]) - step_ms(made, []), rel=0.1)


def test_a_step_in_which_all_compile_again_makes_nobody_late(tmp_path):
    made = program(ddp, layers=6, steps=8, sync=True)
    report = told(tmp_path, made, [SlowHost(rank, 80_000, steps=(5,)) for rank in range(4)])
    assert not found(report, "TO-S001") and not found(report, "TO-S003")


@pytest.mark.parametrize(
    "device, fault, cause", [("cuda", SlowHost(2, 6000), "host"), ("cpu", SlowCompute(2, 1.5), "host")]
)
def test_a_slow_host_is_no_remark_for_one_long_step_of_all(tmp_path, device, fault, cause):
    """It was info: 'hosts bound the whole run', by the one step in which all of them were long."""
    made = program(ddp, layers=6, steps=8, sync=True, device=device)
    report = told(tmp_path, made, [fault, *(SlowHost(rank, 80_000, steps=(5,)) for rank in range(4))])
    [late] = found(report, "TO-S001")
    assert (late.ranks, late.cause, late.severity) == ((2,), cause, "error")
    assert "hosts bound" not in late.message


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_of_two_ranks_the_one_that_is_late_in_most_steps_is_named(device):
    """Rank 0 evaluates in one step, for which rank 1 waits longest: nobody was left who is late in all the others."""
    made = program(ddp, layers=6, steps=5, sync=True, device=device)
    faults = [SlowHost(1, 5000), SlowHost(0, 60_000, steps=(6,))]
    always, _ = judge_stragglers(across(simulate(made, 2, faults)), 1.0)
    [late] = always.findings
    assert (late.ranks, late.cause) == ((1,), "host")
    assert late.impact_ms == pytest.approx(5.0, rel=0.15)
