"""The replay gives the steps that were, and those that would be without the fault: of ranks, loaders and copies."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from changed import replace
from drawn import examples
from generated_run import (
    ClockShift,
    Collective,
    HostSync,
    LoadInput,
    Program,
    SlowCompute,
    SlowCopy,
    SlowHost,
    SlowInput,
    SlowLink,
    ddp,
    fsdp2,
    hsdp,
    simulate,
    summaries,
    tp_dp,
    write_traces,
)
from hypothesis import Phase, given
from hypothesis import strategies as st
from measured_runs import BUILDERS, CAUSES, GPU_BOUND, HOST_BOUND, across, hosts_of, predicted, program, true_step

from tests.across.pipelines import one_forward_one_backward, write_pipeline
from traceops.across.copies import CHANGES, exposed_copies
from traceops.across.cross_rank import measure_across, no_replay
from traceops.across.loading import loader_paces
from traceops.across.replay.cure import usual_program
from traceops.across.replay.graph import paced
from traceops.across.replay.programs import shared_hosts
from traceops.across.replay.simulate import Scenario
from traceops.across.replay.simulate import simulate as replay
from traceops.across.replay.what_if import (
    ALL_EQUAL,
    HOST,
    HOST_IN_TIME,
    LOADING,
    NO_COMMUNICATION,
    NO_LOADING,
    Replays,
    rank_change,
    shared_work,
)
from traceops.measure.copies import BY_STEP
from traceops.measure.host_places import LoaderWork
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.traces.discover import discover

# A failure is not made smaller: every example is a run, and they are small.
FEW = examples(20, phases=[Phase.explicit, Phase.generate])


@dataclass(frozen=True)
class Spec:
    """What to simulate; unlike the run itself short enough to print."""

    builder: Callable[..., Program]
    host_bound: bool
    steps: int
    sync: bool
    ranks: int
    faults: list[object]
    seed: int

    def run(self):
        size = HOST_BOUND if self.host_bound else GPU_BOUND
        made = program(self.builder, size, self.steps, self.sync)
        return simulate(made, self.ranks, self.faults, self.seed)


@st.composite
def specs(draw, any_host=False):
    """2 to 16 ranks with up to three faults of any kind; with `any_host` also those whose device runs dry."""
    ranks = draw(st.sampled_from([2, 4, 8, 16]))
    rank, us = st.integers(0, ranks - 1), st.floats(100, 4000)
    steps = st.none() | st.sampled_from([(3,), (4,)])
    kinds = [st.builds(SlowCompute, rank, st.floats(1, 3), us, steps)]
    kinds += [st.builds(kind, rank, us, steps=steps) for kind in (SlowHost, SlowInput, SlowCopy)]
    flag = st.booleans() if any_host else st.just(False)
    faults = draw(st.lists(st.one_of(kinds), max_size=3))
    if draw(st.booleans()):
        faults.append(ClockShift(host=0, offset_us=draw(st.floats(-3e6, 3e6))))
    builder, seed = draw(st.sampled_from(BUILDERS)), draw(st.integers(0, 1000))
    return Spec(builder, draw(flag), draw(st.integers(2, 5)), draw(flag), ranks, faults, seed)


def check_reproduced(run):
    measured = across(run)
    assert measured.replay.what_if.error_pct < 2
    assert measured.replay.what_if.holds
    step = true_step(run)
    again = replay(measured.replay.graph)
    for rank, nodes in measured.replay.graph.ranks.items():
        edges = nodes.begin[measured.replay.graph.edges[rank]]
        apart = again.edges[rank] - edges
        assert np.abs(apart - apart[0]).max() < 0.02 * step * len(edges)
    assert measured.replay.what_if.measured_ns.mean() == pytest.approx(step, rel=0.01)


@pytest.mark.parametrize(
    ("world", "events", "why"), [(None, 2, "other_ranks_missing"), (None, 0, "one_rank"), (1, 2, "one_rank")]
)
def test_a_trace_that_exchanges_data_is_not_called_the_only_one(world, events, why):
    """'this run has one rank' above 11.9 ms of gloo:all_reduce, where nothing tells how many there are."""
    times = SimpleNamespace(summary=SimpleNamespace(meta=SimpleNamespace(world_size=world)))
    run = SimpleNamespace(replay=None, ranks=[times], world=1, matching=SimpleNamespace(events=events))
    assert no_replay(run) == why


@pytest.mark.slow
@FEW
@given(specs())
def test_the_replay_without_a_change_gives_the_measured_steps(spec):
    check_reproduced(spec.run())


@pytest.mark.parametrize("size", [GPU_BOUND, HOST_BOUND], ids=["gpu", "host"])
@pytest.mark.parametrize("builder", BUILDERS)
def test_so_it_does_where_the_device_had_run_dry_before_the_window(builder, size):
    for rank in (0, 2):
        check_reproduced(simulate(program(builder, size, sync=True), 4, [SlowHost(rank, 900)]))


@pytest.mark.parametrize("builder", BUILDERS)
def test_so_it_does_in_a_run_that_its_hosts_bound(builder):
    check_reproduced(simulate(program(builder, HOST_BOUND), 4, [SlowHost(2, 200)]))


@pytest.mark.parametrize("kind", CAUSES)
@pytest.mark.parametrize("builder", BUILDERS)
def test_a_rank_as_its_peers_gives_the_run_without_its_fault(builder, kind):
    sync = kind in (SlowHost, SlowInput)  # else a host that runs ahead hides what it is late
    for size, world, rank in ((GPU_BOUND, 4, 3), (GPU_BOUND, 8, 2), (HOST_BOUND, 8, 5)):
        made = program(builder, size, sync=sync)
        healthy = simulate(made, world)
        us = 0.6 * true_step(healthy) / 1e3
        fault = kind(rank, extra_us=us)
        run = simulate(made, world, [fault])
        if true_step(run) < 1.1 * true_step(healthy):
            assert size is HOST_BOUND and kind in (SlowCopy, SlowCompute)  # hidden by the hosts
            continue
        fixed = predicted(across(run), rank_change((rank,)), (rank,))
        assert fixed == pytest.approx(true_step(healthy), rel=0.10)


@pytest.mark.parametrize("builder", BUILDERS)
def test_of_two_faults_the_cure_of_one_leaves_the_other(builder):
    one, other = SlowCompute(1, extra_us=3000), SlowInput(6, 1500)
    made = program(builder, sync=True)
    run = simulate(made, 8, [one, other])
    replays = Replays(across(run).replay.graph)
    for cured, left in (((1,), [other]), ((6,), [one]), ((1, 6), [])):
        without = true_step(simulate(made, 8, left))
        assert replays.cured(cured).step_ns().mean() == pytest.approx(without, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("builder", BUILDERS)
def test_changes_of_the_whole_run_give_the_run_that_had_them(builder):
    for size in (GPU_BOUND, HOST_BOUND):
        made = program(builder, size, sync=True)
        fast = tuple(replace(groups, bandwidth_gbs=1e9, latency_us=0.001) for groups in made.groups)
        at_once = tuple(
            tuple(replace(op, us=0.001) if isinstance(op, LoadInput) else op for op in ops) for ops in made.steps
        )
        for faults in ([], [SlowCompute(1, 1.5)], [SlowHost(1, 700)]):
            measured = across(simulate(made, 8, faults))
            without_comm = true_step(simulate(replace(made, groups=fast), 8, faults))
            assert predicted(measured, NO_COMMUNICATION) == pytest.approx(without_comm, rel=0.05)
            without_loading = true_step(simulate(replace(made, steps=at_once), 8, faults))
            assert predicted(measured, NO_LOADING) == pytest.approx(without_loading, rel=0.05)
            assert predicted(measured, ALL_EQUAL) == pytest.approx(true_step(simulate(made, 8)), rel=0.10)


def test_slow_loading_on_all_ranks_is_gone_without_loading():
    made = program(sync=True)
    slow = simulate(made, 4, [SlowInput(rank, 3000) for rank in range(4)])
    loaded = tuple(tuple(op for op in ops if not isinstance(op, LoadInput)) for ops in made.steps)
    wanted = true_step(simulate(replace(made, steps=loaded), 4))
    measured = across(slow)
    assert true_step(slow) > 1.8 * wanted
    assert predicted(measured, NO_LOADING) == pytest.approx(wanted, rel=0.05)
    assert predicted(measured, ALL_EQUAL) == pytest.approx(true_step(slow), rel=0.05)


def test_hosts_that_are_late_on_all_ranks_are_in_time():
    made = program(sync=True, size=GPU_BOUND)
    slow = simulate(made, 4, [SlowHost(rank, 3000) for rank in range(4)])
    measured = across(slow)
    bound = true_step(simulate(program(), 4))  # nobody waits for a host there
    assert predicted(measured, HOST_IN_TIME) < 1.15 * bound
    assert predicted(measured, NO_LOADING) > 0.9 * true_step(slow)


def test_transfers_at_twice_the_bandwidth():
    made = program(ddp, replace(GPU_BOUND, bandwidth_gbs=20.0))
    graph = across(simulate(made, 4)).replay.graph
    twice = replace(made, groups=tuple(replace(g, bandwidth_gbs=40.0, latency_us=6.0) for g in made.groups))
    halved = replay(graph, Scenario(transfer=graph.transfer // 2)).step_ns().mean()
    assert halved == pytest.approx(true_step(simulate(twice, 4)), rel=0.03)


@pytest.mark.slow
@FEW
@given(specs(any_host=True))
def test_no_change_makes_steps_negative_or_longer(spec):
    what_if = across(spec.run()).replay.what_if
    if spec.ranks == 2:  # with one peer only, 'their median' is the slower of the two
        what_if = replace(what_if, predictions=tuple(p for p in what_if.predictions if p.change != ALL_EQUAL))
    for prediction in what_if.predictions:
        assert (prediction.step_ns >= 0).all()
        if prediction.ranks:  # a rank may be faster than its peers: then it is no cure
            continue
        assert prediction.step_ns.mean() <= 1.02 * what_if.replayed_ns.mean(), prediction.change


@pytest.mark.slow
@FEW
@given(
    st.sampled_from(BUILDERS),
    st.booleans(),
    st.permutations(range(8)),
    st.lists(st.tuples(st.sampled_from(list(CAUSES)), st.floats(300, 4000)), min_size=2, max_size=4),
)
def test_more_cured_ranks_never_save_less(builder, host_bound, late, kinds):
    """None of them has more peers than late ranks leave, and all are late in every step."""
    faults = [kind(rank, extra_us=us) for rank, (kind, us) in zip(late, kinds, strict=False)]
    made = program(builder, HOST_BOUND if host_bound else GPU_BOUND, sync=True)
    replays = Replays(across(simulate(made, 8, faults)).replay.graph)
    before = base = replays.base.step_ns().mean()
    for count in range(1, len(faults) + 1):
        cured = replays.cured(late[:count]).step_ns().mean()
        assert cured <= before + 0.06 * base  # the worst of 1,000 random runs: 5.2 %
        before = cured
    assert before == pytest.approx(true_step(simulate(made, 8)), rel=0.10)


def test_late_ranks_run_as_the_one_that_is_not():
    made = program(fsdp2)
    run = simulate(made, 4, [SlowCompute(rank, 2.0) for rank in (0, 1, 3)])
    replays = Replays(across(run).replay.graph)
    healthy = true_step(simulate(made, 4))
    assert replays.cured((0, 1, 3)).step_ns().mean() == pytest.approx(healthy, rel=0.05)
    assert replays.cured((0, 1)).step_ns().mean() == pytest.approx(true_step(run), rel=0.05)
    assert replays.cured((0, 1, 2, 3)) is None  # nobody is left to run as


def blocking_launches(run, ahead):
    """The run as torch traces it where its host may be `ahead` launches in front: the launch call blocks."""
    ranks = []
    for rank in run.ranks:
        acts = list(rank.activities)
        begins = dict(zip(rank.step_numbers, (start for start, _ in rank.host_steps), strict=True))
        for i in range(ahead, len(acts)):
            busy = [acts[i - 1].launch_end, begins.get(acts[i].step, 0)]
            busy += [row.end for row in rank.host_rows if row.end <= acts[i].launch]
            if max(busy) < rank.activities[i - ahead].start < acts[i].launch:
                acts[i] = replace(acts[i], launch=max(busy) + 1)
        ranks.append(replace(rank, activities=tuple(acts)))
    return replace(run, ranks=tuple(ranks))


@pytest.mark.parametrize("builder", [ddp, fsdp2, hsdp, tp_dp])
def test_a_launch_that_waits_for_room_in_the_queue_makes_no_host_late(builder):
    made = builder(layers=3, steps=4)
    healthy = true_step(simulate(made, 4))
    run = simulate(made, 4, [SlowCompute(1, extra_us=2000)])
    measured = across(blocking_launches(run, made.queue))
    assert measured.replay.stragglers.leader.cause == "gpu_compute"
    assert predicted(measured, rank_change((1,)), (1,)) == pytest.approx(healthy, rel=0.1)
    assert predicted(measured, HOST_IN_TIME) == pytest.approx(true_step(run), rel=0.05)


@pytest.mark.parametrize("builder", [ddp, fsdp2])
@pytest.mark.parametrize("steps", [4, 8])
def test_the_cure_of_a_rank_that_hides_loading_leaves_no_lead_to_the_hosts(builder, steps):
    """The hosts got ahead behind the slow rank. Its cure took 5.66 ms a step where 6.54 is true: one step was short."""
    made = program(builder, layers=4, steps=steps)
    loads = [SlowInput(rank, 6000) for rank in range(4)]
    measured = across(simulate(made, 4, [*loads, SlowCompute(2, 2.5)]))
    cured = predicted(measured, rank_change([2]), (2,))
    assert cured == pytest.approx(true_step(simulate(made, 4, loads)), rel=0.025)


@pytest.mark.parametrize("late", [SlowHost(2, 3000), SlowInput(1, 3000)])
def test_a_faster_link_beside_a_slow_host_saves_until_the_host_is_the_limit(late):
    """The host's lead behind the slow link was spent in the first step: 1.65 ms a step were said, 1.23 are true."""
    made = program(ddp, steps=4)
    run = simulate(made, 4, [SlowLink("world", 6.0), late])
    good = replace(made, groups=tuple(replace(groups, bandwidth_gbs=600.0) for groups in made.groups))
    measured = across(run)
    quick = replay(measured.replay.graph, Scenario(transfer=measured.replay.graph.transfer // 36)).step_ns()
    assert quick.mean() == pytest.approx(true_step(simulate(good, 4, [late])), rel=0.03)
    assert quick[0] == pytest.approx(np.median(quick), rel=0.05)


def test_a_cure_in_a_run_that_hosts_bound_is_not_said_to_make_its_steps_longer():
    """'Rank 2 as its peers: 23.46 instead of 23.08 ms': hosts of a healthy run were made to begin late."""
    report = analyze(Path(__file__).parents[1] / "data" / "ddp4")
    [cure] = [row for row in report.what_if if tuple(row.ranks) == (2,)]
    assert cure.predicted_step_time_ms <= cure.step_time_ms + 0.01


def measured(faults, loading_ms):
    run = simulate(program(sync=True), 4, faults)
    return measure_across(summaries(run, tables=False), 4, loading_ms=loading_ms), true_step(run) / 1e6


def test_short_steps_wait_until_the_mean_is_the_loaders():
    steps = np.array([10.0, 20.0, 10.0, 120.0, 900.0])
    typical = np.array([True, True, True, True, False])
    assert paced(steps, 40.0, typical).tolist() == [10, 20, 10, 120, 900], "a long step's batches serve the others"
    assert paced(steps, 50.0, typical).tolist() == pytest.approx([80 / 3, 80 / 3, 80 / 3, 120, 900])
    assert paced(steps, 150.0, typical).tolist() == [150, 150, 150, 150, 900]


def test_a_change_leaves_the_loaders_pace_but_for_that_of_input():
    healthy = measured([], {})[1]
    late, step = measured([SlowHost(1, 6000)], {0: healthy + 3})
    assert step > healthy + 5
    for change, ranks in ((rank_change([1]), (1,)), (ALL_EQUAL, ()), (HOST_IN_TIME, ())):
        assert predicted(late, change, ranks) / 1e6 == pytest.approx(healthy + 3, rel=0.03), change
    assert predicted(late, NO_LOADING) / 1e6 == pytest.approx(step, rel=0.03)
    [found] = late.replay.stragglers.found
    assert found.saved.mean() / 1e6 == pytest.approx(step - healthy - 3, rel=0.1)
    assert late.replay.stragglers.fed_ns.mean() / 1e6 == pytest.approx(healthy, rel=0.1), "input in time besides"


def test_a_fixed_rank_gets_no_slower_host_than_it_has():
    """Its peer's host is slow in most of the steps, so that is what the peer usually takes."""
    run = simulate(program(steps=6, layers=6), 2, [SlowCompute(0, factor=1.6), SlowHost(1, 4000, steps=(5, 6, 7, 8))])
    graph = across(run).replay.graph

    def host_of(nodes):
        return np.diff(nodes.host[graph.edges[0][1:]])

    usual = usual_program(graph, 1, [1], [0], np.ones(len(graph.steps), dtype=bool))
    assert host_of(graph.ranks[1]).max() > host_of(graph.ranks[0]).max() + 3e6
    assert host_of(usual) == pytest.approx(host_of(graph.ranks[0]), rel=0.01)


def test_a_loader_that_is_why_a_rank_is_late_goes_with_the_cure():
    healthy = measured([], {})[1]
    late, step = measured([SlowInput(1, 6000)], {0: 0.5, 1: 100.0})
    assert predicted(late, rank_change([1]), (1,)) / 1e6 == pytest.approx(healthy, rel=0.1)
    late, _ = measured([SlowHost(1, 6000)], {0: 0.5, 1: healthy + 3})
    assert predicted(late, rank_change([1]), (1,)) / 1e6 == pytest.approx(healthy + 3, rel=0.03), "its own, hidden"
    assert step > healthy + 5


def test_no_change_makes_a_step_longer():
    """Paces are measured beside other steps than those of the window: they may be said to be slower than it."""
    late, step = measured([SlowHost(1, 6000)], dict.fromkeys(range(4), 100.0))
    for one in late.replay.what_if.predictions:
        assert late.replay.what_if.mean_ns(one.step_ns) / 1e6 <= step * 1.01, one.change
    assert [one.rank for one in late.replay.stragglers.found] == [1], "late, though its cure alone saves nothing"


def rank_that_loads(name):
    return SimpleNamespace(rank=0, host=SimpleNamespace(input_names=(name,)))


def test_the_pace_is_what_the_workers_are_at_work_of_a_step():
    workers = rank_that_loads("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")

    def pace(rank, busy, busiest):
        work = LoaderWork(4, busy, busiest, None, 0.0)
        return loader_paces([rank], SimpleNamespace(loaders={0: work}, typical_ms=200.0))

    assert pace(workers, 50.0, 60.0) == {0: 100.0}, "one of them is busiest by chance"
    assert pace(workers, 40.0, 100.0) == {0: 200.0}, "batches come in order"
    assert pace(rank_that_loads("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), 50.0, 50.0) == {}
    assert loader_paces([workers], None) == {}


EXTRA_US = 900.0


@pytest.fixture(scope="module")
def healthy():
    return true_step(simulate(program(steps=5), 2))


@pytest.mark.parametrize("ranks", [(0, 1), (0,)])
def test_copies_beside_kernels_leave_the_step_without_them(healthy, ranks):
    run = simulate(program(steps=5), 2, tuple(SlowCopy(rank, EXTRA_US) for rank in ranks))
    measured = across(run)
    saved = measured.replay.what_if.saved_ns(CHANGES["input"])
    before, after = true_step(run), true_step(run) - saved
    assert before - healthy > 0.5 * EXTRA_US * 1e3
    assert after == pytest.approx(healthy, rel=0.03)
    exposed = {one.rank: one.exposed_ms for one in measured.copies if one.purpose == "input"}
    assert all(exposed[rank] > 0.8 * EXTRA_US / 1e3 for rank in ranks)


def test_without_copies_nothing_is_predicted_of_them():
    measured = across(simulate(program(steps=4), 2))
    assert not [one for one in measured.replay.what_if.predictions if one.change in CHANGES.values()]


def test_half_of_a_bucket_saves_half_of_what_all_of_it_saves():
    run = simulate(program(steps=5), 2, (SlowCopy(0, EXTRA_US), SlowCopy(1, EXTRA_US)))
    graph = across(run).replay.graph
    base = replay(graph).step_ns()
    whole, half, none = (
        base - replay(graph, Scenario(without=("memory",), part={0: part, 1: part})).step_ns()
        for part in (1.0, 0.5, 0.0)
    )
    np.testing.assert_allclose(half, whole / 2, rtol=0.05)
    np.testing.assert_array_equal(none, 0)


def test_a_checkpoints_copies_are_no_part_of_the_typical_steps():
    """'3.33 copies of 100 MB a step, the link carries no more': of one step in three, that a typical one is not."""
    (times, *_) = across(simulate(program(steps=5), 2, (SlowCopy(0, EXTRA_US),))).ranks
    summary, typical = times.summary, np.array([True, True, False, True, True])
    one = next(kind for kind in summary.copies.kinds if kind.purpose == "input")
    only = {name: np.where(typical, 0, 100 * getattr(one, name).max()) for name in BY_STEP}
    saved = replace(one, region="save_checkpoint", **only)
    more = {name: np.where(typical, getattr(one, name), 100 * getattr(one, name)) for name in BY_STEP}
    kinds = tuple(replace(kind, **more) if kind is one else kind for kind in summary.copies.kinds)
    with_both = replace(summary, copies=replace(summary.copies, kinds=(saved, *kinds)))
    plain, found = (exposed_copies([own], {own.rank: typical}, "NVIDIA H200", None) for own in (summary, with_both))
    assert plain[0].exposed_ms > 0
    for one, other in zip(plain, found, strict=True):
        assert replace(one, kinds=()) == replace(other, kinds=())
        assert [kind.region for kind in one.kinds] == [kind.region for kind in other.kinds]
        assert [kind.count.sum() for kind in one.kinds] == [kind.count.sum() for kind in other.kinds]


SLOW = SlowCompute(0, factor=2.0)


@pytest.mark.parametrize(
    "others",
    [
        (SlowCompute(1, factor=0.5, steps=(5,)),),  # lucky in one step: the other rank is not
        (SlowCompute(1, factor=3.0, steps=(5,)),),  # a mishap: the other rank has none
        (SlowCompute(0, factor=1.5, steps=(4, 6)), SlowCompute(1, factor=1.5, steps=(4, 6))),  # longer for all
    ],
)
def test_the_cure_of_one_of_two_ranks_leaves_what_chance_does_to_the_other(others):
    late = across(simulate(program(steps=5), 2, (SLOW, *others)))
    healthy = true_step(simulate(program(steps=5), 2, others))
    assert predicted(late, rank_change((0,)), (0,)) == pytest.approx(healthy, rel=0.02)


def test_hosts_that_are_quicker_than_the_cured_steps_are_not_late_in_the_first_one():
    """Their lead was taken off, as if they had got it by waiting only: the first step took as long as before."""
    late = across(simulate(program(steps=4, sync=True), 4, (SLOW,)))
    steps = replay(late.replay.graph, shared_work(late.replay.graph, [0], np.ones(4, dtype=bool))).step_ns()
    assert steps[0] == pytest.approx(steps[1:].mean(), rel=0.05)
    assert steps.mean() < 0.7 * true_step(simulate(program(steps=4, sync=True), 4, (SLOW,)))


def test_shared_work_is_what_a_rank_has_beyond_its_peers_usual_and_not_beyond_their_luck():
    """Where the peer is lucky the late rank got as little work as it, and a step took less than with even work."""
    late = across(simulate(program(steps=5), 2, (SLOW, SlowCompute(1, factor=0.5, steps=(5,)))))
    steps = replay(late.replay.graph, shared_work(late.replay.graph, [0], np.ones(5, dtype=bool))).step_ns()
    assert steps[2] == pytest.approx(np.delete(steps, 2).mean(), rel=0.05)


def test_ranks_that_are_late_by_chance_tell_of_the_usual_pace_where_they_are_the_most():
    """Three ranks, each late in another step, were cured to the fourth's pace, which is lucky in most."""
    luck = [SlowCompute(3, factor, steps=(step,)) for step, factor in enumerate((0.94, 0.95, 1.1, 0.93, 1.12), 3)]
    mishaps = [SlowCompute(rank, factor=1.4, steps=(3 + rank,)) for rank in range(3)]
    late = across(simulate(program(steps=5), 4, (*luck, *mishaps)))
    truth = true_step(simulate(program(steps=5), 4, luck))
    assert predicted_cured(late, (0, 1, 2)) == pytest.approx(truth, rel=0.012)


def test_a_rank_that_is_always_slow_tells_nothing_of_the_usual_pace():
    slow = [SlowCompute(rank, factor=1.3) for rank in range(3)]
    late = across(simulate(program(steps=5), 4, slow))
    assert predicted_cured(late, (0, 1, 2)) == pytest.approx(true_step(simulate(program(steps=5), 4)), rel=0.02)


def predicted_cured(measured, ranks):
    return float(Replays(measured.replay.graph).cured(ranks).step_ns().mean())


compiled = pytest.importorskip("traceops.across.replay._replay")


def scenarios(graph):
    """One of each kind of change."""
    first, *_, last = graph.ranks
    replays = Replays(graph)
    yield None
    yield Scenario()
    yield Scenario(transfer=graph.transfer * 0)
    yield Scenario(without=LOADING)
    yield Scenario(without=HOST)
    yield Scenario(without=(*LOADING, *HOST), part={first: 0.37, last: 1.0})
    yield Scenario(without=("compute", "memory"), without_on=(last,))
    yield Scenario(unslowed=0.6)
    yield Scenario(program_of={last: first})
    yield Scenario(hosts=shared_hosts(graph, graph.roles[first], [first]))
    yield shared_work(graph, [first], replays.typical, 0.9)
    yield from (cure for rank in graph.ranks if (cure := replays.cure((rank,))) is not None)


def both(graph, change, monkeypatch):
    made = {}
    for native in ("1", "0"):
        with monkeypatch.context() as patch:
            patch.setenv("TRACEOPS_NATIVE", native)
            made[native] = replay(graph, change)
    return made["1"], made["0"]


def agree(graph, monkeypatch):
    for change in scenarios(graph):
        one, other = both(graph, change, monkeypatch)
        assert np.array_equal(one.edges, other.edges) and one.waited_for == other.waited_for


@pytest.mark.parametrize("builder", BUILDERS)
def test_both_replays_give_the_same_nanoseconds(builder, monkeypatch):
    for faults in ([], [SlowCompute(1, extra_us=3000), SlowInput(2, 1500)], [SlowHost(0, 700)]):
        for sync in (True, False):
            agree(across(simulate(program(builder, sync=sync), 4, faults)).replay.graph, monkeypatch)


def test_both_replays_let_members_of_a_pipeline_end_apart(tmp_path, monkeypatch):
    write_pipeline(tmp_path, [900.0, 1000.0, 1100.0, 1000.0], 8, one_forward_one_backward)
    ranks = [summarize(file) for file in discover(str(tmp_path)).latest.files]
    graph = measure_across(ranks, 4).replay.graph
    assert any(needs is not None for needs in graph.needs)
    agree(graph, monkeypatch)


def programs_of(graph):
    return [
        (nodes, graph.end_of[rank], graph.edges[rank], 0, 0, 0, False, False, 1.0)
        for rank, nodes in graph.ranks.items()
    ]


@pytest.mark.parametrize(
    "name, bad",
    [("after", 10**6), ("waits_before", -1), ("waits_before", 10**6), ("join_node", 10**6), ("delay", None)],
)
def test_a_program_that_leads_outside_is_refused(name, bad):
    graph = across(simulate(program(fsdp2), 4)).replay.graph
    (nodes, *rest), *others = programs_of(graph)
    values = getattr(nodes, name).copy()
    values = values[:-1] if bad is None else np.full_like(values, bad)
    with pytest.raises(ValueError, match="cannot go by"):
        compiled.replay([(replace(nodes, **{name: values}), *rest), *others], graph.collectives, graph.transfer)


def test_collectives_that_lead_outside_are_refused():
    graph = across(simulate(program(fsdp2), 4)).replay.graph
    for number, bad in [(0, 10**6), (1, 4), (1, -1), (2, 10**6), (5, 0)]:
        flat = list(graph.collectives)
        flat[number] = np.full_like(flat[number], bad)
        with pytest.raises(ValueError, match="cannot go by"):
            compiled.replay(programs_of(graph), tuple(flat), graph.transfer)
    with pytest.raises(ValueError, match="cannot go by"):
        compiled.replay(programs_of(graph), graph.collectives, graph.transfer[:-1])


def test_what_is_no_array_of_whole_numbers_is_refused():
    graph = across(simulate(program(fsdp2), 4)).replay.graph
    with pytest.raises(TypeError, match="int64"):
        compiled.replay(programs_of(graph), graph.collectives, graph.transfer.astype(float))
    with pytest.raises(TypeError, match="six arrays"):
        compiled.replay(programs_of(graph), graph.collectives[:5], graph.transfer)


def waits_in_the_allocator(path: Path, steps: range) -> None:
    """Where a host waited for the device in these steps, a cudaMalloc fails, and a cudaFree follows at the end."""
    trace = json.loads(path.read_text())
    marks = {e["name"]: e["ts"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation"}
    begins = sorted(ts for name, ts in marks.items() if name.startswith("ProfilerStep"))
    rows = []
    for e in trace["traceEvents"]:
        if e["name"] == "cudaStreamSynchronize" and bisect_right(begins, e["ts"]) - 1 in steps:
            last = round(e["ts"] + e["dur"] - 0.3, 3)
            rows.append({**e, "name": "aten::cat", "cat": "cpu_op", "dur": e["dur"] + 0.3})
            rows += [{**e, "name": "cudaMalloc", "dur": 50}, {**e, "name": "cudaFree", "ts": last, "dur": 0.5}]
        else:
            rows.append(e)
    path.write_text(json.dumps({**trace, "traceEvents": rows}))


@pytest.mark.parametrize(
    ("peers", "steps"),
    [((), range(0)), ((0, 1, 3), range(5)), ((0,), range(5)), ((0, 3), range(1, 3)), ((1,), range(3, 4))],
)
@pytest.mark.parametrize("builder", [ddp, fsdp2])
def test_peers_that_wait_in_the_allocator_or_for_the_device_are_as_fast_as_without(tmp_path, builder, peers, steps):
    """What they launch next comes behind that wait, so it is no time of their own."""
    made = program(builder, steps=5)
    first = next(i for i, op in enumerate(made.steps[0]) if isinstance(op, Collective))
    waits = [(*ops[: first + 1], HostSync(ops[first].stream), *ops[first + 1 :]) for ops in made.steps]
    made = replace(made, steps=tuple(waits))
    run = simulate(made, 4, [SlowHost(2, 30_000)])
    for path in write_traces(run, tmp_path):
        if int(path.name[5]) in peers:
            waits_in_the_allocator(path, steps)
    measured = measure_across([summarize(file) for file in discover(str(tmp_path)).windows[0].files], 4, hosts_of(run))
    assert predicted(measured, rank_change([2]), (2,)) == pytest.approx(true_step(simulate(made, 4)), rel=0.01)
