"""How far hosts had run ahead of their ranks when the window began, and which of them use that up in it."""

from __future__ import annotations

from traceops.across.replay.graph import RankNodes, StepGraph
from traceops.measure.program import NEVER

_LOST = 0.002  # of a step, a step: what a host must lose of its lead under a change to be looked at
_USED = 0.02  # of a step, a step: what a host must take longer than the measured steps to use up its lead


def least_loss(step_ns: float, steps: int) -> float:
    """What a host must lose of its lead over so many steps under a change to be looked at, ns."""
    return _LOST * steps * step_ns


def lead(nodes: RankNodes) -> int:
    """How far the host had run ahead before the window, ns: while its rank waited, which a change may end.

    None of it is taken from a host that uses it up in the steps as they were measured. It takes longer there than they
    do, so it cannot have got ahead at that pace: the profiler slows it, and nothing tells how fast it is without.
    """
    return 0 if uses_up_lead(nodes) else _ahead(nodes, 0)


def hosts_unknown(graph: StepGraph) -> tuple[int, ...]:
    """The ranks whose hosts are slower in the window than they were before it: changes take it that they keep up."""
    return tuple(rank for rank, nodes in graph.ranks.items() if uses_up_lead(nodes))


def uses_up_lead(nodes: RankNodes) -> bool:
    """Whether the host is less far ahead in the last step than in the first, because it takes longer than they do."""
    edges = nodes.stands_at[nodes.first_edge :]
    steps = len(edges) - 1
    if steps < 2:
        return False
    used = _ahead(nodes, 0) - _ahead(nodes, steps - 1)
    return used > _USED * (steps - 1) / steps * float(edges[-1] - edges[0])


def _ahead(nodes: RankNodes, step: int) -> int:
    """By how much the host was ahead at the latest launch in a step, ns; 0 where it was not, or is not known."""
    edges = nodes.stands_at[nodes.first_edge :]
    inside = (nodes.host > NEVER) & (nodes.stands_at <= edges[step + 1])
    if step:
        inside &= nodes.stands_at > edges[step]
    return max(int((nodes.standing - nodes.host)[inside].min()), 0) if inside.any() else 0
