"""All waiting is charged to the rank that caused it, on devices and where hosts exchange the data (gloo)."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from changed import replace
from drawn import examples
from fault_runs import unpacked
from generated_run import (
    Collective,
    Size,
    SlowCompute,
    SlowCopy,
    SlowHost,
    SlowInput,
    ddp,
    fsdp2,
    hsdp,
    simulate,
    summaries,
    tp_dp,
    write_traces,
)
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import BUILDERS, CAUSES, GPU_BOUND, HOST_BOUND, across, findings, predicted, program, true_step

from traceops.across.clocks import with_woken_threads
from traceops.across.cross_rank import ChargedWaiting, measure_across
from traceops.across.lateness import CAUSES as NAMES
from traceops.across.match import NO_CALL, match_collectives
from traceops.across.replay.what_if import rank_change
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.rules.overlap import judge_exposed
from traceops.rules.stragglers import judge_stragglers
from traceops.rules.validity_time import judge_clocks
from traceops.traces.discover import discover
from traceops.traces.model import CommArgs

FEW = examples(25)


def caused(lateness, rank, cause):
    return float(lateness.caused[rank][NAMES.index(cause)].sum())


@pytest.mark.slow
@FEW
@given(
    st.sampled_from(BUILDERS),
    st.sampled_from([GPU_BOUND, HOST_BOUND]),
    st.sampled_from([2, 4, 8, 16]),
    st.booleans(),
    st.data(),
)
def test_charges_add_up_to_the_waiting(builder, size, ranks, sync, data):
    rank, us = st.integers(0, ranks - 1), st.floats(0, 4000)
    steps = st.none() | st.just((4,))
    kinds = [st.builds(kind, rank, extra_us=us, steps=steps) for kind in CAUSES]
    faults = data.draw(st.lists(st.one_of(kinds), max_size=4))
    lateness = across(simulate(program(builder, size, sync=sync), ranks, faults, seed=ranks)).replay.lateness
    charged = sum(own.sum(axis=0) for own in lateness.caused.values())
    held_up = sum(lateness.waited.values())
    assert charged == pytest.approx(held_up, rel=1e-9, abs=1e-3)
    assert lateness.total_ns == pytest.approx(float(held_up.sum()))
    assert all((own >= 0).all() for own in (*lateness.caused.values(), *lateness.waited.values()))


@pytest.mark.parametrize("kind", CAUSES)
@pytest.mark.parametrize("builder", BUILDERS)
def test_the_planted_rank_causes_the_waiting_and_its_kind_is_the_cause(builder, kind):
    for size, ranks, positions in ((GPU_BOUND, 8, (0, 3, 6)), (HOST_BOUND, 4, (1, 2)), (GPU_BOUND, 16, (9,))):
        us = 1.2 * true_step(simulate(program(builder, size, sync=True), ranks)) / 1e3
        for rank in positions:
            run = simulate(program(builder, size, sync=True), ranks, [kind(rank, extra_us=us)])
            lateness = across(run).replay.lateness
            assert lateness.share(rank) > 0.9
            assert caused(lateness, rank, CAUSES[kind]) > 0.75 * lateness.caused[rank].sum()
            assert lateness.waited[rank].sum() < 0.1 * lateness.total_ns


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("builder", [hsdp, tp_dp])
def test_blame_goes_along_the_chain_to_its_root(builder, rank):
    """Most waiting is for ranks that come last because they had waited themselves."""
    run = simulate(program(builder), 8, [SlowCompute(rank, 2.5)])
    measured = across(run)
    assert measured.replay.lateness.share(rank) > 0.9
    directly = {}
    for collective in measured.matching.collectives:
        if collective.last_rank is not None:
            waited = sum(collective.wait_ns)
            directly[collective.last_rank] = directly.get(collective.last_rank, 0) + waited
    assert directly[rank] < 0.9 * sum(directly.values())  # else this would test nothing


def test_blame_goes_along_a_chain_whose_waiting_compute_hides():
    """The replicas wait for a rank that computed while its scatter waited, and so was charged with nothing itself."""
    run = simulate(program(hsdp, layers=4, sync=True), 8, [SlowHost(1, 800, at="backward")])
    assert across(run).replay.lateness.share(1) > 0.7


@pytest.mark.parametrize("builder", [hsdp, tp_dp])
@pytest.mark.parametrize("pair", [(1, 6), (0, 3), (2, 7)])
def test_two_slow_ranks_of_different_groups_share_the_blame(builder, pair):
    one, other = pair
    run = simulate(program(builder, sync=True), 8, [SlowInput(one, 2500), SlowCompute(other, extra_us=2500)])
    lateness = across(run).replay.lateness
    assert lateness.share(one) + lateness.share(other) > 0.9
    assert caused(lateness, one, "input") > 0.8 * lateness.caused[one].sum()
    assert caused(lateness, other, "gpu_compute") > 0.8 * lateness.caused[other].sum()


@pytest.mark.parametrize("step", [3, 5, 8])
@pytest.mark.parametrize("builder", BUILDERS)
def test_a_fault_in_one_step_is_charged_to_that_step(builder, step):
    run = simulate(program(builder, steps=6, sync=True), 8, [SlowHost(5, 3000, steps=(step,))])
    lateness = across(run).replay.lateness
    at = lateness.steps.index(step)
    assert lateness.steps == (3, 4, 5, 6, 7, 8)
    own = lateness.caused[5].sum(axis=0)
    assert own[at] > 0.9 * lateness.total_ns
    assert np.delete(own, at).sum() < 0.05 * lateness.total_ns


@pytest.mark.parametrize("builder", BUILDERS)
def test_what_hosts_that_run_ahead_hide_is_charged_to_nobody(builder):
    """A slow host of a run that the GPU bounds, a slow GPU of a run that its hosts bound."""
    for size, fault in ((GPU_BOUND, SlowHost(2, 700)), (HOST_BOUND, SlowCompute(2, 1.5))):
        made = program(builder, size)
        run, healthy = simulate(made, 4, [fault]), simulate(made, 4)
        assert true_step(run) == pytest.approx(true_step(healthy), rel=0.01)  # hidden indeed
        charged = across(run).replay.lateness.caused[2].sum()
        usual = across(healthy).replay.lateness.caused[2].sum()
        assert abs(charged - usual) < 0.01 * 4 * 4 * true_step(run)


def test_a_rank_whose_coming_ends_the_waiting_in_broadcasts_is_charged():
    """Each time nobody ends before it came: it is the root, or all wait for the last. Others: test_rooted.py."""
    made = program(ddp)
    steps = tuple(
        tuple(replace(op, op="broadcast") if isinstance(op, Collective) else op for op in step) for step in made.steps
    )
    lateness = across(simulate(replace(made, steps=steps), 4, [SlowCompute(2, 2.0)])).replay.lateness
    assert lateness.total_ns > 0
    assert lateness.share(2) > 0.99


@pytest.mark.parametrize("builder", [ddp, fsdp2])
def test_without_a_gpu_a_slow_rank_is_charged_too(builder):
    """There a slow operator is the host's."""
    run = simulate(builder(layers=3, steps=4, device="cpu"), 4, [SlowCompute(2, 2.0)])
    lateness = across(run).replay.lateness
    assert lateness.share(2) > 0.9
    assert caused(lateness, 2, "host") > 0.8 * lateness.caused[2].sum()


