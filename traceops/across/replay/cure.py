"""What a cured rank runs: its peers' usual program, or its own without the places in which it is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceops.across.own_times import own_steps
from traceops.across.replay.graph import StepGraph
from traceops.across.replay.late_places import LatePlaces, late_places
from traceops.across.replay.simulate import Scenario
from traceops.across.replay.usual import usual_program


def cure(graph: StepGraph, ranks: Sequence[int], typical: NDArray[np.bool_]) -> Scenario | None:
    """These ranks run as their peers outside the set usually do in `typical` steps.

    Where all peers of one are in the set, each is as quick as they are where it is late, in a place of its own; None
    where it is late in none.
    """
    program_of, spared = {}, {}
    for rank in ranks:
        peer = median_peer(graph, rank, ranks)
        if peer is not None:
            program_of[rank] = peer
        elif (places := late_places(graph, rank)) is not None:
            spared[rank] = places
        else:
            return None
    return as_peers(graph, program_of, ranks, typical, spared)


def as_peers(
    graph: StepGraph,
    program_of: Mapping[int, int],
    ranks: Sequence[int],
    typical: NDArray[np.bool_],
    spared: Mapping[int, LatePlaces] | None = None,
) -> Scenario:
    """Ranks run the usual program of those peers of program_of that are not among `ranks`."""
    usual = {}
    for peer in set(program_of.values()):
        healthy = [rank for rank in graph.roles[peer] if rank not in ranks]
        cured = [rank for rank in graph.roles[peer] if rank in ranks]
        if len(cured) > len(healthy):
            healthy += usually_alike(graph, healthy, cured, typical)
            cured = [rank for rank in cured if rank not in healthy]
        usual[peer] = usual_program(graph, peer, healthy, cured, typical)
    return Scenario(program_of=program_of, usual=usual, spared=spared or {})


def usually_alike(
    graph: StepGraph, peers: Sequence[int], ranks: Sequence[int], typical: NDArray[np.bool_]
) -> list[int]:
    """Those ranks that usually are as quick as these peers: late in a step or two, they tell of the usual pace too.

    Where more ranks are late by chance than are not, the others are the lucky ones.
    """
    chosen = typical if typical.any() else ~typical
    theirs = np.concatenate([own_steps(graph, rank)[chosen] for rank in peers])
    most = float(np.median(theirs)) + float(np.std(theirs))
    return [rank for rank in ranks if float(np.median(own_steps(graph, rank)[chosen])) <= most]


def median_peer(graph: StepGraph, rank: int, excluded: Sequence[int]) -> int | None:
    """The peer of `rank` outside `excluded` with the median own time; of two the slower one."""
    peers = [peer for peer in graph.peers(rank) if peer not in excluded]
    return median_rank(graph, peers) if peers else None


def median_rank(graph: StepGraph, ranks: Sequence[int]) -> int:
    """The rank with the median own time over the window; of two the slower one."""
    ordered = sorted(ranks, key=lambda rank: (_own_ns(graph, rank), rank))
    return ordered[len(ordered) // 2]


def faster_median(graph: StepGraph, ranks: Sequence[int]) -> int:
    """As median_rank, of two the faster one: where half of the ranks are late, the others set the pace."""
    ordered = sorted(ranks, key=lambda rank: (_own_ns(graph, rank), rank))
    return ordered[(len(ordered) - 1) // 2]


def _own_ns(graph: StepGraph, rank: int) -> int:
    nodes = graph.ranks[rank]
    return int(nodes.work[-1] - nodes.work[nodes.first_edge])
