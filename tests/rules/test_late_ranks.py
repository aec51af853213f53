"""TO-S001 to TO-S003: which ranks are late, together with others, behind others, and without the profiler."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from changed import replace
from fault_runs import unpacked
from generated_run import SlowCompute, SlowHost, SlowInput, ddp, fsdp2, simulate, step_durations, write_traces
from light_run import write_light
from measured_runs import across, program

from traceops.across import work as own_times
from traceops.across.host_difference import Longer, grown
from traceops.across.replay.what_if import WORK_SHARED, Prediction
from traceops.across.run_steps import Share
from traceops.across.run_use import CoreWaits
from traceops.across.undisturbed import LightRank, Undisturbed
from traceops.across.work import WorkCompared
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.measure.host_places import CodePlace
from traceops.pipeline import conclude
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of, told_first
from traceops.render.report.lead import lead_finding
from traceops.report.model import Report
from traceops.rules import overlap_gain, pipeline, whole_run_hosts
from traceops.rules.idle_time import HiddenLoading
from traceops.rules.named_lines import in_each_step, in_plain_steps
from traceops.rules.pipeline import without_loading
from traceops.rules.registry import BY_ID
from traceops.rules.shared import MOST_OUT_OF_STEP_PCT, out_of_step_pct
from traceops.rules.steps import LongSteps, causes_of_unlike
from traceops.rules.stragglers import judge_stragglers
from traceops.rules.stragglers_claims import Late
from traceops.rules.stragglers_conditions import far_from_all, in_one_place, lost_again
from traceops.rules.stragglers_findings import of_operators
from traceops.rules.validity_time import judge_clocks
from traceops.rules.whole_run_claims import PlainStep
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
    [hidden] = [found for found in of(report, "TO-S001") if found.ranks == (2,)]
    assert hidden.proof(Fact.SHARE_OF_ALL_WAITING) is None, "'waiting for it 0.0, share of all waiting 100 %'"
    both = next(row for row in report.what_if if tuple(row.ranks) == (1, 2))
    assert both.predicted_step_time_ms < 40  # 25.9 ms with nothing planted


def test_what_waits_for_others_is_no_region_that_grew(two_late):
    report, _ = two_late
    named = [e.grown for found in of(report, "TO-S001") for e in found.evidence if isinstance(e.grown, str)]
    assert named and not any(name.startswith("gloo:") for name in named)


def test_a_compiled_graph_is_the_same_on_each_rank():
    """'## Call CompiledFxGraph f5w7… ## 14.5 ms on rank 1, 0 on others': each rank hashes its own."""
    ranks = []
    for rank, (key, ms) in enumerate((("f5w7" * 13, 58.0), ("fbod" * 13, 40.0), ("fdle" * 13, 40.0))):
        host = SimpleNamespace(regions=((f"## Call CompiledFxGraph {key} ##", ms),))
        ranks.append(SimpleNamespace(summary=SimpleNamespace(rank=rank, host=host), duration=[1, 1]))
    lateness = SimpleNamespace(caused={rank: np.zeros((2, 2)) for rank in range(3)})
    replay = SimpleNamespace(graph=SimpleNamespace(peers=lambda rank: [1, 2]), lateness=lateness)
    [own] = grown(SimpleNamespace(replay=replay, ranks=ranks), 0, "host")
    assert (own.name, own.ms, own.peers_ms) == ("## Call CompiledFxGraph … ##", 29.0, 20.0)


def test_collectives_of_unknown_size_are_counted_where_they_are_many(two_late, monkeypatch):
    _, run = two_late
    assert overlap_gain.of_unknown_size(run) is None
    monkeypatch.setattr(overlap_gain, "MANY", 1)
    assert overlap_gain.of_unknown_size(run) >= 1


def test_a_slower_stage_is_named_where_the_steps_could_not_be_replayed(middle):
    report, run = middle
    assert not run.replay.what_if.holds
    [found] = of(report, "TO-B001")
    assert report.findings[0] == found
    assert found.impact_ms < 60, "82 ms, as if nobody had to do its work"
    assert (found.ranks, found.severity) == ((1,), "warning")
    assert claim_of(found, pipeline.UnevenStage).then is None, "the steps could not be replayed"


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
    monkeypatch.setattr(pipeline, "BOUNDS", pipeline.PipelineBounds(late_pct=(10.0, 10.0)))
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
    assert found.proof(Fact.GREW) is None, "'AccumulateGrad 11.9 ms, 1.06 on others' proves no 129 ms"


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
    graph = replace(run.replay.graph, on_cpu=frozenset(run.replay.graph.ranks))
    on_cpu = replace(run, replay=replace(run.replay, graph=graph))
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


PIPELINE = Path(__file__).parents[1] / "data" / "pipeline_uneven2"


def test_a_rank_that_is_late_in_no_step_is_not_named(tmp_path):
    """Of a pipeline whose traces hold no operators, a stage was 'late in steps :'."""
    for path in PIPELINE.glob("*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [
            e for e in trace["traceEvents"] if e.get("cat") != "cpu_op" or "Collective name" in e.get("args", {})
        ]
        (tmp_path / path.stem).write_text(json.dumps(trace))
    report = analyze(tmp_path)
    assert not [one for one in report.findings if one.rule == "TO-S002" and not one.steps]
    assert all("in steps :" not in one.message for one in report.findings)
    [check] = [one for one in report.checks if one.rule == "TO-S002"]
    assert check.status != "fired"


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


@pytest.mark.parametrize(
    ("saved_ms", "lost"),
    [
        ((-5.4, 11.86, 5.2, -10.4), True),  # as nanoGPT on a GPU that two ranks share: 0.31 of 36 ms a step in the mean
        ((0.1, 12.0, 0.0, -0.3), False),
        ((3.0, 12.0, 11.0, 2.0), False),
    ],
)
def test_what_other_steps_would_lose_is_no_gain(saved_ms, lost):
    """'Rank 0 is late in steps 11, 12' was a warning in a healthy run, with a step that would be 1 % shorter."""
    assert lost_again(SimpleNamespace(saved=np.array(saved_ms) * 1e6)) is lost


STACKS_LATE = Path(__file__).parents[1] / "data" / "stacks_late2"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def late(tmp_path: Path, waits_ms: float, profiled_ms: float = 103.0):
    """What is said where rank 0 waits for so long of each step of 100 ms in the light window."""
    return late_report(tmp_path, waits_ms, profiled_ms)[1]


def late_report(tmp_path: Path, waits_ms: float, profiled_ms: float):
    run = tmp_path / "run"
    shutil.copytree(STACKS_LATE, run)
    told = {"world_size": 2, "unprofiled_step_ms": 100.0, "profiled_step_ms": profiled_ms}
    (run / "run.json").write_text(json.dumps(told))
    for rank in range(2):
        begin = 90 - (waits_ms if rank == 0 else 0.0)
        spans = [("gemm", 0, 40, 7), (GATHER, begin, 99.99, 33)]
        write_light(run, rank, 6, 100.0, lambda _step, spans=spans: spans)
    report = analyze(run)
    assert report.undisturbed and report.undisturbed.step_ms == pytest.approx(100, abs=1)
    [found] = [one for one in report.findings if one.rule == "TO-S001"]
    return report, found


def test_what_nobody_waits_for_without_the_profiler_is_a_remark(tmp_path):
    found = late(tmp_path, 3.0)
    assert found.severity == "info" and found.confidence == "low"
    assert found.facts["doubt"]["kind"] == "light" and found.facts["doubt"]["waiting"] == pytest.approx(3.0)


def test_what_the_light_window_shows_too_stays_as_it_was(tmp_path):
    found = late(tmp_path, 27.0)
    assert found.severity == "error" and "light window" not in found.message


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


def late_finding(saved_ms, waits_ms, severity="error"):
    evidence = [Evidence(Fact.WAITING_FOR_IT, waits_ms, "ms/step and rank", rank=1)]
    return BY_ID["TO-S001"].finding(severity, "high", "Late.", evidence, ranks=[1], impact_ms=saved_ms, cause="host")


def inputs(recorded_ms, step_ms, waits_ms):
    ranks = [
        LightRank(rank, step_ms, 28.0, 2.0, waits, 0.0, 0.4, step_ms - 30.4 - waits, waits)
        for rank, waits in ((0, waits_ms), (1, 0.0))
    ]
    light = Undisturbed(step_ms, step_ms, "cupti", 6, tuple(ranks))
    return SimpleNamespace(undisturbed=light, run=SimpleNamespace(step_ms=recorded_ms))


@pytest.mark.parametrize(
    ("recorded", "saved", "waited", "step", "waits", "seen", "then"),
    [
        (125.2, 34.0, 68.2, 83.7, 48.6, 40.8, 42.9),  # a line of 40 ms: 42.4 to 45.4 without it
        (83.6, 10.9, 45.7, 78.6, 41.4, 39.4, 39.2),  # the same beside evaluations: as recorded 72.7, hardly stretched
        (170.6, 103.6, 124.4, 99.6, 64.0, 0.0, 46.3),  # cores hogged, no line
    ],
)
def test_the_step_that_is_left_is_that_of_the_cured_program(recorded, saved, waited, step, waits, seen, then):
    told = in_plain_steps(late_finding(saved, waited), inputs(recorded, step, waits), seen)
    assert step - told.impact_ms == pytest.approx(then, abs=0.1) and told.severity == "error"
    assert PlainStep(then=step - told.impact_ms, step=step, pct=100 * told.impact_ms / step).message() in told.message


def test_a_rank_whose_cure_is_worth_little_without_the_profiler_is_a_remark():
    """Rank 0 saved a checkpoint each 20th step, and was a warning for 6 % of the others."""
    told = in_plain_steps(late_finding(7.5, 16.2, "warning"), inputs(54.9, 38.3, 5.2), 0.0)
    assert told.severity == "info" and told.impact_ms == pytest.approx(2.4, abs=0.05)


def test_nobody_is_charged_with_more_than_the_others_wait():
    assert in_plain_steps(late_finding(34.0, 68.2), inputs(125.2, 83.7, 20.0), 60.0).impact_ms == 20.0


def test_what_holds_without_the_profiler_already_stays_as_it_is():
    found = late_finding(34.0, 68.2)
    assert in_plain_steps(found, inputs(86.0, 83.7, 48.6), 10.0) is found
    assert in_plain_steps(replace(found, severity="info"), inputs(125.2, 83.7, 48.6), 40.8).impact_ms == 34.0
    nothing = SimpleNamespace(undisturbed=None, run=SimpleNamespace(step_ms=125.2))
    assert in_plain_steps(found, nothing, 40.8) is found


def test_what_a_rank_does_beside_its_program_in_most_steps():
    run = SimpleNamespace(
        timed=SimpleNamespace(sum=lambda: 144), start=(), typical_ms=234.0, garbage={0: Share(0, 0), 1: Share(4, 4)},
        compiled={0: Share(0.5, 1), 1: Share(78.0, 143)},
    )  # fmt: skip
    own = in_each_step(run, [1])
    assert own is not None and (own.cause, own.rank) == ("recompilation", 1)
    assert own.ms == pytest.approx(181.4, abs=0.1)
    assert in_each_step(run, [0]) is None


RUNS = sorted({path.parent for path in DATA.rglob("*trace.json*")} - {DATA / "hostile"})
SAVED = {
    Fact.SAVED_AT_PEERS_PACE, Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY, Fact.SAVED_AT_THEIR_PACE,
    Fact.SAVED_WITHOUT_IT, Fact.SAVED_BY_EVEN_STAGES, Fact.SAVED_AT_THE_OTHERS_PACE, Fact.SAVED_AT_REFERENCE,
    Fact.SAVED_WITH_NCCL,
}  # fmt: skip


@pytest.fixture(scope="module", params=RUNS, ids=lambda path: str(path.relative_to(DATA)))
def report(request: pytest.FixtureRequest) -> Report:
    return analyze(request.param)


def test_evidence_of_a_saving_is_the_impact(report: Report) -> None:
    for finding in report.findings:
        saved = [one.value for one in finding.evidence if one.fact in SAVED and finding.proof(Fact.PLAIN_SAVED) is None]
        assert all(value == pytest.approx(finding.impact_ms, abs=1e-3) for value in saved), finding
        assert len(saved) <= 1, finding


def test_the_claim_and_the_card_give_one_step(report: Report) -> None:
    lead, card = lead_finding(report), card_of(report)
    claim = None if lead is None else claim_of(lead, Late)
    if claim is None or claim.then is None or card.fixed_ms is None or claim.steps:
        return
    assert claim.then == pytest.approx(card.fixed_ms, abs=0.01) or len(told_first(report)) > 1


def test_the_claim_says_what_the_impact_is(report: Report) -> None:
    for finding in report.findings:
        if finding.kind == "late" and isinstance(finding.facts, dict) and finding.proof(Fact.PLAIN_SAVED) is None:
            assert finding.facts["saved"] == pytest.approx(finding.impact_ms, abs=1e-3)
            then = finding.facts.get("then", finding.facts.get("then_or_more"))
            if then is not None and "then_least" not in finding.facts:
                assert finding.facts["step"] - then == pytest.approx(finding.impact_ms, abs=1e-3)


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
