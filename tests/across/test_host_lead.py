"""How far hosts are ahead of their devices, what they wait for, and how many DataLoader workers would keep up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from changed import replace
from fault_runs import unpacked
from generated_run import Compute, HostSync, Size, SlowCompute, SlowHost, SlowLink, ddp, fsdp2, simulate
from measured_runs import across, predicted, program, true_step
from observed_run import usual, write_rank

from traceops.across.loading import cores_of_rank, loading_need, told_workers
from traceops.across.rank_times import RankTimes
from traceops.across.replay.graph import is_unknown, lead, leads, uses_up_lead
from traceops.across.replay.programs import shared_hosts
from traceops.across.replay.simulate import Scenario
from traceops.across.replay.simulate import simulate as replay
from traceops.across.replay.what_if import rank_change, shared_work
from traceops.across.run_use import beyond_peers, core_waits, unfair_waits
from traceops.core.claims import claim_of
from traceops.core.words import STEP as STEP_WORDS
from traceops.measure.program import NEVER
from traceops.pipeline.analyze import analyze
from traceops.rules.idle_time import InputBound, workers_needed
from traceops.rules.stragglers_claims import Late
from traceops.traces.observed import read_observed

STEP = 100


def nodes(*ahead, waits_at=(), launched_before=0):
    """A node in the middle of each step whose launch was so far ahead, None: without a known launch.

    waits_at: when its host waited for its device. launched_before: how many later nodes were launched before each wait.
    """
    moments = [STEP * step + STEP // 2 for step in range(len(ahead))]
    edges = [STEP * step for step in range(len(ahead) + 1)]
    hosts = [NEVER if own is None else at - own for at, own in zip(moments, ahead, strict=True)]
    stands_at = np.array([*moments, *edges], dtype=np.int64)
    host = np.array([*hosts, *[NEVER] * len(edges)], dtype=np.int64)
    waits = np.array(waits_at, dtype=np.int64)
    before = np.searchsorted(waits, stands_at) - launched_before
    return SimpleNamespace(
        stands_at=stands_at, standing=stands_at, host=host, first_edge=len(moments),
        waits=SimpleNamespace(stands_at=waits), waits_before=before,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ahead", "used"),
    [
        ((50, 40, 30, 20), True),
        ((50, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), True),
        ((50, 50, 40, 30, 20), True),
        ((50, 50, 50, 50, 10), False),  # the last one alone, a checkpoint's step: it was called slower than the steps
        ((10, 60, 50, 40, 30, 20, 10), True),  # the first one alone: what the others use up was hidden
        ((50, 0, 50, 50), False),
        ((50, 50, 50), False),
        ((50, 49, 48), False),
        ((0, 0, 0), False),
        ((50,), False),
        ((50, None, 30, None, 10), True),
    ],
)
def test_every_step_tells_whether_a_host_uses_up_its_lead(ahead, used):
    assert leads(nodes(*ahead)) == list(ahead)
    assert uses_up_lead(nodes(*ahead)) is used
    assert lead(nodes(*ahead)) == (0 if used else ahead[0])


def test_a_first_step_without_launches_does_not_say_that_the_host_was_not_ahead():
    """It was taken for 0, as if the host were just in time: most likely it is further ahead than the window."""
    unseen = nodes(None, 50, 50)
    assert is_unknown(unseen) and lead(unseen) == 0 and not is_unknown(nodes(50, 50, 50))


def test_hosts_without_any_known_launch_are_not_replayed_and_so_not_unknown():
    never = nodes(None, None)
    assert not is_unknown(never) and lead(never) == 0


def test_a_host_that_waits_in_every_step_for_all_that_it_launched_gets_ahead_anew():
    """Its lead was taken from it, and it seemed to be late in the first step under any change."""
    assert lead(nodes(50, 50, 50, waits_at=(20, 120, 220))) == 0
    assert lead(nodes(50, 50, 50, waits_at=(20, 220))) == 50
    assert lead(nodes(50, 50, 50, waits_at=(20, 110, 120))) == 50


def test_a_host_that_waits_for_the_step_before_keeps_its_lead():
    """A late loader's cure was 22.1 ms, 23.0 true: the others' hosts were ahead when the window began."""
    assert lead(nodes(50, 50, 50, waits_at=(20, 120, 220), launched_before=1)) == 50


# FSDP2 on 2 H200, measured without the profiler. A step's launches take the host 53 ms, under the profiler 65 to 87.
HEALTHY_MS, SLOW_MS = 61.1, 77.7


def report_of(name, folder):
    return analyze(unpacked(name, folder))


def test_a_rank_that_computes_longer_is_named_where_the_profiler_slows_the_hosts(tmp_path):
    """'They would hardly be faster without it: its cure saves 0.00 of 77.51 ms', where 16.5 are true."""
    report = report_of("slow_fsdp2", tmp_path)
    [found] = [one for one in report.findings if one.rule == "TO-S001"]
    assert (found.severity, found.ranks, found.cause) == ("error", (0,), "gpu_compute")
    assert found.impact_ms == pytest.approx(SLOW_MS - HEALTHY_MS, abs=1.5)
    [cure] = [row for row in report.what_if if row.ranks == (0,)]
    assert cure.predicted_step_time_ms == pytest.approx(HEALTHY_MS, rel=0.05)
    # How fast hosts are without the profiler is not known, so this is the most.
    assert report.summary.replay.hosts_unknown == (1,)
    assert "or more instead of" in found.message and "(up to 22 % less)" in found.message
    assert claim_of(found, Late).doubt.kind == "hosts_slower"


def test_a_healthy_run_whose_hosts_the_profiler_slows_is_told_no_rank_and_no_longer_steps(tmp_path):
    """'Input free: 66.1 instead of 63.2 ms'; 'rank 1 is late … 64.86 instead of 63.18 (-3 % less)'."""
    report = report_of("healthy_fsdp2", tmp_path)
    assert not [one for one in report.findings if one.rule in ("TO-S001", "TO-S002")]
    for row in report.what_if:
        assert row.predicted_step_time_ms <= row.step_time_ms + 0.01, row.change
    [check] = [one for one in report.checks if one.rule == "TO-S002"]
    assert check.status == "clear" and "of 61.39 ms would be saved (bound 10 %)" in check.reason


SMALL = Size(kernel_us=35.0, elements=1 << 20)


def with_free_link(made):
    return replace(made, groups=tuple(replace(one, bandwidth_gbs=1e9, latency_us=0.0) for one in made.groups))


def with_a_read_in_forward(made):
    return replace(made, steps=tuple((*ops[:3], HostSync("compute"), *ops[3:]) for ops in made.steps))


@pytest.mark.parametrize(
    "made",
    [
        replace(program(fsdp2, steps=5, sync=True), launch_us=40.0),
        replace(with_a_read_in_forward(program(ddp, steps=5, layers=6, size=SMALL)), launch_us=30.0),
    ],
)
def test_without_transfers_a_host_that_reads_a_value_bounds_the_step(made):
    """It seemed to run ahead by all that it had waited: the step without transfers took less than its launches."""
    measured = across(simulate(made, 4, [SlowLink("world", 4.0)]))
    free = replay(measured.replay.graph, Scenario(transfer=measured.replay.graph.transfer * 0)).step_ns()
    assert free.mean() == pytest.approx(true_step(simulate(with_free_link(made), 4)), rel=0.04)


def test_a_replay_without_a_change_takes_as_long_as_measured():
    made = program(fsdp2, steps=5, sync=True)
    graph = across(simulate(made, 4, [SlowCompute(1, 1.5)])).replay.graph
    for rank, nodes in graph.ranks.items():
        assert len(nodes.waits.work) >= 5, rank
    took = replay(graph, Scenario()).step_ns()
    measured = np.median([np.diff(own.begin[graph.edges[rank]]) for rank, own in graph.ranks.items()], axis=0)
    assert took == pytest.approx(measured, rel=0.01)


def test_the_cure_of_a_slow_rank_leaves_the_hosts_that_wait_where_they_are():
    made = program(fsdp2, steps=5, sync=True)
    made = replace(made, launch_us=25.0)
    measured = across(simulate(made, 4, [SlowCompute(2, 1.6)]))
    assert predicted(measured, rank_change([2]), (2,)) == pytest.approx(true_step(simulate(made, 4)), rel=0.03)


def test_what_the_host_waited_for_is_over_when_the_call_returns():
    made = program(fsdp2, steps=4, sync=True)
    run = simulate(made, 2)
    for rank, nodes in across(run).replay.graph.ranks.items():
        ends = [row.end for row in run.ranks[rank].host_rows if row.kind == "sync"]
        assert len(nodes.waits.stands_at) >= 4
        for done in nodes.waits.stands_at.tolist():
            assert min(abs(run.ranks[rank].on_clock(end) - done) for end in ends) <= 50_000
    assert any(isinstance(op, HostSync) for op in made.ops(2, 0))


MANY = 160  # kernels, as an evaluation has them


def made_of(more):
    """Four ranks that read the loss each step, and run so many kernels more, each launched as long as it runs."""
    base = replace(program(ddp, steps=5, sync=True), launch_us=20.0)
    ops = base.steps[0]
    extra = [tuple(Compute("gemm", 15.0, "evaluation", "aten::mm") for _ in range(count)) for count in more]
    return replace(base, staged="world", stages=tuple((*ops[:-1], *own, ops[-1]) for own in extra))


def test_the_launches_of_shared_work_are_shared():
    """An evaluation that hosts bound was said to take as long shared by all: its launches stayed with one rank."""
    graph = across(simulate(made_of((MANY, 0, 0, 0)), 4)).replay.graph
    steps = replay(graph, shared_work(graph, [0], np.ones(len(graph.steps), dtype=bool))).step_ns()
    truth = true_step(simulate(made_of((MANY // 4,) * 4), 4))
    assert steps[1:].mean() == pytest.approx(truth, rel=0.03)  # the first waits for what came before the window


def test_a_host_that_launches_no_more_than_its_peers_shares_nothing():
    graph = across(simulate(program(steps=4), 4, (SlowHost(0, 2000.0),))).replay.graph
    assert not shared_hosts(graph, (0, 1, 2, 3), [0])
    assert not shared_hosts(replace(graph, kernels={}), (0, 1, 2, 3), [0])
    assert not shared_hosts(graph, (0,), [0])


@pytest.mark.parametrize("told", [True, False])
def test_a_rank_that_waits_for_no_core_tells_so(tmp_path, told):
    """24 ranks on 32 cores: half of them were 151 of 169 ms late, and it was a remark: they might lack cores."""
    steps = [usual(100.0, recorded=n in (3, 4)) for n in range(6)]
    write_rank(tmp_path, 0, steps, core_waits=told)
    one, problem = read_observed(str(tmp_path), 0)
    assert problem is None
    assert core_waits([one]).of_rank == ({0: {3: 0, 4: 0}} if told else {})


def test_an_earlier_log_tells_waits_alone(tmp_path):
    steps = [usual(100.0, recorded=n in (3, 4), core_wait_ms=2.0 * (n == 4)) for n in range(6)]
    write_rank(tmp_path, 0, steps)
    one, _ = read_observed(str(tmp_path), 0)
    assert core_waits([one]).of_rank == {0: {4: 2_000_000}}


def _use(rank, waited_pct, crowded_pct):
    return SimpleNamespace(rank=rank, waited_pct=waited_pct, crowded_pct=crowded_pct)


@pytest.mark.parametrize(
    ("computes", "own_ms"),
    [(13.0, 82.0), (60.0, 0.0)],  # percent of the time; what of 87 ms is none of its doing
)
def test_a_rank_that_has_no_core_is_late_only_as_far_as_it_computes_more(tmp_path, computes, own_ms):
    """Two ranks with as much work: 'rank 1's host takes longer' by 97 ms, of which 87 were waits for cores."""
    observed = []
    for rank, waited in ((0, 12.0), (1, 99.0)):
        write_rank(tmp_path, rank, [usual(141.0, recorded=n > 2, core_wait_ms=waited) for n in range(7)])
        observed.append(read_observed(str(tmp_path), rank)[0])
    crowded = 100 * 69.3 / (69.3 + computes)
    waits = unfair_waits(observed, [_use(0, 24.8, 69.3), _use(1, 69.3, crowded)])
    more = beyond_peers(waits, 1, [0], (3, 4, 5)) / 1e6
    assert more == pytest.approx(np.full(3, own_ms), abs=2)