def test_waiting_that_compute_hides_is_not_counted():
    """With one bucket after another behind backward, the ranks wait while they compute."""
    lateness = across(simulate(program(tp_dp), 8, [SlowCompute(2, extra_us=900)])).replay.lateness
    assert 0 < lateness.total_ns < 0.25 * 7 * 4 * 900e3


def test_ranks_are_told_apart_by_who_they_wait_for():
    """Only rank 1's own sharding partner waits for it before gradients meet."""
    run = simulate(program(hsdp, layers=4), 8, [SlowCompute(1, 3.0, at="forward")])
    measured = across(run)
    waited = {rank: own.sum() for rank, own in measured.replay.lateness.waited.items()}
    assert max(waited, key=waited.get) != 1
    assert waited[1] < 0.05 * measured.replay.lateness.total_ns


DATA = Path(__file__).parents[1] / "data"
WITH_SHARES = (
    "ddp4", "expert_skew2", "fsdp2_4", "hsdp4", "item_sync4", "late_step4", "pipeline4", "pipeline_uneven2",
    "recompile2", "slow_gpu4", "slow_hsdp4", "slow_loader4", "straggler_gloo2", "tensor_parallel_gloo2",
    "runs/bucket_ddp_async", "runs/pytorch_hsdp", "runs/zero3",
)  # fmt: skip
WITHOUT = ("pipeline_gpipe4", "pipeline_interleaved4", "pipeline_uneven_gloo2", "pipeline_zero_bubble2")


