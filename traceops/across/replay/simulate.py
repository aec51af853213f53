"""Runs the graph: when each collective ends and each step is over, under one change or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.across.replay.graph import WORK, Label, RankNodes, StepGraph, Steps, batch_ns, least_loss, paced, step_of
from traceops.across.replay.graph import lead as lead_of
from traceops.across.replay.late_places import LatePlaces
from traceops.core.arrays import Int
from traceops.measure.program import NEVER

# How late a host is that waits for its device: by as much as the device is there later than the host would be.


_FAR = 1 << 40  # ns: further than any two moments of a window are apart


class WaitingHost:
    """One rank's launches and waits while it is replayed. Of each launch `late` is the host's own time less the rank's.

    Behind its first waits a host is later by `later`, each time what its device was behind then. Launches between two
    waits hold up what comes next by the most of their `late` and that.
    """

    def __init__(self, nodes: RankNodes, late: Int, work: Int, host: Int, joined_at: Int) -> None:
        """`late` is of each node; `work` and `host` of each wait; `joined_at` when the joins are over."""
        waits = nodes.waits
        order = np.argsort(nodes.stands_at, kind="stable")
        behind = np.maximum.accumulate(nodes.waits_before[order])
        # What was launched before a wait, and stands behind what was launched after it, holds nothing up.
        known = (late[order] > NEVER // 2) & (nodes.waits_before[order] == behind)
        clipped = np.where(known, np.clip(late[order], -_FAR, _FAR), -_FAR)
        most = np.maximum.accumulate(clipped + 2 * _FAR * behind) - 2 * _FAR * behind
        place = np.searchsorted(nodes.stands_at[order], waits.stands_at, side="right") - 1
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
        self.joins_before: list[int] = np.searchsorted(joined_at, waits.stands_at, side="right").tolist()
        self._own_waits = nodes.waits_before
        self._held, self._later = [0], [0]

    def anew(self) -> WaitingHost:
        """The same before its first wait."""
        other = copy(self)
        other._held, other._later = [0], [0]
        return other

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


# A rank's program with something changed: its times of compute, what it is late in, the order of its nodes.


def recomputed(nodes: RankNodes, compute: Int) -> RankNodes:
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
    waited = np.interp(nodes.waits.spent[:, column], own[order], compute[order]).astype(np.int64)
    gaps, joined_gaps, waited_gaps = (
        spent[:, late].sum(axis=1) * known for spent in (nodes.spent, nodes.join_spent, nodes.waits.spent)
    )
    moment = np.concatenate((nodes.joined_at, nodes.waits.stands_at, nodes.stands_at))
    behind = _behind(
        np.argsort(moment, kind="stable"),
        np.concatenate((joined - nodes.join_spent[:, column], waited - nodes.waits.spent[:, column], compute - own)),
        np.concatenate((joined_gaps, waited_gaps, gaps)),
    )
    joins, waits = len(nodes.join_work), len(nodes.waits.work)
    return replace(
        nodes,
        work=nodes.work + behind[joins + waits :],
        join_work=nodes.join_work + behind[:joins],
        waits=replace(nodes.waits, work=nodes.waits.work + behind[joins : joins + waits]),
    )


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


def spared(nodes: RankNodes, places: LatePlaces) -> RankNodes:
    """The program without what it takes longer in these places."""
    return replace(
        nodes,
        work=nodes.work - places.spared,
        standing=nodes.standing - places.spared,
        join_work=nodes.join_work - places.spared_joins,
        host=np.where(nodes.host > NEVER, nodes.host - places.spared_host, NEVER),
        waits=replace(
            nodes.waits,
            work=nodes.waits.work - _like(nodes.work, places.spared, nodes.waits.work),
            host=nodes.waits.host - _like(nodes.host, places.spared_host, nodes.waits.host),
        ),
    )


def _like(moments: Int, gone: Int, others: Int) -> Int:
    """What is gone before other moments, where `gone` is before these."""
    order = np.argsort(moments, kind="stable")
    return np.rint(np.interp(others, moments[order], gone[order])).astype(np.int64)


def unslowed(nodes: RankNodes, part: float) -> RankNodes:
    """The program without this part of what its kernels took longer beside communication that waited."""
    order = np.argsort(nodes.stands_at, kind="stable")
    joined, waited = (
        np.interp(at, nodes.stands_at[order], nodes.slowed[order]) for at in (nodes.joined_at, nodes.waits.stands_at)
    )
    first = int(nodes.slowed[nodes.first_edge])
    return replace(
        nodes,
        work=nodes.work - np.rint(part * (nodes.slowed - first)).astype(np.int64),
        join_work=nodes.join_work - np.rint(part * (joined - first)).astype(np.int64),
        waits=replace(nodes.waits, work=nodes.waits.work - np.rint(part * (waited - first)).astype(np.int64)),
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
        waits_before=source.waits_before[take],
        spent=source.spent[take],
        slowed=source.slowed[take],
        begin=source.begin[take],
        end=source.end[take],
    )


# Who shares work shares its launches: hosts of ranks that launch more than their peers, and what each has then.


_MORE = 1.1  # times as many kernels in a step: then its host needs longer for what it has more to do


_GAPS = [WORK.index("idle_host"), WORK.index("masked")]

_Shift = tuple[Int, Int]  # moments in rising order, and by how much later what comes then is, ns


class HostShift(Struct, frozen=True):
    """By how much later a host is, in its own time, and its rank, because its device has nothing to run meanwhile."""

    host: _Shift
    own: _Shift

    def of(self, nodes: RankNodes) -> RankNodes:
        """The program with this host."""
        host, waits = nodes.host, nodes.waits
        return replace(
            nodes,
            host=np.where(host > NEVER, host + _at(host, self.host), host),
            work=nodes.work + _at(nodes.work, self.own),
            join_work=nodes.join_work + _at(nodes.join_work, self.own),
            waits=replace(
                waits, host=waits.host + _at(waits.host, self.host), work=waits.work + _at(waits.work, self.own)
            ),
        )


def shared_hosts(graph: StepGraph, role: Sequence[int], more: Sequence[int]) -> Mapping[int, HostShift]:
    """What these ranks' hosts take longer than their peers' in steps in which they launch more, shared by the role.

    Elsewhere a host that takes longer is late for a reason of its own, which stays.
    """
    rest = [rank for rank in role if rank not in more]
    if not rest or any(rank not in graph.kernels for rank in role):
        return {}
    usual = np.median([graph.kernels[rank] for rank in rest], axis=0)
    most = {rank: graph.kernels[rank] >= _MORE * usual for rank in more}
    at = {rank: _launched(graph.ranks[rank]) for rank in role}
    first = at[rest[0]]
    common = set.intersection(*(set(own) for own in at.values()))
    labels = sorted(common, key=lambda label: int(graph.ranks[rest[0]].host[first[label]]))
    if len(labels) < 2 or not any(own.any() for own in most.values()):
        return {}
    index = {number: place for place, number in enumerate(graph.steps)}
    step = np.array([step_of(label, index, len(index)) for label in labels[1:]], dtype=np.int64)
    where = {rank: own[step] & (step >= 0) for rank, own in most.items()}
    nodes = {rank: np.array([at[rank][label] for label in labels], dtype=np.int64) for rank in role}
    own = {rank: graph.ranks[rank] for rank in role}
    hosts = {rank: own[rank].host[nodes[rank]] for rank in role}
    gaps = {rank: own[rank].spent[nodes[rank]][:, _GAPS].sum(axis=1) for rank in role}
    later, idle = _shared(hosts, where, rest), _shared(gaps, where, rest)
    return {
        rank: HostShift(_rising(hosts[rank], later[rank]), _rising(own[rank].work[nodes[rank]], idle[rank]))
        for rank in role
        if later[rank].any()
    }


def _launched(nodes: RankNodes) -> dict[Label, int]:
    """The nodes whose launch is known, by label."""
    return {label: node for node, label in enumerate(nodes.labels) if nodes.host[node] > NEVER}


def _shared(
    moments: Mapping[int, Int], where: Mapping[int, NDArray[np.bool_]], rest: Sequence[int]
) -> dict[int, NDArray[np.float64]]:
    """By how much later these moments are where what ranks take longer from one to the next is shared by all."""
    theirs = np.median([np.diff(moments[rank]) for rank in rest], axis=0)
    later = {rank: np.zeros(len(own)) for rank, own in moments.items()}
    for rank, chosen in where.items():
        longer = np.cumsum(np.maximum(np.diff(moments[rank]) - theirs, 0) * chosen)
        later[rank][1:] -= longer
        for own in later.values():
            own[1:] += longer / len(later)
    return later


def _rising(moments: Int, ns: NDArray[np.float64]) -> _Shift:
    order = np.argsort(moments, kind="stable")
    return moments[order], np.rint(ns[order]).astype(np.int64)


def _at(moments: Int, shift: _Shift) -> Int:
    return np.rint(np.interp(moments, *shift)).astype(np.int64)


class Scenario(Struct, frozen=True):
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


class SimulatedSteps(Struct, frozen=True):
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
        steps: NDArray[np.float64] = np.median(np.diff(list(self.edges.values()), axis=1), axis=0)
        return steps


def measured_step_ns(graph: StepGraph) -> NDArray[np.float64]:
    """Duration of each step as measured, ns: the median over ranks."""
    own = [nodes.begin[graph.edges[rank]] for rank, nodes in graph.ranks.items()]
    steps: NDArray[np.float64] = np.median(np.diff(own, axis=1), axis=0)
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
            own_lead = graph.lead[rank] if ahead is nodes else lead_of(ahead)
            lead = own_lead - min(own_lead, (kept or {}).get(rank, 0)) + later.get(rank, 0)
        programs[rank] = _simulation(graph, rank, own, without, lead, part)
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


def _simulation(
    graph: StepGraph, rank: int, own: RankNodes, without: tuple[str, ...], lead: int, part: float
) -> _Simulation:
    """A rank that runs this program; what is the same in every replay of the measured one is kept."""
    if own is not graph.ranks[rank]:
        return _Simulation(own, _Layout(own, graph.end_of[rank]), without, lead, part)
    if rank not in graph.layouts:
        graph.layouts[rank] = _Layout(own, graph.end_of[rank])
    if without:
        return _Simulation(own, graph.layouts[rank], without, lead, part)
    if (rank, lead) not in graph.unchanged:
        graph.unchanged[rank, lead] = _Simulation(own, graph.layouts[rank], (), lead)
    unchanged: _Simulation = graph.unchanged[rank, lead]
    return unchanged.anew()


class _Layout:
    """What may hold a rank up, in the order of its time: joins, each until its collective ends, and launches."""

    def __init__(self, nodes: RankNodes, end_of: Int) -> None:
        count = len(nodes.join_work)
        self.order = np.argsort(np.concatenate((nodes.joined_at, nodes.stands_at)), kind="stable")
        place = np.empty(len(self.order), dtype=np.int64)
        place[self.order] = np.arange(len(self.order))
        self.place = place[count:]  # of the nodes
        # A join for a node that is not there holds nothing up.
        joins = self.order[self.order < count]
        self.joins = joins[nodes.join_node[joins] >= 0]
        self.joined_at = nodes.joined_at[self.joins]
        self.ends: list[int] = end_of[nodes.join_node[self.joins]].tolist()
        self.before: list[int] = np.searchsorted(place[self.joins], self.place).tolist()
        self.after: list[int] = np.where(nodes.after >= 0, end_of[nodes.after], -1).tolist()
        self.delay: list[int] = nodes.delay.tolist()


class _Simulation:
    """One rank while it is replayed: how far it is behind its own time after each of its joins and launches."""

    def __init__(
        self, nodes: RankNodes, layout: _Layout, without: tuple[str, ...], lead: int, part: float = 1.0
    ) -> None:
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
            WaitingHost(nodes, launched, wait_work, wait_host, layout.joined_at)
            if len(wait_work) and bool(known.any())
            else None
        )

    def anew(self) -> _Simulation:
        """The same before anything is replayed."""
        other = copy(self)
        other._held_up = [0]
        if self._waiting is not None:
            other._waiting = self._waiting.anew()
        return other

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
