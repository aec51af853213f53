"""On generated runs all waiting is charged, and to the rank the fault was planted on; else no straggler is judged."""

from pathlib import Path

import numpy as np
import pytest
from changed import replace
from drawn import examples
from generated_run import Collective, SlowCompute, SlowHost, SlowInput, ddp, fsdp2, hsdp, simulate, tp_dp
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import BUILDERS, CAUSES, GPU_BOUND, HOST_BOUND, across, program, true_step

from traceops.across.clocks import with_woken_threads
from traceops.across.cross_rank import ChargedWaiting, measure_across
from traceops.across.lateness import CAUSES as NAMES
from traceops.across.match import match_collectives
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.rules.stragglers import judge_stragglers
from traceops.traces.discover import discover

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
