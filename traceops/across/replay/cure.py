"""What a cured rank runs: its peers' usual program, or its own without the places in which it is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.across.replay.graph import RankNodes, StepGraph, place_of, step_of
from traceops.across.replay.programs import LatePlaces, late_places
from traceops.across.replay.simulate import Scenario
from traceops.across.work import own_steps
from traceops.core.arrays import Int, median, nanmedian
from traceops.measure.program import NEVER

# The program of a cured rank: its peers' usual one, in which no step has one peer's luck or mishap.

_MOST_RANKS = 16  # peers, and cured ranks, whose times are compared

_Cube = NDArray[np.float64]  # (ranks, places, steps), NaN where a step has no such place


class _Gone(Struct, frozen=True):
    """What lies less, `ns`, before each of these `nodes`, which are at these `moments`, in rising order."""

    nodes: Int
    moments: Int
    ns: Int

    def at(self, moments: Int) -> Int:
        """What lies less before each of other moments."""
        return np.rint(np.interp(moments, self.moments, self.ns)).astype(np.int64)

    def before(self, moments: Int) -> Int:
        """The same of all nodes: nothing where a moment is not known."""
        found = np.where(moments > NEVER, self.at(moments), 0)
        found[self.nodes] = self.ns
        return found


def usual_program(
    graph: StepGraph, source: int, peers: Sequence[int], cured: Sequence[int], typical: NDArray[np.bool_]
) -> RankNodes:
    """The program of `source`, one of `peers`, with the times that these usually take from one node to the next.

    From step to step a rank's time varies with that of all ranks of the role, and by chance. A cured rank has the first
    and not the second: with one peer's own steps it would never be waited for where that peer is lucky. So each step
    has the median over peers and `typical` steps, and what most ranks, the `cured` ones too, take longer or shorter in
    it [median polish, Tukey 1977]. Steps that are not typical have the peers' median in them. No host gets slower than
    those of the cured ranks are: a fix gives a host no more to do, but a peer's may be slow in most of the steps.
    """
    nodes = graph.ranks[source]
    chosen = _thinned(graph, peers)
    programs = [graph.ranks[rank] for rank in (source, *chosen, *_thinned(graph, cured))]
    own = _gone(programs, [one.work for one in programs], len(chosen), graph.steps, typical)
    no_slower = source not in graph.hosts_unknown
    host = _gone(programs, [one.host for one in programs], len(chosen), graph.steps, typical, no_slower)
    if own is None:
        return nodes
    work, joins, waits = own.before(nodes.work), own.at(nodes.join_work), nodes.waits
    return replace(
        nodes,
        work=nodes.work - work,
        standing=nodes.standing - work,
        join_work=nodes.join_work - joins,
        host=nodes.host if host is None else nodes.host - host.before(nodes.host),
        waits=replace(
            waits,
            work=waits.work - own.at(waits.work),
            host=waits.host if host is None else waits.host - host.at(waits.host),
        ),
    )


def usual_moments(
    graph: StepGraph,
    source: int,
    peers: Sequence[int],
    cured: Sequence[int],
    moments: Mapping[int, Int],
    typical: NDArray[np.bool_],
) -> Int:
    """The same of other times of each rank's nodes, such as what it has computed by then: those of `source`, ns."""
    chosen = _thinned(graph, peers)
    ranks = (source, *chosen, *_thinned(graph, cured))
    programs = [graph.ranks[rank] for rank in ranks]
    gone = _gone(programs, [moments[rank] for rank in ranks], len(chosen), graph.steps, typical)
    return moments[source] if gone is None else moments[source] - gone.before(moments[source])


def _thinned(graph: StepGraph, ranks: Sequence[int]) -> list[int]:
    """So many of them as are compared, from the quickest to the slowest."""
    ordered = sorted(ranks, key=lambda rank: (float(own_steps(graph, rank).mean()), rank))
    return ordered[:: -(-len(ordered) // _MOST_RANKS) or 1]


def _gone(
    programs: Sequence[RankNodes],
    moments: Sequence[Int],
    peers: int,
    steps: tuple[int, ...],
    typical: NDArray[np.bool_],
    no_slower: bool = False,
) -> _Gone | None:
    """What lies less before the nodes of the first of these programs if it is as the next `peers` usually are. moments:
    of their nodes, in own time or the host's. None where they have no two known ones in common. no_slower: no step
    takes longer than in the slowest of the programs after those."""
    aligned = np.array([_in_order_of(programs[0], *own) for own in zip(programs, moments, strict=True)])
    order = aligned[0].argsort(kind="stable")
    order = order[aligned.min(axis=0)[order] > NEVER]
    if len(order) < 2:
        return None
    index = {number: place for place, number in enumerate(steps)}
    labels = [programs[0].labels[at] for at in order.tolist()]
    step = np.array([step_of(label, index, len(index)) for label in labels[1:]], dtype=np.int64)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(map(place_of, labels[1:])))}
    place = np.array([numbers[place_of(label)] for label in labels[1:]], dtype=np.int64)
    took = np.diff(aligned[:, order], axis=1).astype(np.float64)
    inside = step >= 0
    cube = np.full((len(programs) - 1, len(numbers), len(index)), np.nan)
    cube[:, place[inside], step[inside]] = took[1:, inside]
    cured = _usual(cube, peers, typical, no_slower and len(cube) > peers)
    less = np.where(inside, took[0] - cured[place, np.maximum(step, 0)], 0.0)
    gone = np.concatenate(([0.0], less.cumsum()))
    return _Gone(order, aligned[0][order], np.rint(gone).astype(np.int64))


