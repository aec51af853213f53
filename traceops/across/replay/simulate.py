"""Runs the graph: when each collective ends and each step is over, under one change or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import ModuleType

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.across.replay.graph import WORK, FlatCollectives, RankNodes, StepGraph, batch_ns, least_loss, paced
from traceops.across.replay.graph import lead as lead_of
from traceops.across.replay.programs import HostShift, LatePlaces, recomputed, relabelled, spared, unslowed
from traceops.core.arrays import Int, median
from traceops.measure.program import NEVER

# A rank's program, the places of its nodes' ends, its step edges, how long its first step was measured to take, the
# lead of its host, the columns of WORK that vanish as bits, whether input and host are among them, and how much of it.
Program = tuple[RankNodes, Int, Int, int, int, int, bool, bool, float]


class Scenario(Struct, frozen=True):
    """What a replay does otherwise: ranks that run another's program, own time that vanishes, other transfers.
    `spared`: ranks that are quicker in the places where each of them is late. `compute` has a rank's time in compute
    before each of its nodes (ns), in place of its own, `hosts` by how much later its host is. `unslowed` is the part of
    what kernels took longer beside communication that waited which they do not take here. `part`: by rank how much of
    `without` vanishes, nothing on ranks that it lacks; empty: all of it on all."""

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


class SimulatedSteps(Struct, frozen=True):
    """Simulated ends of steps, ns: `edges` of shape (ranks, steps + 1), ranks in the graph's order. `waited_for[rank]`
    is what the other members of its collectives waited for the rank that came last, ns. `batch_ns` is what loaders take
    for the batches of a step, in the mean over the `typical` ones."""

    edges: Int
    waited_for: dict[int, int]
    batch_ns: float = 0.0
    typical: NDArray[np.bool_] | None = None

    def step_ns(self) -> NDArray[np.float64]:
        """Duration of each step, ns, and no less than loaders take for its batches."""
        steps = self.fed_ns()
        return paced(steps, self.batch_ns, self.typical) if self.batch_ns else steps

    def fed_ns(self) -> NDArray[np.float64]:
        """The same if loaders keep up: the median over ranks."""
        steps: NDArray[np.float64] = median(np.diff(self.edges, axis=1), axis=0)
        return steps


def measured_step_ns(graph: StepGraph) -> NDArray[np.float64]:
    """Duration of each step as measured, ns: the median over ranks."""
    own = [nodes.begin[graph.edges[rank]] for rank, nodes in graph.ranks.items()]
    steps: NDArray[np.float64] = median(np.diff(own, axis=1), axis=0)
    return steps


def simulate(graph: StepGraph, change: Scenario | None = None) -> SimulatedSteps:
    """Replay all steps. A rank's own time passes as measured; at a join it waits for the simulated end. What a host was
    ahead before the window is no part of a change: where one loses its lead within the window, all of the steps are
    replayed as they would be without it. [what-if replay on the collective graph: docs/metrics.md]"""
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
    steps, measured = replayed.step_ns(), measured_step_ns(graph)
    least = least_loss(float(steps.mean()), len(graph.steps))
    if any(gained.values()) and len(steps) > 1 and float(steps[0] - steps[1:].max()) > least:
        replayed, lost, _ = _replay(graph, change, {}, gained)
        steps = replayed.step_ns()
    if later := {rank: ns for rank, ns in lost.items() if ns > least}:
        again = _replay(graph, change, later, gained)[0]
        took = again.step_ns()
        # The first step, and all together, take no longer than they were measured, or replayed with the lead.
        if took[0] <= max(measured[0], steps[0]) and took.sum() <= max(measured.sum(), steps.sum()):
            return again
    if steps.sum() <= measured.sum():
        return replayed
    as_ahead = _replay(graph, change, None)[0]  # no change makes steps longer because a lead is gone
    return as_ahead if as_ahead.step_ns().sum() < steps.sum() else replayed


def _replay(
    graph: StepGraph, change: Scenario, later: Mapping[int, int] | None, kept: Mapping[int, int] | None = None
) -> tuple[SimulatedSteps, dict[int, int], dict[int, int]]:
    """The replayed steps, by how much each host loses its lead in them, and by how much it gains, ns. later: by how
    much hosts are later than just in time for the first step; None: as they were. kept: how much of its lead a host
    keeps, because it would gain that much under the change too."""
    programs = [_program(graph, rank, change, later, kept or {}) for rank in graph.ranks]
    transfer = graph.transfer if change.transfer is None else change.transfer
    if (compiled := _compiled()) is None:
        edges, waited_for, lost, gained = replay_plainly(programs, graph.collectives, transfer)
    else:
        found, waited_for, lost, gained = compiled.replay(programs, graph.collectives, transfer)
        edges = np.frombuffer(found, dtype=np.int64).reshape(len(programs), -1)
    return (
        SimulatedSteps(edges, dict(zip(graph.ranks, waited_for, strict=True))),
        dict(zip(graph.ranks, lost, strict=True)),
        dict(zip(graph.ranks, gained, strict=True)),
    )


def _compiled() -> ModuleType | None:
    """The compiled replay; None where TRACEOPS_NATIVE=0 forbids it, or it was not built."""
    if os.environ.get("TRACEOPS_NATIVE") == "0":
        return None
    try:
        import traceops.across.replay._replay as compiled
    except ImportError:
        return None
    return compiled


def _program(
    graph: StepGraph, rank: int, change: Scenario, later: Mapping[int, int] | None, kept: Mapping[int, int]
) -> Program:
    """What a rank runs under a change."""
    nodes = graph.ranks[rank]
    source = change.program_of.get(rank, rank)
    own = nodes if source == rank else relabelled(change.usual.get(source, graph.ranks[source]), nodes)
    if rank in change.compute:
        own = recomputed(own, change.compute[rank])
    if rank in change.hosts:
        own = change.hosts[rank].of(own)
    if rank in change.spared:
        own = spared(own, change.spared[rank])
    if change.unslowed:
        own = unslowed(own, change.unslowed)
    without = () if change.without_on is not None and rank not in change.without_on else change.without
    part = change.part.get(rank, 0.0) if change.part else 1.0
    lead = 0
    if later is not None:
        # A host that waited in what vanishes was not ahead by that.
        ahead = own if not change.part else replace(own, standing=own.standing - _gone(own.spent, without, part))
        own_lead = graph.lead[source] if _leads_alike(ahead, graph.ranks[source]) else lead_of(ahead)
        lead = own_lead - min(own_lead, kept.get(rank, 0)) + later.get(rank, 0)
    begin = nodes.begin[graph.edges[rank][:2]]
    return (
        own,
        graph.end_of[rank],
        graph.edges[rank],
        int(begin[1] - begin[0]),
        lead,
        _columns(without),
        "idle_input" in without,
        "idle_host" in without,
        part,
    )


@lru_cache
def _columns(without: tuple[str, ...]) -> int:
    """The columns of what a rank spent that vanish, a bit each."""
    return sum(1 << WORK.index(name) for name in without)


def _leads_alike(one: RankNodes, other: RankNodes) -> bool:
    """Whether two programs have in common what their hosts' leads are measured by."""
    names = ("stands_at", "standing", "host", "waits_before")
    return one.waits.stands_at is other.waits.stands_at and all(
        getattr(one, name) is getattr(other, name) for name in names
    )


