"""Two troubles at once, on small real pieces: both are named, and nothing false beside them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from changed import replace
from generated_run import SlowCompute, SlowHost, fsdp2, simulate
from measured_runs import across, program

from traceops.across import work as own_times
from traceops.across.run_use import CoreWaits
from traceops.core.claims import claim_of
from traceops.pipeline import conclude
from traceops.pipeline.analyze import analyze
from traceops.rules import overlap_gain, pipeline
from traceops.rules.pipeline import without_loading
from traceops.rules.steps import LongSteps, causes_of_unlike
from traceops.rules.stragglers_conditions import far_from_all, in_one_place
from traceops.rules.stragglers_findings import of_operators
from traceops.traces.run_manifest import ended_steps

DATA = Path(__file__).parents[1] / "data"


def measured(name):
    """The report of a folder, and what was measured across its ranks."""
    kept = []
    whole = conclude.measure_across

    def keep(*args, **kwargs):
        kept.append(whole(*args, **kwargs))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conclude, "measure_across", keep)
        report = analyze(str(DATA / name))
    return report, kept[0]


@pytest.fixture(scope="module")
def two_late():
    return measured("two_late_gloo3")


@pytest.fixture(scope="module")
def middle():
    return measured("pipeline_middle_gloo3")


def of(report, rule):
    return [found for found in report.findings if found.rule == rule]


def test_a_host_that_is_late_in_one_region_is_no_remark_though_the_profilers_cost_is_not_known(two_late):
    report, _ = two_late
    late = of(report, "TO-S001")
    assert report.findings[0].rule == "TO-S001"
    assert all(found.severity == "error" and "by nature" not in found.message for found in late)


def test_a_late_rank_hidden_behind_a_later_one_is_named_though_that_one_is_cured_to_its_pace(two_late):
    report, run = two_late
    assert sorted(found.ranks for found in of(report, "TO-S001")) == [(1,), (2,)]
    assert [(late.rank, late.cause) for late in run.replay.stragglers.found] == [(1, "host"), (2, "host")]
    both = next(row for row in report.what_if if tuple(row.ranks) == (1, 2))
    assert both.predicted_step_time_ms < 40  # 25.9 ms with nothing planted


def test_what_waits_for_others_is_no_region_that_grew(two_late):
    report, _ = two_late
    grown = [e.grown for found in of(report, "TO-S001") for e in found.evidence if isinstance(e.grown, str)]
    assert grown and not any(name.startswith("gloo:") for name in grown)


def test_collectives_of_unknown_size_are_counted_where_they_are_many(two_late, monkeypatch):
    _, run = two_late
    assert overlap_gain.of_unknown_size(run) is None
    monkeypatch.setattr(overlap_gain, "MANY", 1)
    assert overlap_gain.of_unknown_size(run).count >= 1


def test_a_slower_stage_is_named_where_the_steps_could_not_be_replayed(middle):
    report, run = middle
    assert not run.replay.what_if.holds
    [found] = of(report, "TO-B001")
    assert report.findings[0] == found
    assert (found.ranks, found.severity) == ((1,), "warning")
    assert "the steps could not be replayed" in found.message


def test_a_host_that_computes_works_between_operators_too(middle):
    _, run = middle
    [bubble] = run.bubbles
    for stage, times in zip(bubble.stages, run.ranks, strict=True):
        own = times.mean_ms("compute") + times.mean_ms("idle_host")
        assert stage.work / 1e6 == pytest.approx(own, rel=0.05)


def test_sends_behind_a_stage_that_waits_for_its_input_are_not_late_for_themselves(middle):
    _, run = middle
    [bubble] = run.bubbles
    first = run.ranks[0]
    loading = dict(first.buckets, idle_input=first.buckets["idle_input"] + round(bubble.stages[2].late))
    fed = replace(run, ranks=(replace(first, buckets=loading), *run.ranks[1:]))
    assert bubble.stages[2].late > 10e6
    assert without_loading(fed, bubble).stages[2].late == 0
    assert without_loading(fed, bubble).stages[0].late == bubble.stages[0].late


def test_how_many_steps_ranks_made_is_known_once_all_have_finished():
    ranks = [{"rank": rank, "status": "finished", "steps": steps} for rank, steps in ((0, 40), (1, 30))]
    assert ended_steps({"ranks": ranks}) == {0: 40, 1: 30}
    assert ended_steps({"ranks": [*ranks, {"rank": 2, "status": "failed", "steps": 3}]}) == {}


def test_a_long_step_names_the_rank_that_the_others_wait_for_in_the_next_one():
    """Rank 0 collects garbage at the end of steps 9 and 14; the stages behind it wait in steps 10 and 15."""
    report = analyze(str(DATA / "pipeline_gc_gloo3"))
    [found] = of(report, "TO-T001")
    assert (found.steps, found.cause) == ((10, 15), "host")
    claim = claim_of(found, LongSteps)
    assert (claim.does, claim.ranks) == ("host_itself", (0,))


def test_late_sends_are_a_remark_where_senders_may_have_had_no_core(middle, monkeypatch):
    """A healthy pipeline of three ranks on two cores: 'look at what the sending stage does'."""
    _, run = middle
    monkeypatch.setattr(pipeline, "_LATE_PCT", (10.0, 10.0))
    waits = {times.summary.rank: {} for times in run.ranks}
    for known, severity in ((None, "warning"), (CoreWaits(waits), "warning"), (CoreWaits(), "info")):
        [found] = pipeline.judge_late(run, known).findings
        assert found.severity == severity
        assert ("a sender that has no core sends late too" in found.message) == (severity == "info")


def test_a_host_that_takes_far_longer_than_all_its_peers_is_not_the_slowest_by_nature():
    """It writes for 110 ms a step outside of any operator: 'one of them is the slowest by nature'."""
    [found] = of(analyze(str(DATA / "diary_gloo2")), "TO-S001")
    assert (found.severity, found.ranks, found.cause) == ("error", (0,), "host")
    assert "by nature" not in found.message


def test_who_is_late_for_no_cause_may_have_had_no_core():
    """A healthy run on cores that others used too: 'Rank 1 is late: no single cause explains it', an error."""
    report = analyze(str(DATA / "recommender_even_gloo2"))
    assert not of(report, "TO-S001")
    [check] = [check for check in report.checks if check.rule == "TO-S001"]
    assert check.status == "not_evaluated" and "the replay is off by up to 8 %" in check.reason


def test_of_two_ranks_both_are_named_where_each_is_late_in_a_place_of_its_own():
    """Rank 0's loader sleeps 150 ms a step, rank 1 80 ms in forward: only the loader was told."""
    late = of(analyze(str(DATA / "tp_late_gloo2")), "TO-S001")
    assert [(found.ranks, found.cause) for found in late] == [((0,), "input"), ((1,), "host")]
    assert [found.impact_ms for found in late] == [pytest.approx(150, rel=0.1), pytest.approx(80, rel=0.1)]
    assert [found.severity for found in late] == ["error", "error"]
    assert "by nature" not in late[1].message, "it is late between two collectives, and nowhere else"