def _in_order_of(first: RankNodes, nodes: RankNodes, moments: Int) -> Int:
    """A program's moments in the order of another's nodes, NEVER for those that it lacks."""
    if nodes.labels == first.labels:
        return moments
    at = {label: node for node, label in enumerate(nodes.labels)}
    same = np.array([at.get(label, -1) for label in first.labels], dtype=np.int64)
    found: Int = np.where(same >= 0, moments[same], NEVER)
    return found


def _usual(cube: _Cube, peers: int, typical: NDArray[np.bool_], no_slower: bool) -> NDArray[np.float64]:
    """What the first `peers` of these ranks usually take in each place and step, ns, as `_gone` has it. Places add up
    to what steps usually take: a pause that comes somewhere in most steps is in the median of no place."""
    taken = _expected(cube, peers, typical)
    whole = ~np.isnan(cube).any(axis=(0, 1))  # the window may begin or end within a step
    if not np.count_nonzero(whole):
        return np.nan_to_num(taken)
    each = cube[:, :, whole].sum(axis=1)
    steps = _expected(each[:, None, :], peers, typical[whole])[0]
    if no_slower:
        steps = np.minimum(steps, each[peers:].max(axis=0))
    sums = taken[:, whole].sum(axis=0)
    scale = np.full(len(typical), median(steps) / max(median(sums), 1.0))
    scale[whole] = steps / np.maximum(sums, 1.0)
    found: NDArray[np.float64] = np.nan_to_num(taken * scale)
    return found


def _expected(cube: _Cube, peers: int, typical: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The median of peers over typical steps, and what all ranks have in common in each; other steps: theirs there."""
    now = _median(cube[:peers], 0)
    if not np.count_nonzero(typical):
        return now
    usual = _median(cube[:peers][:, :, typical].transpose(1, 0, 2).reshape(len(now), -1), 1)
    apart = cube - _median(cube[:, :, typical].reshape(-1, int(typical.sum())), 1).reshape(len(cube), -1, 1)
    # The median over ranks; of an even number the middle one that is nearer to 0, and 0 between two ways.
    ordered = np.sort(apart, axis=0)
    low, high = ordered[(len(apart) - 1) // 2], ordered[len(apart) // 2]
    found: NDArray[np.float64] = np.where(low > 0, low, np.where(high < 0, high, 0.0))
    return np.where(typical & ~np.isnan(usual)[:, None], usual[:, None] + found, now)


def _median(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """The median over an axis, of what is there."""
    if not np.count_nonzero(np.isnan(values)):
        found: NDArray[np.float64] = median(values, axis=axis)
        return found
    kept = ~np.isnan(values).all(axis=axis)
    found = np.full(kept.shape, np.nan)
    found[kept] = nanmedian(values[:, kept] if axis == 0 else values[kept], axis=axis)
    return found


def cure(graph: StepGraph, ranks: Sequence[int], typical: NDArray[np.bool_]) -> Scenario | None:
    """These ranks run as their peers outside the set usually do in `typical` steps. Where all peers of one are in the
    set, each is as quick as they are where it is late, in a place of its own; None where it is late in none."""
    program_of, spared = {}, {}
    for rank in ranks:
        # Choose the peer of `rank` outside `ranks` with the median own time; of two the slower one.
        peers = [peer for peer in graph.peers(rank) if peer not in ranks]
        if (peer := (median_rank(graph, peers) if peers else None)) is not None:
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
            # Ranks that are usually as quick as these peers: late in a step or two, they show the usual pace
            # too. Where more ranks are late by chance than are not, the others are the lucky ones.
            chosen = typical if np.count_nonzero(typical) else ~typical
            theirs = np.concatenate([own_steps(graph, rank)[chosen] for rank in healthy])
            most = median(theirs) + float(np.std(theirs))
            healthy += [rank for rank in cured if float(median(own_steps(graph, rank)[chosen])) <= most]
            cured = [rank for rank in cured if rank not in healthy]
        usual[peer] = usual_program(graph, peer, healthy, cured, typical)
    return Scenario(program_of=program_of, usual=usual, spared=spared or {})


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