def _gone(spent: Int, without: Sequence[str], part: float) -> Int:
    """So much of the time spent in these of WORK, whole ns."""
    whole: Int = spent[:, [WORK.index(name) for name in without]].sum(axis=1)
    return whole if part == 1.0 else np.rint(part * whole).astype(np.int64)


# The same as native/replay.c, for where no compiler was.


def replay_plainly(
    programs: Sequence[Program], collectives: FlatCollectives, transfer: Int
) -> tuple[Int, list[int], list[int], list[int]]:
    """When steps end (ranks, edges); who was waited for; what each host lost of its lead, and gained; all in ns."""
    starts, ranks, nodes, need_starts, needs, together = (own.tolist() for own in collectives)
    ran = [_Simulation(*program) for program in programs]
    ends: list[int] = []
    waited_for = [0] * len(programs)
    for number, moved in enumerate(transfer.tolist()):
        members = range(starts[number], starts[number + 1])
        begins = [ran[ranks[member]].begin(nodes[member], ends) for member in members]
        latest = begins.index(max(begins))
        for place, member in enumerate(members):
            if not together[number]:
                latest = max(needs[need_starts[member] : need_starts[member + 1]], key=begins.__getitem__)
            waited_for[ranks[members[latest]]] += begins[latest] - begins[place]
            ends.append(begins[latest] + moved)
    edges = [[one.begin(node, ends) for node in one.edges.tolist()] for one in ran]
    found = np.array(edges, dtype=np.int64)
    lost = [one.lost_lead(own) for one, own in zip(ran, found, strict=True)]
    return found, waited_for, lost, [one.gained_lead(own) for one, own in zip(ran, found, strict=True)]