ALONE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def rank(name: str, step_ms: float, idle_ms: float, input_ms: float, unlike: int = 0) -> Any:
    """A rank of ten steps as the measures hand it on; those unlike the others load 20 times as long."""
    typical = np.arange(10) >= unlike
    host = SimpleNamespace(input_names=(name,), loading=np.where(typical, 1, 20) * input_ms * 1e6)
    idle = {"idle_input": np.full(10, idle_ms * 1e6)}
    return RankTimes(SimpleNamespace(host=host, rank=0), np.full(10, step_ms * 1e6), idle, typical, None, None, None)


def test_without_workers_loading_is_measured() -> None:
    need = loading_need(rank(ALONE, 200.0, 160.0, 160.0), None)
    assert need is not None
    assert (need.now, need.load_ms, need.rest_ms, need.workers) == (0, 160.0, 40.0, 5)  # a tenth to spare on 4


def test_what_an_evaluation_loads_needs_no_workers_in_typical_steps() -> None:
    """HF's Trainer, one recorded step of four with an evaluation: 367 ms of loading in steps of 243, and 6 workers."""
    need = loading_need(rank(ALONE, 243.0, 122.3, 122.3, unlike=1), None, step_ms=196.7)
    assert need is not None and (need.load_ms, need.workers) == (122.3, 2)


