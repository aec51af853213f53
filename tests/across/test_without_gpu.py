"""Ranks that make others wait on gloo: real runs, and threads that go on late for a reason of their own."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from changed import replace
from generated_run import SlowCompute, SlowHost, ddp, simulate, summaries, write_traces
from measured_runs import across, findings, program

from traceops.across.match import NO_CALL, match_collectives
from traceops.across.measure_across import measure_across
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.rules.clocks import judge_clocks
from traceops.rules.overlap import judge_exposed
from traceops.rules.stragglers import judge_stragglers
from traceops.traces.discover import discover
from traceops.traces.model import CommArgs

DATA = Path(__file__).parents[1] / "data"


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
    assert "hardly anybody is seen to wait for it there" in check.reason


def test_ranks_that_are_late_by_turns_on_cpus_are_not_accused():
    """Now one and now another does not get a core."""
    once = [SlowHost(0, extra_us=9000, steps=(4,))]
    by_turns = [*once, SlowHost(1, extra_us=7000, steps=(6,))]
    made = program(ddp, device="cpu", steps=6)
    assert [f.ranks for f in findings(across(simulate(made, 3, once))) if f.rule == "TO-S002"] == [(0,)]
    turns = across(simulate(made, 3, by_turns))
    assert findings(turns) == []
    assert all("by turns" in told.not_evaluated for told in judge_stragglers(turns, 1.0))
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