_FAR = 1 << 40  # ns: further than any two moments of a window are apart


class _WaitingHost:
    """One rank's launches and waits while it is replayed. Of each launch `late` is the host's own time less the rank's.
    Behind its first waits a host is later by `later`, each time what its device was behind then. Launches between two
    waits hold up what comes next by the most of their `late` and that."""

    def __init__(self, nodes: RankNodes, late: Int, work: Int, host: Int, joined_at: Int) -> None:
        """`late` is of each node; `work` and `host` of each wait; `joined_at` when the joins are over."""
        waits = nodes.waits
        order = nodes.stands_at.argsort(kind="stable")
        behind = np.maximum.accumulate(nodes.waits_before[order])
        # What was launched before a wait, and stands behind what was launched after it, holds nothing up.
        known = (late[order] > NEVER // 2) & (nodes.waits_before[order] == behind)
        clipped = np.where(known, np.clip(late[order], -_FAR, _FAR), -_FAR)
        most = np.maximum.accumulate(clipped + 2 * _FAR * behind) - 2 * _FAR * behind
        place = nodes.stands_at[order].searchsorted(waits.stands_at, side="right") - 1
        number = np.arange(len(waits.work))
        before = np.where((place >= 0) & (behind[place] == number), most[place], -_FAR) if len(order) else 0 * number
        self._waits = np.empty_like(behind)
        self._waits[order] = behind
        by_node = np.empty_like(most)
        by_node[order] = most
        self.waits: list[int] = self._waits.tolist()
        self._most: list[int] = by_node.tolist()
        self._before: list[int] = before.tolist()
        self._ahead: list[int] = (work - host).tolist()
        self.joins_before: list[int] = joined_at.searchsorted(waits.stands_at, side="right").tolist()
        self._own_waits = nodes.waits_before
        self._held, self._later = [0], [0]

    def wait(self, held_up: int) -> None:
        """The next wait: `held_up` is how far joins had held the rank up by then."""
        number = len(self._later) - 1
        launched = self._before[number] + self._later[-1]
        held = max(self._held[-1], launched)
        self._held.append(held)
        self._later.append(max(self._later[-1], self._ahead[number] + max(held, held_up)))

    def held_up(self, node: int, joined: Callable[[int, list[int]], int], ends: list[int]) -> int:
        """How far launches hold the rank up at a node; `joined`: how far the first joins do."""
        waits, later = self.waits[node], self._later
        while len(later) <= waits:
            self.wait(joined(self.joins_before[len(later) - 1], ends))
        held, launched = self._held[waits], self._most[node] + later[waits]
        return held if held > launched else launched

    def later(self, nodes: Int) -> Int:
        """By how much the host was later than in its own time at the launches of these nodes."""
        later: Int = np.array(self._later)[np.minimum(self._own_waits[nodes], len(self._later) - 1)]
        return later


class _Layout:
    """What may hold a rank up, in the order of its time: joins, each until its collective ends, and launches."""

    def __init__(self, nodes: RankNodes, end_of: Int) -> None:
        count = len(nodes.join_work)
        self.order = np.concatenate((nodes.joined_at, nodes.stands_at)).argsort(kind="stable")
        place = np.empty(len(self.order), dtype=np.int64)
        place[self.order] = np.arange(len(self.order))
        self.place = place[count:]  # of the nodes
        # A join for a node that is not there holds nothing up.
        joins = self.order[self.order < count]
        self.joins = joins[nodes.join_node[joins] >= 0]
        self.joined_at = nodes.joined_at[self.joins]
        self.ends: list[int] = end_of[nodes.join_node[self.joins]].tolist()
        self.before: list[int] = place[self.joins].searchsorted(self.place).tolist()
        self.after: list[int] = np.where(nodes.after >= 0, end_of[nodes.after], -1).tolist()
        self.delay: list[int] = nodes.delay.tolist()


class _Simulation:
    """One rank while it is replayed: how far it is behind its own time after each of its joins and launches."""

    def __init__(
        self,
        nodes: RankNodes,
        end_of: Int,
        edges: Int,
        first_step: int,
        lead: int,
        columns: int,
        input_gone: bool,
        host_gone: bool,
        part: float,
    ) -> None:
        self.edges, self._first_step = edges, first_step
        layout = _Layout(nodes, end_of)
        work, join_work, host, waits = nodes.work, nodes.join_work, nodes.host + lead, nodes.waits
        wait_work, wait_host = waits.work, waits.host + lead
        if columns:
            without = [name for number, name in enumerate(WORK) if columns >> number & 1]
            work = work - _gone(nodes.spent, without, part)
            join_work = join_work - _gone(nodes.join_spent, without, part)
            wait_work = wait_work - _gone(waits.spent, without, part)
        if input_gone:
            host, wait_host = host - nodes.host_input, wait_host - waits.host_input
        if host_gone:
            host = np.full_like(host, NEVER)
        # How far the launches before a node hold it up is known beforehand.
        known = host > NEVER // 2
        launched = np.where(known, host - work, NEVER)
        late = np.concatenate((np.full(len(join_work), NEVER), launched))[layout.order]
        behind = np.maximum(np.maximum.accumulate(late), 0)[layout.place]
        self._host = host
        self._work: list[int] = work.tolist()
        self._launched: list[int] = (work + behind).tolist()
        self._delay, self._after = layout.delay, layout.after
        self._joins, self._joins_before = layout.ends, layout.before
        self._join_work: list[int] = join_work[layout.joins].tolist()
        self._held_up = [0]  # by the first joins
        self._waiting = (
            _WaitingHost(nodes, launched, wait_work, wait_host, layout.joined_at)
            if len(wait_work) and bool(np.count_nonzero(known))
            else None
        )

    def begin(self, node: int, ends: list[int]) -> int:
        """When the node begins, given the ends of the collectives before it."""
        joins, work, launched = self._joins_before[node], self._work[node], self._launched[node]
        if self._waiting is not None:
            launched = work + self._waiting.held_up(node, self._joined, ends)
        moment = work + (self._held_up[joins] if joins < len(self._held_up) else self._joined(joins, ends))
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
            held_up.append(behind if behind > held_up[-1] else held_up[-1])
        return held_up[joins]

    def _launched_at(self) -> Int:
        """When the host has launched what ends each step."""
        own: Int = self._host[self.edges]
        return own if self._waiting is None else own + self._waiting.later(self.edges)

    def lost_lead(self, begins: Int) -> int:
        """By how much the host is further ahead of its rank at the first of these edges than at any other, ns.

        What ends the step before the first may have been launched before the window: the shortest step before the next.
        No more than what makes the first step as long as it was measured.
        """
        host = self._launched_at()
        known = (host > NEVER // 2).nonzero()[0]
        if len(known) < 2 or known[0] > 1:
            return 0
        launched = int(host[known[0]])
        if known[0]:
            launched -= int(np.diff(host[known]).min())
        ahead = (begins - host)[known[known > 0]]
        shorter = self._first_step - int(begins[1] - begins[0])
        return max(min(int(begins[0]) - launched - int(ahead.max()), shorter), 0)

    def gained_lead(self, begins: Int) -> int:
        """By how much the host is further ahead of its rank at the last of these edges than at the second, ns.

        The first step says nothing: it is replayed with another lead than the steps before it.
        """
        host = self._launched_at()[1:]
        ahead = (begins[1:] - host)[host > NEVER // 2]
        return max(int(ahead[-1] - ahead[0]), 0) if len(ahead) > 1 else 0