def test_one_step_shows_no_pace() -> None:
    """'3 workers would be enough', of the batches of one call that made its loader inside the step."""
    one, two = (rank(ALONE, 200.0, 160.0, 160.0, unlike=unlike) for unlike in (9, 8))
    assert workers_needed(two, None, {}, STEP_WORDS)[0] is not None
    assert workers_needed(one, None, {}, STEP_WORDS) == (None, ())


def test_workers_that_are_behind_load_all_the_time() -> None:
    need = loading_need(rank(WORKERS, 80.0, 40.0, 41.0), None, workers=2)
    assert need is not None and (need.now, need.load_ms, need.rest_ms, need.workers) == (2, 160.0, 40.0, 5)
    assert loading_need(rank(WORKERS, 80.0, 40.0, 41.0), None) is None, "'2.2 times as many', of nobody knows how many"
    assert loading_need(rank(ALONE, 13.14, 0.72, 0.72), None) is None, "one was 'enough', whose batch takes as long"


def test_what_may_be_recording_makes_a_range() -> None:
    """Lightning on an H200: 3 workers were told by the recorded step. Without the profiler the rest takes 10.0 ms."""
    need = loading_need(rank(ALONE, 50.87, 37.05, 37.05), None, recording_ms=7.49)
    assert need is not None and (need.workers, need.most_workers) == (3, 7)
    assert need.workers < 1.1 * 37.05 / 10.0 < need.most_workers
    workers = loading_need(rank(WORKERS, 80.0, 40.0, 41.0), None, workers=2, recording_ms=10.0)
    assert workers is not None and (workers.workers, workers.most_workers) == (5, 6)
    known = loading_need(rank(ALONE, 172.2, 103.6, 103.3), 103.6, step_ms=137.2)
    assert known is not None and known.workers == known.most_workers == 4
    no_rest = loading_need(rank(ALONE, 50.0, 37.0, 37.0), None, recording_ms=20.0)
    assert no_rest is not None and no_rest.most_workers == no_rest.workers, "nothing is left to tell a most by"


