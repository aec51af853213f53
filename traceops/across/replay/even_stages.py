"""What even stages, and more micro-batches, would buy a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceops.across.bubble import Bubble, passes_of
from traceops.across.replay.graph import WORK, RankNodes, StepGraph
from traceops.across.replay.loaders import batch_ns, paced
from traceops.across.replay.simulate import Scenario, simulate
from traceops.across.replay.what_if import Prediction
from traceops.measure.program import NEVER

STAGES_EVEN = "stages even"
STAGE_PACE = "slowest stage at the others' pace"
TWICE_THE_MICRO_BATCHES = "twice the micro-batches"
INTERLEAVED = "interleaved, two stages a rank"
_MOVES = [WORK.index(name) for name in ("compute", "memory", "idle_host")]  # with the layers; the rest is the rank's
_MOST_LAUNCHING = 2.0  # times as long as now, where a stage gets more to compute
_HOST_BOUND = 0.05  # of the step: a host that is late so long would be later with twice as many launches


def predict_pipelines(graph: StepGraph, bubbles: Sequence[Bubble]) -> list[Prediction]:
    """The steps with the same work shared evenly over the stages, and with twice as many micro-batches, half as large.

    Where all kernels take longer on the slowest stage than on the others, the steps without that too. Twice the batches
    only where the schedule's bubble is known and no host bounds its stage. It takes kernels of half the size to need
    half the time, so it is the most that can be saved. Two stages a rank where each has one (interleaved) fill and
    drain half as long too, with whole kernels, but with the sends of a pipeline of twice as many stages: they are taken
    as exposed as they are now.
    """
    inside = [bubble for bubble in bubbles if all(stage.rank in graph.ranks for stage in bubble.stages)]
    if not inside:
        return []
    ranks = tuple(sorted(stage.rank for bubble in inside for stage in bubble.stages))
    shares = {
        stage.rank: bubble.mean_work / stage.work for bubble in inside for stage in bubble.stages if stage.work > 0
    }
    nodes = {rank: _scaled(own, shares[rank]) if rank in shares else own for rank, own in graph.ranks.items()}
    made = [Prediction(STAGES_EVEN, ranks, simulate(replace(graph, ranks=nodes), Scenario()).step_ns())]
    slow = {one.slowest.rank: 1 / one.slower_alike for one in inside if one.slower_alike is not None}
    if slow:
        quicker = {rank: _quicker(own, slow[rank]) if rank in slow else own for rank, own in graph.ranks.items()}
        steps = simulate(replace(graph, ranks=quicker), Scenario()).step_ns()
        made.append(Prediction(STAGE_PACE, tuple(sorted(slow)), steps))
    saved = [_half_the_passage(bubble, graph) for bubble in inside]
    if all(own is not None for own in saved):
        base = simulate(graph).step_ns()
        least = min(own for own in saved if own is not None)
        made.append(Prediction(TWICE_THE_MICRO_BATCHES, ranks, _paced(graph, base - least)))
        if all(_can_interleave(bubble) for bubble in inside):
            more = max(_further_sends(bubble) for bubble in inside)
            made.append(Prediction(INTERLEAVED, ranks, _paced(graph, base - max(least - more, 0.0))))
    return made


def _paced(graph: StepGraph, steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The steps, as far as loaders keep up with them."""
    return paced(steps, batch_ns(graph, {}), graph.typical)


def _can_interleave(bubble: Bubble) -> bool:
    """Whether its ranks hold one stage each, and its micro-batches come in rounds of as many as there are ranks."""
    pipeline = bubble.pipeline
    rounds = (pipeline.micro_batches or 0) % len(bubble.stages) == 0
    return rounds and pipeline.chunks == 1 and pipeline.schedule in ("gpipe", "1f1b")


def _further_sends(bubble: Bubble) -> float:
    """What the sends between twice as many stages would take more, ns a step, as exposed as those of today."""
    ranks = len(bubble.stages)
    return bubble.sending * ((2 * ranks - 1) / (ranks - 1) - 1)


def _half_the_passage(bubble: Bubble, graph: StepGraph) -> float | None:
    """Half of the time in which a pipeline fills and drains, ns; None where it cannot be said what that becomes."""
    if passes_of(bubble.pipeline) is None or bubble.pipeline.schedule == "forward_only":
        return None
    late = WORK.index("idle_host")
    for stage in bubble.stages:
        nodes, edges = graph.ranks[stage.rank], graph.edges[stage.rank]
        spent = nodes.spent[edges[-1], late] - nodes.spent[edges[0], late]
        if spent > _HOST_BOUND * (nodes.begin[edges[-1]] - nodes.begin[edges[0]]):
            return None
    return min(stage.fill_drain for stage in bubble.stages) / 2


def _quicker(nodes: RankNodes, share: float) -> RankNodes:
    """A rank whose kernels take this share of their time; its host does what it did."""
    column = WORK.index("compute")
    less, joined, waited = (
        np.rint((share - 1) * spent[:, column]).astype(np.int64)
        for spent in (nodes.spent, nodes.join_spent, nodes.waits.spent)
    )
    waits = replace(nodes.waits, work=nodes.waits.work + waited)
    return replace(nodes, work=nodes.work + less, join_work=nodes.join_work + joined, waits=waits)


def _scaled(nodes: RankNodes, share: float) -> RankNodes:
    """A rank with this share of its computation, and of the host's time that launches it.

    That time grows no further than to `_MOST_LAUNCHING`: a stage that hardly computes launches about as many operators
    as the others all the same, and what comes to it takes no longer to launch there than where it was.
    """
    known = nodes.host > NEVER
    launching = min(share, _MOST_LAUNCHING)
    host, waiting = nodes.host.copy(), nodes.waits.host
    if known.any():
        first = int(host[known].min())
        host[known] = first + np.rint(launching * (host[known] - first)).astype(np.int64)
        waiting = first + np.rint(launching * (waiting - first)).astype(np.int64)
    more, joined, waited = (
        np.rint((share - 1) * spent[:, _MOVES].sum(axis=1)).astype(np.int64)
        for spent in (nodes.spent, nodes.join_spent, nodes.waits.spent)
    )
    waits = replace(nodes.waits, work=nodes.waits.work + waited, host=waiting)
    return replace(nodes, work=nodes.work + more, join_work=nodes.join_work + joined, host=host, waits=waits)
