"""The steps replayed with more ranks: what the measured ones say of a larger job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from traceops.across.links import bus_factor
from traceops.across.match import Collective
from traceops.across.replay.graph import WORK, StepGraph
from traceops.across.replay.simulate import Scenario, simulate
from traceops.core.arrays import Int

_COMPUTE = WORK.index("compute")


def predicted_share(
    graph: StepGraph, collectives: Sequence[Collective], world: int, times: float, work: float
) -> float:
    """Duration of a step with `times` as many ranks over the measured one's, mean over the replayed steps.

    Groups of all ranks grow with the job; others stay as they are. Their collectives cost what links like the measured
    ones would take: the part that the smallest of their kind takes grows with the hops of a ring, the rest with the
    bytes on the bus [nccl-tests]. Ranks compute `work` times as much as measured, evenly (1: the batch of a rank
    stays). Nobody is later than measured.
    """
    transfer = larger_transfers(collectives, graph.kind, graph.transfer, world, times)
    compute = {} if work == 1.0 else {rank: _less_work(graph, rank, work) for rank in graph.ranks}
    base = float(simulate(graph).step_ns().mean())
    changed = float(simulate(graph, Scenario(transfer=transfer, compute=compute)).step_ns().mean())
    return changed / base


def larger_transfers(
    collectives: Sequence[Collective], kind: Sequence[int], transfer: Int, world: int, times: float
) -> Int:
    """Transfer of each replayed collective (ns) where groups of all ranks have `times` as many members."""
    least: dict[str, int] = defaultdict(lambda: np.iinfo(np.int64).max)
    for place, number in enumerate(kind):
        op = collectives[number].op
        least[op] = min(least[op], int(transfer[place]))
    made = transfer.astype(float)
    for place, number in enumerate(kind):
        one = collectives[number]
        n = len(one.group)
        if n < world or n < 2 or one.links:
            continue
        more = n * times
        latency = float(least[one.op])
        hops = (more - 1) / (n - 1)
        bus = _bus(one.op, more) / bus_factor(one.op, n)
        made[place] = latency * hops + (made[place] - latency) * bus
    whole: Int = np.rint(made).astype(np.int64)
    return whole


def _bus(op: str, n: float) -> float:
    return bus_factor(op, max(round(n), 2))


def _less_work(graph: StepGraph, rank: int, work: float) -> Int:
    """Compute before each node, from the first step on `work` times as much (ns)."""
    nodes = graph.ranks[rank]
    spent = nodes.spent[:, _COMPUTE]
    first = int(spent[graph.edges[rank][0]])
    less: Int = first + np.rint((spent - first) * work).astype(np.int64)
    return less