def test_the_replay_decides_what_is_left_of_a_step() -> None:
    need = loading_need(rank(ALONE, 200.0, 160.0, 160.0), 120.0)
    assert need is not None and need.rest_ms == 80.0 and need.workers == 3


def test_nothing_is_said_of_loading_that_is_no_dataloaders_or_all_of_a_step() -> None:
    assert loading_need(rank("load_batch", 200.0, 160.0, 160.0), None) is None
    assert loading_need(rank(ALONE, 200.0, 200.0, 200.0), None) is None


def test_what_run_json_tells_of_workers_and_cores() -> None:
    assert told_workers({"training": {"config": {"workers": 3}}}) == 3
    assert told_workers({"training": {"num_workers": 0}}) == 0
    for odd in ({}, {"training": []}, {"training": {"workers": True}}, {"training": {"workers": -1}}):
        assert told_workers(odd) is None
    ranks = [{"rank": 0, "host": "a", "cores": 6}, {"rank": 1, "host": "a", "cores": 6}, {"rank": 2, "host": "b"}, 7]
    assert cores_of_rank({"ranks": ranks}, 1) == 3.0
    assert cores_of_rank({"ranks": ranks}, 2) is None and cores_of_rank({}, 0) is None
    need = loading_need(rank(ALONE, 200.0, 160.0, 160.0), None, cores=3.0)
    assert need is not None and need.cores == 3.0 < need.workers + 1


def test_a_starved_training_gains_what_was_promised_with_as_many_workers() -> None:
    """A recorded training on gloo whose samples take 20 ms, eight to a batch, and the same with two workers."""
    report = analyze(Path(__file__).parents[1] / "data" / "starved_loader2")
    (found,) = (one for one in report.findings if one.rule == "TO-I002")
    need = claim_of(found, InputBound).need
    assert (need.count, need.now, need.cores) == (2, 0, 1)
    before, with_two_workers = (270.788, 110.550)  # steps without the profiler, measured by `traceops sweep` in turn
    assert report.summary.unprofiled_step_time_ms == before
    assert found.impact_ms == pytest.approx(before - with_two_workers, rel=0.2)