def measured(name):
    [window] = discover(str(DATA / name)).windows
    ranks = [summarize(file) for file in window.files]
    return measure_across(ranks, len(ranks))


@pytest.mark.parametrize("name", (*WITH_SHARES, *WITHOUT))
def test_waiting_of_real_runs_is_charged_or_nobody_is_blamed(name):
    run = measured(name)
    charged, waited = run.replay.charged, sum(int(t.buckets["comm_wait"].sum()) for t in run.ranks)
    assert charged.waiting_ns == pytest.approx(waited, rel=0.1)  # that of the steps that all ranks share
    assert charged.unheld_ns + charged.charged_ns + charged.uncharged_ns == pytest.approx(charged.waiting_ns, rel=1e-3)
    assert charged.holds == (name in WITH_SHARES)
    assert all((times.caused_wait_ns is None) == (name in WITHOUT) for times in run.ranks)


@pytest.mark.parametrize("name", ["ddp4", "slow_gpu4", "slow_loader4", "runs/zero3", "item_sync4"])
def test_on_a_gpu_nothing_is_left_over(name):
    assert measured(name).replay.charged.uncharged_pct < 0.1


@pytest.mark.slow
@examples(15)
@given(st.sampled_from(BUILDERS), st.sampled_from([GPU_BOUND, HOST_BOUND]), st.sampled_from([2, 4, 8]), st.data())
def test_waiting_of_generated_runs_is_charged(builder, size, ranks, data):
    one_group = builder in (ddp, fsdp2)  # gloo names no group
    device = data.draw(st.sampled_from(["cuda", "cpu"])) if one_group else "cuda"
    kinds = [st.builds(kind, st.integers(0, ranks - 1), extra_us=st.floats(0, 4000)) for kind in CAUSES]
    faults = data.draw(st.lists(st.one_of(kinds), max_size=3))
    charged = across(simulate(replace(program(builder, size), device=device), ranks, faults)).replay.charged
    assert charged.holds
    assert charged.unheld_ns + charged.charged_ns <= 1.001 * charged.waiting_ns + 1000


@pytest.mark.parametrize("fault", [SlowCompute, SlowHost])
def test_waiting_without_a_gpu_is_charged_to_the_planted_rank(fault):
    run = across(simulate(program(ddp, device="cpu"), 3, [fault(1, extra_us=5000)]))
    assert run.replay.charged.uncharged_pct < 1
    assert run.ranks[1].caused_wait_ns > 0.9 * run.replay.charged.charged_ns > 0


def test_a_few_percent_of_the_waiting_or_of_the_steps_may_be_left_over():
    assert ChargedWaiting(100, 0, 95, 200).holds
    assert ChargedWaiting(100, 60, 35, 200).holds
    assert not ChargedWaiting(100, 0, 94, 200).holds
    assert ChargedWaiting(10, 0, 0, 500).holds  # 2 % of the steps hide no straggler
    assert not ChargedWaiting(11, 0, 0, 500).holds
    assert ChargedWaiting(0, 0, 0, 500).uncharged_pct == 0


def test_waiting_that_nobody_is_charged_for_leaves_stragglers_unevaluated():
    run = measured("slow_gpu4")
    assert any(verdict.findings for verdict in judge_stragglers(run, 1.0))
    for verdict in judge_stragglers(
        replace(run, replay=replace(run.replay, charged=ChargedWaiting(100, 0, 60, 200))), 1.0
    ):
        assert not verdict.findings
        assert verdict.not_evaluated == "40 % of what ranks wait for each other can be charged to no rank"


