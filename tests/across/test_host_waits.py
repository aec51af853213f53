"""A host that waits for its device each step launches nothing behind that before the device is there."""

from __future__ import annotations

import numpy as np
import pytest
from changed import replace
from generated_run import HostSync, Size, SlowCompute, SlowLink, ddp, fsdp2, simulate
from measured_runs import across, predicted, program, true_step

from traceops.across.replay.simulate import Scenario
from traceops.across.replay.simulate import simulate as replay
from traceops.across.replay.what_if import rank_change

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
    free = replay(measured.graph, Scenario(transfer=measured.graph.transfer * 0)).step_ns()
    assert free.mean() == pytest.approx(true_step(simulate(with_free_link(made), 4)), rel=0.04)


def test_a_replay_without_a_change_takes_as_long_as_measured():
    made = program(fsdp2, steps=5, sync=True)
    graph = across(simulate(made, 4, [SlowCompute(1, 1.5)])).graph
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
    for rank, nodes in across(run).graph.ranks.items():
        ends = [row.end for row in run.ranks[rank].host_rows if row.kind == "sync"]
        assert len(nodes.waits.stands_at) >= 4
        for done in nodes.waits.stands_at.tolist():
            assert min(abs(run.ranks[rank].on_clock(end) - done) for end in ends) <= 50_000
    assert any(isinstance(op, HostSync) for op in made.ops(2, 0))
