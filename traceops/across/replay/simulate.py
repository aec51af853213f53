"""Runs the graph: when each collective ends and each step is over, under one change or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traceops.across.replay.changed_program import recomputed, relabelled, spared, unslowed
from traceops.across.replay.graph import WORK, RankNodes, StepGraph, Steps
from traceops.across.replay.host_waits import WaitingHost
from traceops.across.replay.late_places import LatePlaces
from traceops.across.replay.leads import lead as lead_of
from traceops.across.replay.leads import least_loss
from traceops.across.replay.loaders import batch_ns, paced
from traceops.across.replay.shared_hosts import HostShift
from traceops.core.arrays import Int
from traceops.measure.program import NEVER


@dataclass(frozen=True)
class Scenario:
    """What a replay does otherwise: ranks that run another's program, own time that vanishes, other transfers.

    `spared`: ranks that are quicker in the places where each of them is late.

    `compute` has a rank's time in compute before each of its nodes (ns), in place of its own, `hosts` by how much later
    its host is. `unslowed` is the part
    of what kernels took longer beside communication that waited which they do not take here. `part`: by rank how much
    of `without` vanishes, nothing on ranks that it lacks; empty: all of it on all.
    """

    program_of: Mapping[int, int] = field(default_factory=dict)  # rank -> the rank whose program it runs
    usual: Mapping[int, RankNodes] = field(default_factory=dict)  # that rank -> the program, where it is no step's own
    without: tuple[str, ...] = ()  # of WORK
    without_on: tuple[int, ...] | None = None  # the ranks it vanishes on; None: all
    transfer: Int | None = None
    compute: Mapping[int, Int] = field(default_factory=dict)
    hosts: Mapping[int, HostShift] = field(default_factory=dict)
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
    replayed, lost, gained = _replay(graph, change, {})
    least = least_loss(float(replayed.step_ns().mean()), len(graph.steps))
    if any(gained.values()) and _longer_at_first(replayed.step_ns(), least):
        replayed, lost, _ = _replay(graph, change, {}, gained)
    later = {rank: ns for rank, ns in lost.items() if ns > least}
    if later:
        again = _replay(graph, change, later, gained)[0]
        if _no_longer(again.step_ns(), measured_step_ns(graph), replayed.step_ns()):
            return again
    if replayed.step_ns().sum() <= measured_step_ns(graph).sum():
        return replayed
    as_ahead = _replay(graph, change, None)[0]  # no change makes steps longer because a lead is gone
    return as_ahead if as_ahead.step_ns().sum() < replayed.step_ns().sum() else replayed


def _longer_at_first(steps: Steps, least: float) -> bool:
    """Whether the first step takes longer than any other by more than `least`, ns."""
    return len(steps) > 1 and float(steps[0] - steps[1:].max()) > least


def _no_longer(steps: Steps, measured: Steps, replayed: Steps) -> bool:
    """Whether the first step, and all together, take no longer than they were measured, or replayed with the lead."""
    return float(steps[0]) <= max(float(measured[0]), float(replayed[0])) and float(steps.sum()) <= max(
        float(measured.sum()), float(replayed.sum())
    )


def _replay(
    graph: StepGraph, change: Scenario, later: Mapping[int, int] | None, kept: Mapping[int, int] | None = None
) -> tuple[SimulatedSteps, dict[int, int], dict[int, int]]:
    """The replayed steps, by how much each host loses its lead in them, and by how much it gains, ns.

    later: by how much hosts are later than just in time for the first step; None: as they were. kept: how much of its
    lead a host keeps, because it would gain that much under the change too.
    """
    programs = {}
    for rank, nodes in graph.ranks.items():
        source = change.program_of.get(rank, rank)
        program = graph.ranks[source] if source == rank else change.usual.get(source, graph.ranks[source])
        own = nodes if source == rank else relabelled(program, nodes)
        kept_whole = change.without_on is not None and rank not in change.without_on
        without = () if kept_whole else change.without
        own = recomputed(own, change.compute[rank]) if rank in change.compute else own
        own = change.hosts[rank].of(own) if rank in change.hosts else own
        own = spared(own, change.spared[rank]) if rank in change.spared else own
        own = unslowed(own, change.unslowed) if change.unslowed else own
        part = change.part.get(rank, 0.0) if change.part else 1.0
        # A host that waited in what vanishes was not ahead by that.
        ahead = own if not change.part else replace(own, standing=own.standing - _gone(own.spent, without, part))
        lead = 0
        if later is not None:
            own_lead = lead_of(ahead)
            lead = own_lead - min(own_lead, (kept or {}).get(rank, 0)) + later.get(rank, 0)
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
    gained = {rank: programs[rank].gained_lead(own, edges[rank]) for rank, own in graph.edges.items()}
    return SimulatedSteps(edges, waited_for), lost, gained


def _gone(spent: Int, without: tuple[str, ...], part: float) -> Int:
    """So much of the time spent in these of WORK, whole ns."""
    whole: Int = spent[:, [WORK.index(name) for name in without]].sum(axis=1)
    return whole if part == 1.0 else np.rint(part * whole).astype(np.int64)


class _Simulation:
    """One rank while it is replayed: how far it is behind its own time after each of its joins and launches."""

    def __init__(self, nodes: RankNodes, end_of: Int, without: tuple[str, ...], lead: int, part: float = 1.0) -> None:
        work, join_work, host, waits = nodes.work, nodes.join_work, nodes.host + lead, nodes.waits
        wait_work, wait_host = waits.work, waits.host + lead
        if without:
            work = work - _gone(nodes.spent, without, part)
            join_work = join_work - _gone(nodes.join_spent, without, part)
            wait_work = wait_work - _gone(waits.spent, without, part)
            if "idle_input" in without:
                host, wait_host = host - nodes.host_input, wait_host - waits.host_input
            if "idle_host" in without:
                host = np.full_like(host, NEVER)
        # What may hold the rank up, in the order of its time: joins, each until its collective ends, and launches.
        # How far the launches before a node hold it up is known beforehand.
        moment = np.concatenate((nodes.joined_at, nodes.stands_at))
        order = np.argsort(moment, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        launched = np.where(host > NEVER // 2, host - work, NEVER)
        late = np.concatenate((np.full(len(join_work), NEVER), launched))[order]
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
        self._waiting = (
            WaitingHost(nodes, launched, wait_work, wait_host, nodes.joined_at[joins])
            if len(wait_work) and bool((launched > NEVER // 2).any())
            else None
        )

    def begin(self, node: int, ends: list[int]) -> int:
        """When the node begins, given the ends of the collectives before it."""
        joins, launched = self._joins_before[node], self._launched[node]
        if self._waiting is not None:
            launched = self._work[node] + self._launches(self._waiting, node, ends)
        moment = self._work[node] + self._joined(joins, ends)
        if launched > moment:
            moment = launched
        after = self._after[node]
        if 0 <= after < len(ends) and ends[after] > moment:
            moment = ends[after]
        return moment + self._delay[node]

    def _joined(self, joins: int, ends: list[int]) -> int:
        """How far the first joins hold the rank up."""
        held_up = self._held_up
        while len(held_up) <= joins:
            join = len(held_up) - 1
            number = self._joins[join]
            behind = ends[number] - self._join_work[join] if 0 <= number < len(ends) else 0
            held_up.append(max(held_up[-1], behind))
        return held_up[joins]

    def _launches(self, waiting: WaitingHost, node: int, ends: list[int]) -> int:
        """How far a host that waits for its device holds the rank up by its launches before the node."""
        while waiting.passed() < waiting.waits[node]:
            waiting.wait(self._joined(waiting.joins_before[waiting.passed()], ends))
        return waiting.held_up(node)

    def _launched_at(self, edges: Int) -> Int:
        """When the host has launched what ends these steps."""
        own: Int = self._host[edges]
        return own if self._waiting is None else own + self._waiting.later(edges)

    def lost_lead(self, edges: Int, begins: NDArray[np.int64], measured: Int) -> int:
        """By how much the host is further ahead of its rank at the first of these edges than at any other, ns.

        What ends the step before the first may have been launched before the window: the shortest step before the next.
        No more than what makes the first step as long as it was measured.
        """
        host = self._launched_at(edges)
        known = np.flatnonzero(host > NEVER // 2)
        if len(known) < 2 or known[0] > 1:
            return 0
        launched = int(host[known[0]])
        if known[0]:
            launched -= int(np.diff(host[known]).min())
        ahead = (begins - host)[known[known > 0]]
        shorter = int(measured[1] - measured[0]) - int(begins[1] - begins[0])
        return max(min(int(begins[0]) - launched - int(ahead.max()), shorter), 0)

    def gained_lead(self, edges: Int, begins: NDArray[np.int64]) -> int:
        """By how much the host is further ahead of its rank at the last of these edges than at the second, ns.

        The first step says nothing: it is replayed with another lead than the steps before it.
        """
        host = self._launched_at(edges[1:])
        ahead = (begins[1:] - host)[host > NEVER // 2]
        return max(int(ahead[-1] - ahead[0]), 0) if len(ahead) > 1 else 0