def test_a_rank_that_leads_whoever_caused_the_rest_is_named_all_the_same():
    run = measured("slow_gpu4")
    first, others = judge_stragglers(
        replace(run, replay=replace(run.replay, charged=ChargedWaiting(100, 0, 85, 200))), 1.0
    )
    assert [(found.ranks, found.confidence) for found in first.findings] == [((2,), "medium")]
    assert "15 % of what ranks wait for each other can be charged to no rank" in first.findings[0].message
    assert not others.findings and others.not_evaluated, "nobody is cleared"


def test_a_replay_that_is_off_names_only_whose_cure_saves_far_more():
    run = measured("slow_gpu4")
    off = {
        error: replace(run.replay.what_if, replayed_ns=run.replay.what_if.measured_ns * (1 + error))
        for error in (0.08, 0.2)
    }
    named, _ = judge_stragglers(replace(run, replay=replace(run.replay, what_if=off[0.08])), 1.0)
    assert [found.ranks for found in named.findings] == [(2,)] and "off by up to 8 %" in named.findings[0].message
    assert not judge_stragglers(replace(run, replay=replace(run.replay, what_if=off[0.2])), 1.0)[0].findings


@pytest.mark.parametrize("missing_us", [-200, 200])
def test_a_break_that_ends_long_before_its_collective_is_decided_by_the_last_member(missing_us):
    """The backend's thread got no core and recorded the end late; a break that ends before the last came is no wait."""
    [window] = discover(str(DATA / "straggler_gloo2")).windows
    ranks = [summarize(file) for file in window.files]
    matching = match_collectives(ranks, (0, 1))
    waited = max((one for one in matching.collectives if one.members[0][0] == 0), key=lambda one: one.wait_ns[0])
    position, wait = waited.members[0][1], waited.wait_ns[0]
    program_ = ranks[0].program
    last_came = int(ranks[0].comm.start[position]) + wait
    gone = program_.join_comm == position
    assert gone.any()
    spell = (np.array([program_.join_start[gone][0]]), np.array([last_came - missing_us * 1000]), np.array([position]))
    kept = {name: getattr(program_, name)[~gone] for name in ("join_start", "join_end", "join_comm")}
    opened = replace(program_, **kept, spell_start=spell[0], spell_end=spell[1], spell_comm=spell[2])
    decided = with_woken_threads([replace(ranks[0], program=opened), ranks[1]], matching)[0].program
    assert (position in decided.join_comm) == (missing_us < 0)
    assert bool(decided.unheld.within(*spell[:2])[0]) == (missing_us > 0)
    assert decided.join_start.tolist() == sorted(decided.join_start.tolist())


def test_a_report_without_shares_says_why():
    report = analyze(DATA / "pipeline_gpipe4")
    assert all((row.late_share, row.caused_wait_ms) == (None, None) for row in report.ranks)
    assert report.tables.lateness == ()
    assert report.summary.uncharged_wait_pct > 5
    shared = analyze(DATA / "slow_gpu4")
    assert sum(row.late_share for row in shared.ranks) == pytest.approx(1, abs=1e-3)
    assert shared.summary.uncharged_wait_pct < 0.1


@pytest.mark.parametrize("name, slept_ms", [("straggler_gloo2", 50), ("tensor_parallel_gloo2", 50)])
def test_the_rank_that_sleeps_is_named(name, slept_ms):
    report = analyze(DATA / name)
    late = [finding for finding in report.findings if finding.rule in ("TO-S001", "TO-S002")]
    assert [(f.rule, f.severity, f.ranks, f.cause) for f in late] == [("TO-S001", "error", (1,), "host")]
    assert late[0].impact_ms == pytest.approx(slept_ms, rel=0.4)
    assert report.ranks[1].late_share > 0.9
    assert report.ranks[0].comm_wait_ms > slept_ms
    assert card_of(report).headline.startswith("Rank 1's host takes longer")


def test_waiting_for_a_functional_collective_is_no_compute():
    report = analyze(DATA / "tensor_parallel_gloo2")
    waits, other = report.ranks
    assert waits.compute_ms == pytest.approx(other.compute_ms, rel=0.35)
    assert waits.compute_ms < 30


