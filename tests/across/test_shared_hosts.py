"""Work that is shared is launched by those who share it: a host that launched all of it has less to do then."""

from __future__ import annotations

import numpy as np
import pytest
from changed import replace
from generated_run import Compute, SlowHost, ddp, simulate
from measured_runs import across, program, true_step

from traceops.across.replay.simulate import shared_hosts
from traceops.across.replay.simulate import simulate as replay
from traceops.across.replay.what_if import shared_work

MANY = 160  # kernels, as an evaluation has them


def made_of(more):
    """Four ranks that read the loss each step, and run so many kernels more, each launched as long as it runs."""
    base = replace(program(ddp, steps=5, sync=True), launch_us=20.0)
    ops = base.steps[0]
    extra = [tuple(Compute("gemm", 15.0, "evaluation", "aten::mm") for _ in range(count)) for count in more]
    return replace(base, staged="world", stages=tuple((*ops[:-1], *own, ops[-1]) for own in extra))


def test_the_launches_of_shared_work_are_shared():
    """An evaluation that hosts bound was said to take as long shared by all: its launches stayed with one rank."""
    graph = across(simulate(made_of((MANY, 0, 0, 0)), 4)).graph
    steps = replay(graph, shared_work(graph, [0], np.ones(len(graph.steps), dtype=bool))).step_ns()
    truth = true_step(simulate(made_of((MANY // 4,) * 4), 4))
    assert steps[1:].mean() == pytest.approx(truth, rel=0.03)  # the first waits for what came before the window


def test_a_host_that_launches_no_more_than_its_peers_shares_nothing():
    graph = across(simulate(program(steps=4), 4, (SlowHost(0, 2000.0),))).graph
    assert not shared_hosts(graph, (0, 1, 2, 3), [0])
    assert not shared_hosts(replace(graph, kernels={}), (0, 1, 2, 3), [0])
    assert not shared_hosts(graph, (0,), [0])
