"""How far hosts had run ahead of their ranks when the window began, and which of them use that up in it."""

from __future__ import annotations

from itertools import combinations
from statistics import median

import numpy as np

from traceops.across.replay.graph import RankNodes, StepGraph
from traceops.measure.program import NEVER

_LOST = 0.002  # of a step, a step: what a host must lose of its lead under a change to be looked at
_USED = 0.02  # of a step, a step: what a host must take longer than the measured steps to use up its lead
_MOST_STEPS = 64  # whose leads are held against each other


def least_loss(step_ns: float, steps: int) -> float:
    """What a host must lose of its lead over so many steps under a change to be looked at, ns."""
    return _LOST * steps * step_ns


def lead(nodes: RankNodes) -> int:
    """How far the host had run ahead before the window, ns: while its rank waited, which a change may end.

    None of it is taken from a host that uses it up in the steps as they were measured. It takes longer there than they
    do, so it cannot have got ahead at that pace: the profiler slows it, and nothing tells how fast it is without. Nor
    from one of which the first step does not tell, or that waits in every step until its device has done all, and gets
    ahead anew.
    """
    if caught_up_each_step(nodes) or is_unknown(nodes):
        return 0
    return leads(nodes)[0] or 0  # None: no launch is known at all


def hosts_unknown(graph: StepGraph) -> tuple[int, ...]:
    """The ranks whose hosts are slower in the window than they were before it, or whose lead is not known.

    Changes take it that they keep up.
    """
    return tuple(rank for rank, nodes in graph.ranks.items() if is_unknown(nodes))


def is_unknown(nodes: RankNodes) -> bool:
    """Whether nobody knows how fast the host is by itself. One without any launch in the trace is not replayed."""
    return is_unseen(nodes) or uses_up_lead(nodes)


def is_unseen(nodes: RankNodes) -> bool:
    """Whether the trace has launches, and none in the first step: nothing shows how far ahead the host was."""
    own = leads(nodes)
    return own[0] is None and any(one is not None for one in own)


def caught_up_each_step(nodes: RankNodes) -> bool:
    """Whether in every step the host waits until the device has done all that was launched before.

    One that waits for an event of the step before keeps what it is ahead.
    """
    edges, waits = nodes.stands_at[nodes.first_edge :], nodes.waits.stands_at
    launched = nodes.host > NEVER
    all_done = [
        not bool((launched & (nodes.waits_before <= number) & (nodes.stands_at > at)).any())
        for number, at in enumerate(waits.tolist())
    ]
    # A wait on an edge is of the step that ends there.
    step = np.searchsorted(edges, waits[np.array(all_done, dtype=bool)], side="left")
    return len(np.unique(step[(step > 0) & (step < len(edges))])) == len(edges) - 1


def uses_up_lead(nodes: RankNodes) -> bool:
    """Whether the host takes longer than the steps do, so that it is less far ahead from one to the next.

    By the median over all pairs of steps, which no single odd step decides. Steps in which nothing is left of the lead
    tell no more than the first of them.
    """
    known = [(number, ns) for number, ns in enumerate(leads(nodes)[:_MOST_STEPS]) if ns is not None]
    while len(known) > 1 and known[-1][1] == known[-2][1] == 0:
        known.pop()
    lost = [(before - after) / (later - at) for (at, before), (later, after) in combinations(known, 2)]
    return bool(lost) and median(lost) > _USED * _step_ns(nodes)


def leads(nodes: RankNodes) -> list[int | None]:
    """By how much the host was ahead at the latest launch in each step, ns; 0 where it was not, None if not known."""
    edges = nodes.stands_at[nodes.first_edge :]
    known = nodes.host > NEVER
    ahead, at = (nodes.standing - nodes.host)[known], nodes.stands_at[known]
    step = np.maximum(np.searchsorted(edges, at, side="left") - 1, 0)  # on an edge it is of the step that ends there
    own = [ahead[step == number] for number in range(len(edges) - 1)]
    return [max(int(one.min()), 0) if len(one) else None for one in own]


def _step_ns(nodes: RankNodes) -> float:
    edges = nodes.stands_at[nodes.first_edge :]
    return float(edges[-1] - edges[0]) / max(len(edges) - 1, 1)
