"""The pace of data loaders in a replay: workers that rest behind a late rank bound the step that its cure leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceops.across.replay.graph import WORK, StepGraph

_INPUT = WORK.index("idle_input")
_LONGER = 0.05  # of the step: who waits so much longer for input than its peer is late by its loader


def batch_ns(graph: StepGraph, program_of: Mapping[int, int], in_time: Sequence[int] = ()) -> float:
    """What the slowest of the ranks' loaders takes for the batches of a step, ns; 0 where none is known.

    program_of: whose program a rank runs. It keeps its own loader unless that is why it is late. in_time: ranks whose
    input is taken to be there.
    """
    known = graph.loading_ns
    left = [rank for rank in graph.ranks if rank not in in_time]
    taken = [known.get(_loader_of(graph, rank, program_of.get(rank, rank)), 0.0) for rank in left]
    return max(taken, default=0.0) if known else 0.0


def paced(steps: NDArray[np.float64], batch: float, typical: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """The steps, ns, if the typical ones take no less than `batch` on average: the shortest wait for input.

    typical: None where all are. Batches that lie ready from a long step serve the short ones after it.
    """
    usual = np.sort(steps[typical] if typical is not None and typical.any() else steps)
    if not len(usual) or usual.mean() >= batch:
        return steps
    total = batch * len(usual)
    for count in range(1, len(usual) + 1):
        level = (total - usual[count:].sum()) / count
        if count == len(usual) or level <= usual[count]:
            break
    raised: NDArray[np.float64] = np.maximum(steps, level)
    return raised


def _loader_of(graph: StepGraph, rank: int, source: int) -> int:
    """Whose loader feeds a rank that runs the program of `source`."""
    if source == rank:
        return rank
    longer = _waits_for_input(graph, rank) - _waits_for_input(graph, source)
    return source if longer >= _LONGER * _window_ns(graph, rank) else rank


def _waits_for_input(graph: StepGraph, rank: int) -> int:
    spent, edges = graph.ranks[rank].spent[:, _INPUT], graph.edges[rank]
    return int(spent[edges[-1]] - spent[edges[0]])


def _window_ns(graph: StepGraph, rank: int) -> int:
    begin, edges = graph.ranks[rank].begin, graph.edges[rank]
    return int(begin[edges[-1]] - begin[edges[0]])