def test_hosts_behind_gpus_are_not_compared_by_what_their_ranks_wait():
    """A rank that launches late is waited for by ranks whose hosts may be as slow: 'the slowest by nature' stays."""
    made = program(fsdp2, steps=4)
    run = across(simulate(made, 4, [SlowHost(2, 20000)]))
    [late] = run.replay.stragglers.found
    assert not far_from_all(run, late)
    assert not in_one_place(run, late, float(late.saved.mean()))


def test_a_host_that_is_slower_in_everything_is_late_in_no_one_place():
    made = program(fsdp2, steps=4)
    run = across(simulate(made, 4, [SlowHost(2, 20000)]))
    [late] = run.replay.stragglers.found
    cpu = replace(run, ranks=tuple(replace(one, summary=replace(one.summary, on_gpu=False)) for one in run.ranks))
    saved = float(late.saved.mean())
    assert in_one_place(cpu, late, saved)
    assert not in_one_place(cpu, late, 10 * saved), "that place is hardly any of it"


@pytest.mark.parametrize(("fault", "told"), [(SlowCompute(1, 3.0), True), (SlowHost(1, 20000), False)])
def test_a_rank_without_a_gpu_that_computes_longer_is_told_so(fault, told):
    """One with five times as long texts: 'its host takes longer', and the advice was to look for other processes."""
    run = across(simulate(program(fsdp2, steps=4), 4, [fault]))
    [late] = run.replay.stragglers.found
    on_cpu = replace(
        run, replay=replace(run.replay, graph=replace(run.replay.graph, on_cpu=frozenset(run.replay.graph.ranks)))
    )
    assert bool(of_operators(on_cpu, late)) == told
    assert of_operators(run, late) == (), "behind a GPU kernels tell"


@pytest.mark.parametrize(("but", "far"), [((), False), ((11,), True), ((10, 11, 12, 13), False)])
def test_a_step_that_is_long_by_another_rank_does_not_make_a_late_rank_slow_by_nature(monkeypatch, but, far):
    """One of four recorded steps waited 700 ms for rank 0's batch; 116 ms in one line of rank 1 were "by nature"."""
    took = {0: [12.0, 712.0, 12.0, 12.0], 1: [133.0, 12.0, 133.0, 133.0]}
    monkeypatch.setattr(own_times, "own_steps", lambda graph, rank: np.array(took[rank]))
    graph = SimpleNamespace(steps=(10, 11, 12, 13), peers=lambda rank: [1 - rank])
    assert own_times.far_beyond(graph, 1, times=2.0, but=but) is far


def test_a_recorded_step_counts_as_one_time_of_its_cause():
    _, run = measured(DATA / "recompile2")
    assert causes_of_unlike(SimpleNamespace(run=run)) == {"recompilation": 1}
