"""The generator itself: what it simulates obeys its own laws, and its traces say what it simulated."""

import itertools

import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from generated_run import (
    Collective,
    Compute,
    Groups,
    HostSync,
    HostWait,
    Join,
    LoadInput,
    Memcpy,
    Program,
    Size,
    SlowCompute,
    SlowCopy,
    SlowHost,
    SlowInput,
    SlowLink,
    ddp,
    exposed_wait,
    fsdp2,
    hsdp,
    simulate,
    step_durations,
    step_time,
    tp_dp,
)

BUILDERS = (ddp, fsdp2, hsdp, tp_dp)
HOST_BOUND = Size(kernel_us=3.0, launch_us=10.0, elements=1 << 16)


def exact(*ops, steps=2, **costs):
    """A program without jitter, on a machine where a launch costs 10 µs and takes 5 µs to get to the device."""
    world = Groups("world", "default_pg", latency_us=10.0, bandwidth_gbs=1.0)
    costs = {"launch_us": 10.0, "latency_us": 5.0, "jitter": 0.0, "end_jitter_us": 0.0, **costs}
    return Program("exact", (world,), (ops,) * steps, **costs)


def all_reduce(label, elements=2500, **where):
    """On two ranks 10 µs of it are latency and 10 are transfer."""
    return Collective("allreduce", "world", elements, label, **where)


def of(run, rank, label, step=3):
    return [a for a in run.ranks[rank].activities if a.label == label and a.step == step]


# Laws


@pytest.mark.slow
@examples(40)
@given(st.sampled_from(BUILDERS), st.sampled_from([2, 4, 8]), st.integers(0, 99), st.booleans(), st.booleans())
def test_streams_run_in_order_and_nothing_starts_before_its_launch(builder, ranks, seed, sync, host_bound):
    program = builder(sync=sync, size=HOST_BOUND if host_bound else Size())
    run = simulate(program, ranks, [SlowHost(0, 500), SlowCompute(1, 1.5)], seed)
    for rank in run.ranks:
        launches = [activity.launch for activity in rank.activities]
        assert launches == sorted(launches)
        lanes = {}
        for activity in rank.activities:
            assert activity.start >= activity.launch + 4000
            assert activity.end > activity.start
            lanes.setdefault(activity.stream, []).append(activity)
            if activity.kind == "comm":  # one collective of a communicator at a time
                lanes.setdefault(run.collectives[activity.collective].op.group, []).append(activity)
        for lane in lanes.values():
            assert all(a.end <= b.start for a, b in itertools.pairwise(lane))
        assert (np.diff(rank.edges) > 0).all()


@pytest.mark.slow
@examples(40)
@given(st.sampled_from(BUILDERS), st.sampled_from([2, 4, 8, 16]), st.integers(0, 99))
def test_a_collective_ends_everywhere_a_transfer_after_its_last_member(builder, ranks, seed):
    run = simulate(builder(), ranks, seed=seed)
    for position, collective in enumerate(run.collectives):
        assert min(collective.wait) == 0
        assert collective.wait[collective.members.index(collective.last_rank)] == 0
        expected = max(collective.arrival) + collective.transfer_ns
        assert all(0 <= end - expected <= 2000 for end in collective.end)
        for rank, arrival, end in zip(collective.members, collective.arrival, collective.end, strict=True):
            [activity] = [a for a in run.ranks[rank].activities if a.collective == position]
            assert (activity.start, activity.end) == (arrival, end)


@pytest.mark.parametrize("builder", BUILDERS)
def test_same_seed_same_run(builder):
    assert simulate(builder(), 4, seed=7).collectives == simulate(builder(), 4, seed=7).collectives
    assert simulate(builder(), 4, seed=7).collectives != simulate(builder(), 4, seed=8).collectives


