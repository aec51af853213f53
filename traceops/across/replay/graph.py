"""The graph of all ranks' work and collectives; `build.py` makes it from the ranks' programs and the matching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.ledger import OWN_BUCKETS
from traceops.measure.program import NEVER, RankProgram

# Beside the ledger's own buckets: time in which communication ran while the rank's host was late.
WORK = (*OWN_BUCKETS, "masked")

Steps = NDArray[np.float64]  # of something in each step, ns
Label = tuple[Any, ...]


class HostWaits(Struct, frozen=True):
    """Where a rank's host waited for its device, in order: it launches nothing behind that before the device is there.

    At own time `work` the device was done with what the host waited for, and `host` is the host's own time when it went
    on, `host_input` of it spent in data loading. `stands_at` and `spent` are as those of RankNodes.
    """

    stands_at: Int
    work: Int
    host: Int
    host_input: Int
    spent: Int


class RankNodes(Struct, frozen=True):
    """One rank's part: its collectives and step edges as nodes, and where it waited for one of them.

    `work[i]` is the rank's own time at node i: the moment (ns, common clock) less all waiting in joins
    before it; the node begins `delay[i]` after that, or after the end of node `after[i]` (-1: none),
    whichever is later. Join j, over at `joined_at[j]`, waits at own time `join_work[j]` for the
    end of node `join_node[j]`. Neither node i nor the work behind it begins before `host[i]`, the host's own
    time. `spent` and `join_spent` tell how much of the own time went to each of WORK. `slowed` is how much of it
    before node i compute kernels took only because communication beside them waited for other ranks. Node i was
    launched behind the first `waits_before[i]` of `waits`.
    """

    labels: tuple[Label, ...]
    work: Int
    delay: Int
    after: Int
    stands_at: Int  # the moment of each node (ns, the rank's clock), which orders nodes and joins
    standing: Int  # the same moment on the common clock, or when the join began in which it falls
    join_node: Int
    joined_at: Int
    join_work: Int
    host: Int
    host_input: Int
    spent: Int
    join_spent: Int
    slowed: Int
    waits: HostWaits
    waits_before: Int
    first_edge: int  # node of the first step's start; the other edges follow
    begin: Int  # as measured, common clock
    end: Int


class StepGraph(Struct, frozen=True, dict=True):
    """All ranks' nodes; `members[c]` are (rank, node) of collective c, in an order in which they can be replayed.

    `needs[c][i]` are the members, as positions in `members[c]`, that member i cannot end without, itself too; None
    where all members end together. `kind[c]` is the index of the collective in `matching.collectives`. `loading_ns` is
    what workers of a rank's loader take for the batches of a step, where that is known; `typical` are the steps like
    each other, None: all.
    """

    ranks: dict[int, RankNodes]
    members: tuple[tuple[tuple[int, int], ...], ...]
    needs: tuple[tuple[tuple[int, ...], ...] | None, ...]
    transfer: Int
    kind: tuple[int, ...]
    steps: tuple[int, ...]
    edges: dict[int, NDArray[np.int64]]  # rank -> node of each edge of `steps`, one more than steps
    roles: dict[int, tuple[int, ...]]  # rank -> the ranks that ran nearly the same program, itself too
    on_cpu: frozenset[int] = frozenset()  # ranks whose work the host itself does
    loading_ns: Mapping[int, float] = field(default_factory=dict)
    typical: NDArray[np.bool_] | None = None
    kernels: Mapping[int, Int] = field(default_factory=dict)  # rank -> how many it ran in each of `steps`

    @cached_property
    def end_of(self) -> dict[int, Int]:
        """Rank -> the place of each of its nodes among the members of all collectives in order, -1 for step edges."""
        found = {rank: [-1] * len(nodes.work) for rank, nodes in self.ranks.items()}
        for place, (rank, node) in enumerate(member for members in self.members for member in members):
            found[rank][node] = place
        return {rank: np.array(own, dtype=np.int64) for rank, own in found.items()}

    @cached_property
    def lead(self) -> dict[int, int]:
        """Rank -> how far its host had run ahead before the window, ns."""
        return {rank: lead(nodes) for rank, nodes in self.ranks.items()}

    @cached_property
    def layouts(self) -> dict[int, Any]:
        """What replays keep of each rank's measured program, whatever is changed."""
        return {}

    @cached_property
    def unchanged(self) -> dict[tuple[int, int], Any]:
        """What they keep of programs that they leave as they are, by rank and lead."""
        return {}

    def needed_by(self, number: int, rank: int) -> tuple[tuple[int, int], ...]:
        """Those members of a collective, as (rank, node), that this rank's cannot end without, itself too."""
        members, needs = self.members[number], self.needs[number]
        if needs is None:
            return members
        own = next(i for i, (member, _) in enumerate(members) if member == rank)
        return tuple(members[i] for i in needs[own])

    def slowed_us(self, rank: int) -> float:
        """What a rank's kernels took a step only because communication beside them waited, µs."""
        first, *_, last = self.edges[rank].tolist()
        slowed = self.ranks[rank].slowed
        return float(slowed[last] - slowed[first]) / 1e3 / len(self.steps)

    def peers(self, rank: int) -> list[int]:
        """The other ranks that ran the same program."""
        return [other for other in self.roles[rank] if other != rank]


def spent_before(program: RankProgram, moments: Int) -> Int:
    """Own time by WORK before each moment, ns; what no bucket holds is communication that masked a late host."""
    own = program.own_before(moments)
    inside = np.clip(moments, program.times[0], program.times[-1])
    waited = program.joined_before(inside) - program.joined_before(program.times[:1])
    masked = np.maximum(inside - program.times[0] - waited - own.sum(axis=1), 0)
    return np.concatenate((own, masked[:, None]), axis=1)


# Where in a step a node of the graph lies, so that steps can be held against each other.


def place_of(label: Label) -> Label:
    """The same in each step."""
    return (label[0], *label[2:]) if label[0] == "step" else label[1:]


def step_of(label: Label, index: Mapping[int, int], count: int) -> int:
    """Index of the step that what comes before this label is of; -1 outside of them."""
    if label[0] != "step":
        return index.get(label[0], -1)
    return count - 1 if label[1] == "end" else index[label[1]] - 1


# How far hosts had run ahead of their ranks when the window began, and which of them use that up in it.


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


# The pace of data loaders in a replay: workers that rest behind a late rank bound the step that its cure leaves.


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
