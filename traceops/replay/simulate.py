"""Runs the graph: when each collective ends and each step is over, under one change or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traceops.analyses.program import NEVER
from traceops.model import Int
from traceops.replay.graph import WORK, Graph, RankNodes


@dataclass(frozen=True)
class Change:
    """What a replay does otherwise: ranks that run another's program, own time that vanishes, other transfers."""

    program_of: Mapping[int, int] = field(default_factory=dict)  # rank -> the rank whose program it runs
    without: tuple[str, ...] = ()  # of WORK
    without_on: tuple[int, ...] | None = None  # the ranks it vanishes on; None: all
    transfer: Int | None = None


@dataclass(frozen=True)
class Replay:
    """Simulated ends of steps (rank -> edges, ns).

    `waited_for[rank]` is what the other members of its collectives waited for the rank that came last, ns.
    """

    edges: dict[int, NDArray[np.int64]]
    waited_for: dict[int, int]

    def step_ns(self) -> NDArray[np.float64]:
        """Duration of each step, ns: the median over ranks."""
        steps: NDArray[np.float64] = np.median([np.diff(own) for own in self.edges.values()], axis=0)
        return steps


def measured_step_ns(graph: Graph) -> NDArray[np.float64]:
    """Duration of each step as measured, ns: the median over ranks."""
    own = [np.diff(nodes.begin[graph.edges[rank]]) for rank, nodes in graph.ranks.items()]
    steps: NDArray[np.float64] = np.median(own, axis=0)
    return steps


def simulate(graph: Graph, change: Change | None = None) -> Replay:
    """Replay all steps. A rank's own time passes as measured; at a join it waits for the simulated end.

    [what-if replay on the collective graph: docs/metrics.md]
    """
    as_measured, change = change is None, change or Change()
    programs = {}
    for rank, nodes in graph.ranks.items():
        source = change.program_of.get(rank, rank)
        own = nodes if source == rank else relabelled(graph.ranks[source], nodes)
        spared = change.without_on is not None and rank not in change.without_on
        programs[rank] = _Run(own, () if spared else change.without, keep_lead=as_measured)
    collective_of: dict[int, list[int]] = {rank: [-1] * len(n.work) for rank, n in graph.ranks.items()}
    for number, members in enumerate(graph.members):
        for rank, node in members:
            collective_of[rank][node] = number
    transfer = (graph.transfer if change.transfer is None else change.transfer).tolist()
    ends: list[int] = []
    waited_for = dict.fromkeys(graph.ranks, 0)
    for number, members in enumerate(graph.members):
        begins = [programs[rank].begin(node, collective_of[rank], ends) for rank, node in members]
        latest = max(begins)
        waited_for[members[begins.index(latest)][0]] += len(begins) * latest - sum(begins)
        ends.append(latest + transfer[number])
    edges = {
        rank: np.array(
            [programs[rank].begin(int(node), collective_of[rank], ends) for node in graph.edges[rank]],
            dtype=np.int64,
        )
        for rank in graph.ranks
    }
    return Replay(edges, waited_for)


def relabelled(source: RankNodes, target: RankNodes) -> RankNodes:
    """The program of `source` with its nodes in the order of `target`.

    A node that only the target has begins with the one before it; a join for one that only the source has goes.
    """
    if source.labels == target.labels:
        return source
    at = {label: node for node, label in enumerate(source.labels)}
    same = np.array([at.get(label, -1) for label in target.labels], dtype=np.int64)
    known = np.flatnonzero(same >= 0)
    before = np.maximum(np.searchsorted(known, np.arange(len(same)), side="right") - 1, 0)
    take = same[known[before]]
    to = np.full(len(source.labels), -1, dtype=np.int64)
    to[same[known]] = known
    after = source.after[take]
    return replace(
        source,
        labels=target.labels,
        first_edge=target.first_edge,
        work=source.work[take],
        delay=np.where(same >= 0, source.delay[take], 0),
        after=np.where((same >= 0) & (after >= 0), to[after], -1),
        stands_at=source.stands_at[take],
        standing=source.standing[take],
        join_node=to[source.join_node],
        host=source.host[take],
        host_input=source.host_input[take],
        spent=source.spent[take],
        begin=source.begin[take],
        end=source.end[take],
    )


def _lead(nodes: RankNodes) -> int:
    """How far the host had run ahead before the window, ns: while its rank waited, which a change may end."""
    first = (nodes.host > NEVER) & (nodes.stands_at <= nodes.stands_at[nodes.first_edge + 1])
    return max(int((nodes.standing - nodes.host)[first].min()), 0) if first.any() else 0


class _Run:
    """One rank while it is replayed: how far it is behind its own time after each of its joins and launches."""

    def __init__(self, nodes: RankNodes, without: tuple[str, ...], keep_lead: bool) -> None:
        work, join_work, host = nodes.work, nodes.join_work, nodes.host
        if not keep_lead:
            host = host + _lead(nodes)
        if without:
            gone = [WORK.index(name) for name in without]
            work = work - nodes.spent[:, gone].sum(axis=1)
            join_work = join_work - nodes.join_spent[:, gone].sum(axis=1)
            if "idle_input" in without:
                host = host - nodes.host_input
            if "idle_host" in without:
                host = np.full_like(host, NEVER)
        self._work: list[int] = work.tolist()
        self._delay: list[int] = nodes.delay.tolist()
        self._after: list[int] = nodes.after.tolist()
        # What may hold the rank up, in the order of its time: joins (node, own time), launches (-1, how far behind).
        # A join for a node that is not there holds nothing up.
        behind = np.concatenate((np.where(nodes.join_node >= 0, join_work, NEVER), host - work))
        waits_for = np.concatenate((nodes.join_node, np.full(len(work), -1)))
        moment = np.concatenate((nodes.joined_at, nodes.stands_at))
        order = np.argsort(moment, kind="stable")
        self._waits_for: list[int] = waits_for[order].tolist()
        self._behind: list[int] = behind[order].tolist()
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        self._place: list[int] = (place[len(join_work) :] + 1).tolist()
        self._shift: list[int] = [0]

    def begin(self, node: int, collective_of: list[int], ends: list[int]) -> int:
        """When the node begins, given the ends of the collectives before it."""
        shift = self._shift
        while len(shift) <= self._place[node]:
            step = len(shift) - 1
            behind, waits_for = self._behind[step], self._waits_for[step]
            if waits_for >= 0:
                number = collective_of[waits_for]
                behind = ends[number] - behind if 0 <= number < len(ends) else NEVER
            shift.append(max(shift[-1], behind))
        moment = self._work[node] + shift[self._place[node]]
        after = self._after[node]
        if after >= 0:
            number = collective_of[after]
            if 0 <= number < len(ends):
                moment = max(moment, ends[number])
        return moment + self._delay[node]