def test_collectives_of_which_nothing_is_known_count_as_left_out():
    """All gathers of two FSDP2 ranks were called launched before the window, while 100 % were said to be matched."""
    [window] = discover(str(DATA / "straggler_gloo2")).windows
    ranks = [summarize(file) for file in window.files]
    known = CommArgs(op="all_reduce", elements_in=8, elements_out=8, dtype="Float", group_name="0")
    half = [
        replace(one, comm=replace(one.comm, args=[known if n % 2 else None for n in range(len(one.comm.args))]))
        for one in ranks
    ]
    matching = match_collectives(half, (0, 1))
    assert list(matching.unmatched) == [NO_CALL]
    assert matching.matched_pct == pytest.approx(50, abs=10)


def stretched(folder, rank, last_gloo_ms=0.0, behind_ms=0.0):
    """Make a rank's last collective end later, or its last operator and step; nobody is there to wait for that."""
    path = folder / f"rank_{rank}.pt.trace.json"
    trace = json.loads(path.read_text())
    rows = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    steps = [event for event in rows if event["name"].startswith("ProfilerStep")]
    last = max(steps, key=lambda event: event["ts"])
    collective = max((e for e in rows if e["name"].startswith("gloo:")), key=lambda e: e["ts"] + e["dur"])
    collective["dur"] += 1000 * last_gloo_ms
    for event in rows:
        if event["cat"] == "cpu_op" and event["ts"] >= collective["ts"] + collective["dur"] - 1000 * last_gloo_ms:
            event["ts"] += 1000 * last_gloo_ms
    last["dur"] += 1000 * (last_gloo_ms + behind_ms)
    path.write_text(json.dumps(trace))


@pytest.fixture
def healthy(tmp_path):
    write_traces(simulate(program(ddp, device="cpu", steps=4), 2), tmp_path)
    return tmp_path


def test_a_thread_that_goes_on_late_waits_for_nobody(healthy):
    """Its backend was kept from running after all had come: no other rank made it wait."""
    stretched(healthy, 0, last_gloo_ms=30)
    report = analyze(healthy)
    assert report.ranks[0].comm_wait_ms < 1
    assert report.ranks[1].caused_wait_ms < 1
    assert report.summary.replay.error_pct < 2


def test_a_step_in_which_nobody_waits_for_a_rank_is_not_held_against_it(tmp_path):
    """The others wait a little for it in every step, but not in the one that takes it long."""
    made = program(ddp, device="cpu", steps=6, layers=8)  # a fifth of the step: late in every step is another matter
    write_traces(simulate(made, 2, [SlowHost(0, extra_us=1400)]), tmp_path)
    stretched(tmp_path, 0, behind_ms=30)
    report = analyze(tmp_path)
    assert report.ranks[1].comm_wait_ms > 1
    assert [finding for finding in report.findings if finding.rule == "TO-S002"] == []
    [check] = [check for check in report.checks if check.rule == "TO-S002"]
    assert "almost no rank waits for it there" in check.reason


def test_ranks_that_are_late_by_turns_on_cpus_are_not_accused():
    """Now one and now another does not get a core."""
    once = [SlowHost(0, extra_us=9000, steps=(4,))]
    by_turns = [*once, SlowHost(1, extra_us=7000, steps=(6,))]
    made = program(ddp, device="cpu", steps=6)
    assert [f.ranks for f in findings(across(simulate(made, 3, once))) if f.rule == "TO-S002"] == [(0,)]
    turns = across(simulate(made, 3, by_turns))
    assert findings(turns) == []
    assert all("other ranks are late in turn" in told.not_evaluated for told in judge_stragglers(turns, 1.0))
    on_gpu = across(simulate(program(ddp, steps=6, sync=True), 3, by_turns))
    assert {f.ranks for f in findings(on_gpu) if f.rule == "TO-S002"} == {(0,), (1,)}