def test_groups_partition_the_world():
    rows, columns = Groups("shard", "", 4), Groups("replicate", "", None, 4)
    assert [rows.members(rank, 8) for rank in (1, 6)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [columns.members(rank, 8) for rank in (1, 6)] == [(1, 5), (2, 6)]
    with pytest.raises(ValueError, match="do not divide"):
        rows.members(0, 6)


# Timing, to the ns


def test_kernels_wait_for_their_launch_then_for_their_stream():
    run = simulate(exact(Compute("gemm", 7.0, "a"), Compute("gemm", 30.0, "b"), Compute("gemm", 1.0, "c")), 1)
    [a], [b], [c] = (of(run, 0, label) for label in "abc")
    assert a.start - a.launch == 5000
    assert b.launch - a.launch == 10_000
    assert b.start - b.launch == 5000  # the stream was free before
    assert c.start == b.end
    assert (a.end - a.start, b.end - b.start) == (7000, 30_000)


def test_all_reduce_starts_behind_compute_and_lasts_from_the_latest_member():
    program = exact(Compute("gemm", 100.0, "gemm"), all_reduce("sum"), Join("sum"), Compute("gemm", 5.0, "after"))
    run = simulate(program, 2, [SlowCompute(1, extra_us=50.0)])
    [sum0], [sum1] = of(run, 0, "sum"), of(run, 1, "sum")
    assert sum0.start == of(run, 0, "gemm")[0].end
    assert sum0.end == sum1.end == sum1.start + 20_000
    assert of(run, 0, "after")[0].start == sum0.end
    truth = run.collectives[sum0.collective]
    assert (truth.last_rank, truth.wait[1], truth.transfer_ns) == (1, 0, 20_000)
    assert truth.wait[0] == sum1.start - sum0.start
    assert exposed_wait(run, 0).tolist() == [truth.wait[0]]
    assert exposed_wait(run, 1).tolist() == [0]


def test_waiting_behind_compute_is_not_exposed():
    program = exact(Compute("gemm", 10.0), all_reduce("sum"), Compute("gemm", 500.0), Join("sum"))
    run = simulate(program, 2, [SlowCompute(1, extra_us=50.0)])
    assert run.collectives[-1].wait[0] > 0
    assert exposed_wait(run, 0).tolist() == [0]


def test_a_collective_after_another_waits_for_it_whatever_the_stream():
    after = all_reduce("second", stream="other", waits=("first",))
    run = simulate(exact(all_reduce("first"), after), 2)
    assert of(run, 0, "second")[0].start == of(run, 0, "first")[0].end


def test_host_waits_where_the_program_says_so():
    program = exact(
        Compute("gemm", 400.0), HostSync(), all_reduce("sum"), HostWait("sum"), Compute("gemm", 1.0, "last")
    )
    run = simulate(program, 2)
    first, sync, wait = (run.ranks[0].activities[3], *[h for h in run.ranks[0].host_rows if h.kind == "sync"][2:])
    assert sync.end == first.end
    assert wait.end == of(run, 0, "sum")[0].end
    assert of(run, 0, "last")[0].launch > wait.end


def test_host_is_no_further_ahead_than_the_queue():
    run = simulate(exact(*[Compute("gemm", 100.0)] * 20, queue=4), 1)
    rows = run.ranks[0].activities
    assert all(b.launch_end >= a.start for a, b in zip(rows, rows[4:], strict=False))


def test_loading_and_copies_take_their_time():
    program = exact(LoadInput(200.0), Memcpy(2_000_000), Compute("gemm", 10.0), copy_gbs=10.0)
    healthy, slow = (simulate(program, 2, faults) for faults in ((), (SlowInput(1, 300.0), SlowCopy(1, 40.0))))
    assert [of(run, 1, "copy")[0].end - of(run, 1, "copy")[0].start for run in (healthy, slow)] == [201_000, 241_000]
    loads = [[h.end - h.start for h in rank.host_rows if h.kind == "input"] for rank in slow.ranks]
    assert loads == [[200_000] * 2, [500_000] * 2]


def test_link_faults_stay_in_their_group():
    healthy, slow = (simulate(hsdp(steps=1).without_jitter(), 8, f) for f in ((), [SlowLink("replicate", 3.0, (1,))]))
    for a, b in zip(healthy.collectives, slow.collectives, strict=True):
        factor = b.transfer_ns / a.transfer_ns
        assert (a.op, a.members) == (b.op, b.members)
        assert factor == pytest.approx(3.0 if b.op.group == "replicate" and 1 in b.members else 1.0, rel=1e-5)


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(
    "fault",
    [SlowCompute(1, 2.0), SlowCompute(1, extra_us=3000), SlowHost(1, 9000), SlowInput(1, 9000), SlowCopy(1, 3000)],
    ids=lambda fault: type(fault).__name__,
)  # fmt: skip
def test_a_fault_costs_the_run_time_and_only_its_steps(builder, fault):
    healthy = simulate(builder(steps=4), 4)
    assert step_time(simulate(builder(steps=4), 4, [fault])) > 1.2 * step_time(healthy)
    once = type(fault)(**{**vars(fault), "steps": (5,)})
    longer = step_durations(simulate(builder(steps=4), 4, [once])) - step_durations(healthy)
    assert (longer[:, :2] == 0).all()  # jitter is the same with and without
    assert (longer[:, 2] > 0.2 * step_time(healthy)).all()


def test_a_fault_picks_its_place():
    run = simulate(ddp().without_jitter(), 2, [SlowHost(0, 700, at="bucket.1"), SlowCompute(1, 3.0, at="forward.2")])
    healthy = simulate(ddp().without_jitter(), 2)

    def host_cost(run, label):
        rows = run.ranks[0].activities
        at = next(i for i, a in enumerate(rows) if a.label == label and a.step == 2)  # in the warm-up nothing blocks
        return rows[at].launch - rows[at - 1].launch

    assert host_cost(run, "bucket.1") - host_cost(healthy, "bucket.1") == 700_000
    assert host_cost(run, "bucket.0") == host_cost(healthy, "bucket.0")
    for label, factor in (("forward.2", 3.0), ("forward.1", 1.0)):
        slow, usual = of(run, 1, label)[0], of(healthy, 1, label)[0]
        assert slow.end - slow.start == factor * (usual.end - usual.start)
