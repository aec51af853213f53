"""Runs the graph: when each collective ends and each step is over, under one change or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traceops.across.replay.graph import WORK, RankNodes, StepGraph
from traceops.across.replay.late_places import LatePlaces
from traceops.across.replay.leads import lead as lead_of
from traceops.across.replay.leads import least_loss
from traceops.across.replay.loaders import batch_ns, paced
from traceops.core.arrays import Int
from traceops.measure.program import NEVER


@dataclass(frozen=True)
class Scenario:
    """What a replay does otherwise: ranks that run another's program, own time that vanishes, other transfers.

    `spared`: ranks that are quicker in the places where each of them is late.

    `compute` has a rank's time in compute before each of its nodes (ns), in place of its own. `unslowed` is the part
    of what kernels took longer beside communication that waited which they do not take here. `part`: by rank how much
    of `without` vanishes, nothing on ranks that it lacks; empty: all of it on all.
    """

    program_of: Mapping[int, int] = field(default_factory=dict)  # rank -> the rank whose program it runs
    without: tuple[str, ...] = ()  # of WORK
    without_on: tuple[int, ...] | None = None  # the ranks it vanishes on; None: all
    transfer: Int | None = None
    compute: Mapping[int, Int] = field(default_factory=dict)
    unslowed: float = 0.0
    part: Mapping[int, float] = field(default_factory=dict)
    spared: Mapping[int, LatePlaces] = field(default_factory=dict)


@dataclass(frozen=True)
class SimulatedSteps:
    """Simulated ends of steps (rank -> edges, ns).

    `waited_for[rank]` is what the other members of its collectives waited for the rank that came last, ns.
    `batch_ns` is what loaders take for the batches of a step, in the mean over the `typical` ones.
    """

    edges: dict[int, NDArray[np.int64]]
    waited_for: dict[int, int]
    batch_ns: float = 0.0
    typical: NDArray[np.bool_] | None = None

    def step_ns(self) -> NDArray[np.float64]:
        """Duration of each step, ns, and no less than loaders take for its batches."""
        steps = self.fed_ns()
        return paced(steps, self.batch_ns, self.typical) if self.batch_ns else steps

    def fed_ns(self) -> NDArray[np.float64]:
        """The same if loaders keep up: the median over ranks."""
        steps: NDArray[np.float64] = np.median([np.diff(own) for own in self.edges.values()], axis=0)
        return steps


def measured_step_ns(graph: StepGraph) -> NDArray[np.float64]:
    """Duration of each step as measured, ns: the median over ranks."""
    own = [np.diff(nodes.begin[graph.edges[rank]]) for rank, nodes in graph.ranks.items()]
    steps: NDArray[np.float64] = np.median(own, axis=0)
    return steps


def simulate(graph: StepGraph, change: Scenario | None = None) -> SimulatedSteps:
    """Replay all steps. A rank's own time passes as measured; at a join it waits for the simulated end.

    What a host was ahead before the window is no part of a change: where one loses its lead within the window, all of
    the steps are replayed as they would be without it. [what-if replay on the collective graph: docs/metrics.md]
    """
    if change is None:
        return _replay(graph, Scenario(), None)[0]
    replayed = _changed(graph, change)
    in_time: tuple[int, ...] = ()
    if "idle_input" in change.without:
        in_time = tuple(graph.ranks) if change.without_on is None else change.without_on
    return replace(replayed, batch_ns=batch_ns(graph, change.program_of, in_time), typical=graph.typical)


def _changed(graph: StepGraph, change: Scenario) -> SimulatedSteps:
    """The steps under a change, if loaders keep up with it."""
    replayed, lost = _replay(graph, change, {})
    least = least_loss(float(replayed.step_ns().mean()), len(graph.steps))
    later = {rank: ns for rank, ns in lost.items() if ns > least}
    if later:
        again = _replay(graph, change, later)[0]
        if _no_longer(again.step_ns(), measured_step_ns(graph), replayed.step_ns()):
            return again
    if replayed.step_ns().sum() <= measured_step_ns(graph).sum():
        return replayed
    as_ahead = _replay(graph, change, None)[0]  # no change makes steps longer because a lead is gone
    return as_ahead if as_ahead.step_ns().sum() < replayed.step_ns().sum() else replayed


def _no_longer(
    steps: NDArray[np.float64], measured: NDArray[np.float64], replayed: NDArray[np.float64]
) -> bool:
    """Whether the first step, and all together, take no longer than they were measured, or replayed with the lead."""
    return float(steps[0]) <= max(float(measured[0]), float(replayed[0])) and float(steps.sum()) <= max(
        float(measured.sum()), float(replayed.sum())
    )


def _replay(
    graph: StepGraph, change: Scenario, later: Mapping[int, int] | None
) -> tuple[SimulatedSteps, dict[int, int]]:
    """The replayed steps, and by how much each host is less ahead at their end than where they begin, ns.

    later: by how much hosts are later than just in time for the first step; None: as they were.
    """
    programs = {}
    for rank, nodes in graph.ranks.items():
        source = change.program_of.get(rank, rank)
        own = nodes if source == rank else relabelled(graph.ranks[source], nodes)
        spared = change.without_on is not None and rank not in change.without_on
        without = () if spared else change.without
        own = _recomputed(own, change.compute[rank]) if rank in change.compute else own
        own = _spared(own, change.spared[rank]) if rank in change.spared else own
        own = _unslowed(own, change.unslowed) if change.unslowed else own
        part = change.part.get(rank, 0.0) if change.part else 1.0
        # A host that waited in what vanishes was not ahead by that.
        ahead = (
            own if not change.part else replace(own, standing=own.standing - _gone(own.spent, without, part))
        )
        lead = 0 if later is None else lead_of(ahead) + later.get(rank, 0)
        programs[rank] = _Simulation(own, graph.end_of[rank], without, lead, part)
    transfer = (graph.transfer if change.transfer is None else change.transfer).tolist()
    ends: list[int] = []
    waited_for = dict.fromkeys(graph.ranks, 0)
    for number, (members, needs) in enumerate(zip(graph.members, graph.needs, strict=True)):
        begins = [programs[rank].begin(node, ends) for rank, node in members]
        if needs is None:
            latest = max(begins)
            waited_for[members[begins.index(latest)][0]] += len(begins) * latest - sum(begins)
            ends += [latest + transfer[number]] * len(members)
            continue
        for begin, needed in zip(begins, needs, strict=True):
            last = max(needed, key=lambda place: begins[place])
            waited_for[members[last][0]] += begins[last] - begin
            ends.append(begins[last] + transfer[number])
    edges = {
        rank: np.array([programs[rank].begin(node, ends) for node in own.tolist()], dtype=np.int64)
        for rank, own in graph.edges.items()
    }
    lost = {
        rank: programs[rank].lost_lead(own, edges[rank], graph.ranks[rank].begin[own])
        for rank, own in graph.edges.items()
    }
    return SimulatedSteps(edges, waited_for), lost


def _recomputed(nodes: RankNodes, compute: Int) -> RankNodes:
    """The program with other times of compute before its nodes. Kernels that take longer are launched as before.

    So a gap in which the device had nothing launched closes by as much as it is behind by then; the launches alone say
    when it opens. Where launches are not known the gaps stay.
    """
    column = WORK.index("compute")
    own = nodes.spent[:, column]
    order = np.argsort(own, kind="stable")
    joined = np.interp(nodes.join_spent[:, column], own[order], compute[order]).astype(np.int64)
    late = [WORK.index("idle_host"), WORK.index("masked")]
    known = bool((nodes.host > NEVER).any())
    gaps, joined_gaps = (spent[:, late].sum(axis=1) * known for spent in (nodes.spent, nodes.join_spent))
    moment = np.concatenate((nodes.joined_at, nodes.stands_at))
    behind = _behind(
        np.argsort(moment, kind="stable"),
        np.concatenate((joined - nodes.join_spent[:, column], compute - own)),
        np.concatenate((joined_gaps, gaps)),
    )
    joins = len(nodes.join_work)
    return replace(nodes, work=nodes.work + behind[joins:], join_work=nodes.join_work + behind[:joins])


def _behind(order: Int, more: Int, gaps: Int) -> Int:
    """How much later a device is at each of these moments: it takes `more` before them, and `gaps` close by that."""
    later, before_more, before_gaps = 0, 0, 0
    behind = np.zeros(len(order), dtype=np.int64)
    more_by, gaps_by = more[order].tolist(), gaps[order].tolist()
    for at, (place, longer, gap) in enumerate(zip(order.tolist(), more_by, gaps_by, strict=True)):
        later += longer - before_more if at else 0
        later -= min(max(gap - before_gaps, 0), max(later, 0)) if at else 0
        before_more, before_gaps = longer, gap
        behind[place] = later
    return behind


def _spared(nodes: RankNodes, places: LatePlaces) -> RankNodes:
    """The program without what it takes longer in these places."""
    return replace(
        nodes,
        work=nodes.work - places.spared,
        standing=nodes.standing - places.spared,
        join_work=nodes.join_work - places.spared_joins,
        host=np.where(nodes.host > NEVER, nodes.host - places.spared_host, NEVER),
    )


def _unslowed(nodes: RankNodes, part: float) -> RankNodes:
    """The program without this part of what its kernels took longer beside communication that waited."""
    order = np.argsort(nodes.stands_at, kind="stable")
    joined = np.interp(nodes.joined_at, nodes.stands_at[order], nodes.slowed[order])
    first = int(nodes.slowed[nodes.first_edge])
    return replace(
        nodes,
        work=nodes.work - np.rint(part * (nodes.slowed - first)).astype(np.int64),
        join_work=nodes.join_work - np.rint(part * (joined - first)).astype(np.int64),
    )


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
        slowed=source.slowed[take],
        begin=source.begin[take],
        end=source.end[take],
    )


def _gone(spent: Int, without: tuple[str, ...], part: float) -> Int:
    """So much of the time spent in these of WORK, whole ns."""
    whole: Int = spent[:, [WORK.index(name) for name in without]].sum(axis=1)
    return whole if part == 1.0 else np.rint(part * whole).astype(np.int64)


class _Simulation:
    """One rank while it is replayed: how far it is behind its own time after each of its joins and launches."""

    def __init__(
        self, nodes: RankNodes, end_of: Int, without: tuple[str, ...], lead: int, part: float = 1.0
    ) -> None:
        work, join_work, host = nodes.work, nodes.join_work, nodes.host + lead
        if without:
            work = work - _gone(nodes.spent, without, part)
            join_work = join_work - _gone(nodes.join_spent, without, part)
            if "idle_input" in without:
                host = host - nodes.host_input
            if "idle_host" in without:
                host = np.full_like(host, NEVER)
        # What may hold the rank up, in the order of its time: joins, each until its collective ends, and launches.
        # How far the launches before a node hold it up is known beforehand.
        moment = np.concatenate((nodes.joined_at, nodes.stands_at))
        order = np.argsort(moment, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        late = np.concatenate((np.full(len(join_work), NEVER), host - work))[order]
        behind = np.maximum(np.maximum.accumulate(late), 0)[place[len(join_work) :]]
        self._host = host
        self._work: list[int] = work.tolist()
        self._launched: list[int] = (work + behind).tolist()
        self._delay: list[int] = nodes.delay.tolist()
        # A join for a node that is not there holds nothing up.
        joins = order[order < len(join_work)]
        joins = joins[nodes.join_node[joins] >= 0]
        self._joins: list[int] = end_of[nodes.join_node[joins]].tolist()
        self._join_work: list[int] = join_work[joins].tolist()
        self._joins_before: list[int] = np.searchsorted(place[joins], place[len(join_work) :]).tolist()
        self._held_up = [0]  # by the first joins
        self._after: list[int] = np.where(nodes.after >= 0, end_of[nodes.after], -1).tolist()

    def begin(self, node: int, ends: list[int]) -> int:
        """When the node begins, given the ends of the collectives before it."""
        held_up, joins = self._held_up, self._joins_before[node]
        while len(held_up) <= joins:
            join = len(held_up) - 1
            number = self._joins[join]
            behind = ends[number] - self._join_work[join] if 0 <= number < len(ends) else 0
            held_up.append(max(held_up[-1], behind))
        moment, launched = self._work[node] + held_up[joins], self._launched[node]
        if launched > moment:
            moment = launched
        after = self._after[node]
        if 0 <= after < len(ends) and ends[after] > moment:
            moment = ends[after]
        return moment + self._delay[node]

    def lost_lead(self, edges: Int, begins: NDArray[np.int64], measured: Int) -> int:
        """By how much the host is further ahead of its rank at the first of these edges than at any other, ns.

        What ends the step before the first may have been launched before the window: the shortest step before the next.
        No more than what makes the first step as long as it was measured.
        """
        host = self._host[edges]
        known = np.flatnonzero(host > NEVER // 2)
        if len(known) < 2 or known[0] > 1:
            return 0
        launched = int(host[known[0]])
        if known[0]:
            launched -= int(np.diff(host[known]).min())
        ahead = (begins - host)[known[known > 0]]
        shorter = int(measured[1] - measured[0]) - int(begins[1] - begins[0])
        return max(min(int(begins[0]) - launched - int(ahead.max()), shorter), 0)