def test_a_host_that_is_late_now_and_then_on_shared_cores_is_a_remark():
    """Its trace shows that it was late, not that it was no neighbour's doing."""
    made = program(ddp, device="cpu", steps=6)
    [found] = [f for f in findings(across(simulate(made, 3, [SlowHost(0, 9000, steps=(4,))]))) if f.rule == "TO-S002"]
    assert (found.severity, found.confidence, found.cause) == ("info", "low", "host")
    assert found.facts["doubt"]["kind"] == "shared_cores"


def test_ends_that_lie_apart_on_shared_cores_are_no_sign_of_another_run():
    """And nothing that rests on telling waiting from transfer is claimed then."""
    run = across(simulate(replace(program(ddp, device="cpu", steps=6), end_jitter_us=4000.0), 2))
    [found] = judge_clocks(run).findings
    assert (found.severity, found.cause) == ("info", "shared_cores")
    assert "had no core" in found.message and "Give every rank cores" in found.advice
    assert "TO-V006" in judge_exposed(run).not_evaluated


def test_ranks_of_one_host_share_its_clock_though_their_threads_go_on_late():
    """Ends that lie milliseconds apart, more often on one rank, are no other clock."""
    run = simulate(program(ddp, device="cpu", steps=6), 2, [SlowHost(1, extra_us=5000)])
    late = run_with_late_ends(run, rank=1, by_us=(3000, 0, 4000, 2000, 5000))
    assert late.clocks.fits[0] == late.clocks.fits[1]
    assert late.clocks.residual_p50_ns < 2e6
    apart = run_with_late_ends(run, rank=1, by_us=(3000, 0, 4000, 2000, 5000), one_host=False)
    assert apart.clocks.fits[0] != apart.clocks.fits[1]


def run_with_late_ends(run, rank, by_us, one_host=True):
    """What is measured where every collective of a rank ends later by one of these times, in turn."""
    ranks = summaries(run)
    comm = ranks[rank].comm
    late = np.resize(np.array(by_us), len(comm.end)) * 1000
    ranks[rank] = replace(ranks[rank], comm=replace(comm, end=comm.end + late))
    hosts = {0: "a", 1: "a" if one_host else "b"}
    return measure_across(ranks, 2, hosts)


def test_the_rank_that_came_last_is_told_by_the_clock():
    run = across(simulate(program(ddp, device="cpu"), 3, [SlowHost(2, extra_us=5000)]))
    lasts = [collective.last_rank for collective in run.matching.collectives]
    assert lasts.count(2) >= len(lasts) / 3
    for collective in run.matching.collectives:
        assert collective.wait_ns[[rank for rank, _ in collective.members].index(collective.last_rank)] == 0


def test_gradients_given_to_gloo_in_backward_that_it_begins_later_are_synchronised_there(tmp_path):
    """A model of one bucket: gloo's thread got a core after backward. It was TO-V004: 'none launched a collective'."""
    run = tmp_path / "run"
    shutil.copytree(DATA / "straggler_gloo2", run)
    for path in run.glob("*.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        rows = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        for step in [e for e in rows if e["name"].startswith("ProfilerStep")]:
            own = [e for e in rows if step["ts"] <= e["ts"] < step["ts"] + step["dur"]]
            given = max((e for e in own if e["name"].startswith("c10d::")), key=lambda e: e["ts"])
            last = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            document["traceEvents"].append({**given, "name": last, "ts": given["ts"] - 1, "dur": given["dur"] + 2})
            begun = max((e for e in own if e["name"].startswith("gloo:")), key=lambda e: e["ts"])
            later = given["ts"] + given["dur"] + 50
            begun["ts"], begun["dur"] = later, max(begun["ts"] + begun["dur"] - later, 1)
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    [check] = [check for check in analyze(run).checks if check.rule == "TO-V004"]
    assert check.status == "clear", check.reason


def test_a_rank_whose_operators_take_longer_is_told_by_them(tmp_path):
    """Twelve times the rows: 'Rank 1's host takes longer', which sends the reader to what else its host does."""
    write_traces(simulate(program(ddp, device="cpu", steps=6), 2, [SlowCompute(1, 6.0)]), tmp_path)
    assert card_of(analyze(tmp_path)).headline.startswith("Rank 1's operators take longer: the other rank waits")


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
