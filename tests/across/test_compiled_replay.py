"""The compiled replay gives the nanoseconds of the one in Python, and refuses what would lead outside its arrays."""

from __future__ import annotations

import numpy as np
import pytest
from changed import replace
from generated_run import SlowCompute, SlowHost, SlowInput, fsdp2, simulate
from measured_runs import BUILDERS, across, program

from tests.across.pipelines import one_forward_one_backward, write_pipeline
from traceops.across.cross_rank import measure_across
from traceops.across.replay.programs import shared_hosts
from traceops.across.replay.simulate import Scenario
from traceops.across.replay.simulate import simulate as replay
from traceops.across.replay.what_if import HOST, LOADING, Replays, shared_work
from traceops.measure.summary import summarize
from traceops.traces.discover import discover

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
