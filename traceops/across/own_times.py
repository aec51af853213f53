"""A rank's own time, without what it waits for others: in each step, by kind of work, and of its host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceops.across.replay.graph import WORK, StepGraph, Steps
from traceops.measure.program import NEVER

_FAR = 1.5  # times its peers' own time: a rank that is hidden behind a cured one, which runs as it does


def far_beyond(
    graph: StepGraph, rank: int, chosen: Sequence[int] = (), times: float = _FAR, but: Sequence[int] = ()
) -> bool:
    """Whether a rank takes far longer than all its peers that are not cured: of even hosts, one is the next slowest.

    but: steps that are left out, where others remain.
    """
    kept = ~np.isin(graph.steps, but)
    kept |= not kept.any()
    others = [float(own_steps(graph, peer)[kept].mean()) for peer in graph.peers(rank) if peer not in chosen]
    return bool(others) and float(own_steps(graph, rank)[kept].mean()) >= times * max(others)


def own_time(graph: StepGraph, rank: int) -> NDArray[np.int64]:
    """Own time of a rank over the window by WORK, ns."""
    nodes = graph.ranks[rank]
    spent: NDArray[np.int64] = nodes.spent[graph.edges[rank][-1]] - nodes.spent[graph.edges[rank][0]]
    return spent


def own_steps(graph: StepGraph, rank: int, without: Sequence[str] = ()) -> Steps:
    """Own time of a rank in each step: what is left of it without waiting, and `without` some of WORK, ns."""
    nodes, edges = graph.ranks[rank], graph.edges[rank]
    gone = nodes.spent[edges][:, [WORK.index(name) for name in without]].sum(axis=1)
    own: Steps = np.diff(nodes.work[edges] - gone).astype(float)
    return own


def loads_longer(graph: StepGraph, rank: int, peers: Sequence[int], least_ns: float) -> bool:
    """Whether this rank's host spends that much more of the window in data loading than its median peer's."""
    own = _loading_ns(graph, rank)
    others = [ns for peer in peers if (ns := _loading_ns(graph, peer)) is not None]
    return own is None or not others or own - float(np.median(others)) >= least_ns


def _loading_ns(graph: StepGraph, rank: int) -> float | None:
    nodes = graph.ranks[rank]
    known = nodes.host > NEVER
    return float(nodes.host_input[known].max()) if known.any() else None


def host_ns(graph: StepGraph, rank: int) -> float | None:
    """The host's own time over the window without data loading, ns; None where launches are not known."""
    nodes = graph.ranks[rank]
    known = np.flatnonzero(nodes.host > NEVER)
    if len(known) < 2:
        return None
    own = (nodes.host - nodes.host_input)[known]
    return float(own.max() - own.min())
