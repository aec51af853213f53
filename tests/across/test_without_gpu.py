"""Ranks whose hosts exchange the data (gloo), with GPUs and without: who is late, why, and what it costs."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from changed import replace
from fault_runs import unpacked
from generated_run import (
    Size,
    SlowCompute,
    SlowCopy,
    SlowHost,
    SlowInput,
    ddp,
    fsdp2,
    simulate,
    summaries,
    write_traces,
)
from measured_runs import CAUSES, across, findings, predicted, program, true_step

from traceops.across.cross_rank import measure_across
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
