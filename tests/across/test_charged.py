"""All exposed waiting is charged to somebody or was no loss; where it is not, stragglers are not evaluated."""

from pathlib import Path

import numpy as np
import pytest
from changed import replace
from drawn import examples
from generated_run import SlowCompute, SlowHost, ddp, fsdp2, simulate
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import BUILDERS, CAUSES, GPU_BOUND, HOST_BOUND, across, program

from traceops.across.arrivals import with_woken_threads
from traceops.across.cross_rank import ChargedWaiting
from traceops.across.match import match_collectives
from traceops.across.measure_across import measure_across
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.rules.stragglers import judge_stragglers
from traceops.traces.discover import discover

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
    charged, waited = run.charged, sum(int(t.buckets["comm_wait"].sum()) for t in run.ranks)
    assert charged.waiting_ns == pytest.approx(waited, rel=0.1)  # that of the steps that all ranks share
    assert charged.unheld_ns + charged.charged_ns + charged.uncharged_ns == pytest.approx(charged.waiting_ns, rel=1e-3)
    assert charged.holds == (name in WITH_SHARES)
    assert all((times.caused_wait_ns is None) == (name in WITHOUT) for times in run.ranks)


@pytest.mark.parametrize("name", ["ddp4", "slow_gpu4", "slow_loader4", "runs/zero3", "item_sync4"])
def test_on_a_gpu_nothing_is_left_over(name):
    assert measured(name).charged.uncharged_pct < 0.1


@pytest.mark.slow
@examples(15)
@given(st.sampled_from(BUILDERS), st.sampled_from([GPU_BOUND, HOST_BOUND]), st.sampled_from([2, 4, 8]), st.data())
def test_waiting_of_generated_runs_is_charged(builder, size, ranks, data):
    one_group = builder in (ddp, fsdp2)  # gloo names no group
    device = data.draw(st.sampled_from(["cuda", "cpu"])) if one_group else "cuda"
    kinds = [st.builds(kind, st.integers(0, ranks - 1), extra_us=st.floats(0, 4000)) for kind in CAUSES]
    faults = data.draw(st.lists(st.one_of(kinds), max_size=3))
    charged = across(simulate(replace(program(builder, size), device=device), ranks, faults)).charged
    assert charged.holds
    assert charged.unheld_ns + charged.charged_ns <= 1.001 * charged.waiting_ns + 1000


@pytest.mark.parametrize("fault", [SlowCompute, SlowHost])
def test_waiting_without_a_gpu_is_charged_to_the_planted_rank(fault):
    run = across(simulate(program(ddp, device="cpu"), 3, [fault(1, extra_us=5000)]))
    assert run.charged.uncharged_pct < 1
    assert run.ranks[1].caused_wait_ns > 0.9 * run.charged.charged_ns > 0


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
    for verdict in judge_stragglers(replace(run, charged=ChargedWaiting(100, 0, 60, 200)), 1.0):
        assert not verdict.findings
        assert verdict.not_evaluated == "40 % of what ranks wait for each other can be charged to nobody"


def test_a_rank_that_leads_whoever_caused_the_rest_is_named_all_the_same():
    run = measured("slow_gpu4")
    first, others = judge_stragglers(replace(run, charged=ChargedWaiting(100, 0, 85, 200)), 1.0)
    assert [(found.ranks, found.confidence) for found in first.findings] == [((2,), "medium")]
    assert "15 % of what ranks wait for each other can be charged to nobody" in first.findings[0].message
    assert not others.findings and others.not_evaluated, "nobody is cleared"


def test_a_replay_that_is_off_names_only_whose_cure_saves_far_more():
    run = measured("slow_gpu4")
    off = {error: replace(run.what_if, replayed_ns=run.what_if.measured_ns * (1 + error)) for error in (0.08, 0.2)}
    named, _ = judge_stragglers(replace(run, what_if=off[0.08]), 1.0)
    assert [found.ranks for found in named.findings] == [(2,)] and "off by up to 8 %" in named.findings[0].message
    assert not judge_stragglers(replace(run, what_if=off[0.2]), 1.0)[0].findings


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
