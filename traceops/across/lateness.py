"""Who is waited for, and why: each moment that a rank is held up is charged to the rank whose delay it comes from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from traceops.across.match import MatchedCollectives, waits_by_rank
from traceops.across.replay.graph import WORK, RankNodes, StepGraph, spent_before
from traceops.core.arrays import Floats, Int, intersect, subtract, union
from traceops.measure.program import FOLLOWS_NS, NEVER
from traceops.measure.summary import RankSummary

CAUSES = ("gpu_compute", "host", "input", "copy", "unknown")
CAUSE_OF = {  # of WORK; what is not in it is unknown
    "compute": "gpu_compute",
    "memory": "copy",
    "idle_input": "input",
    "idle_sync": "host",
    "idle_host": "host",
    "masked": "host",
}
LEAST_SHARE = 0.10  # of all waiting: who causes less is not looked at
_OF_MANY = 2.5  # times the share that each of so many ranks would have: who causes less is not looked at
_BEFORE = "unknown"  # what lies before the window

Shares = dict[tuple[int, str], float]  # (rank, cause) -> ns
_Node = tuple[int, int]  # rank, node of its program


class Lateness(Struct, frozen=True, dict=True):
    """Waiting in ns by the rank that caused it, CAUSES and step of `steps`: `caused[rank]` has shape (causes, steps).
    `waited[rank]` is what the rank itself was held up, per step. Both count only moments in which the waiting rank had
    nothing else to do [docs/metrics.md, who causes the wait]."""

    steps: tuple[int, ...]
    caused: dict[int, Floats]
    waited: dict[int, Floats]

    @cached_property
    def total_ns(self) -> float:
        """All waiting of all ranks."""
        return float(sum(own.sum() for own in self.waited.values()))

    def share(self, rank: int) -> float | None:
        """Part of all waiting that this rank caused; None where nobody waited."""
        return float(self.caused[rank].sum()) / self.total_ns if self.total_ns > 0 else None


def by_cause(spent: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Time by WORK as time by CAUSES, ns."""
    found = dict.fromkeys(CAUSES, 0.0)
    for work, ns in spent:
        found[CAUSE_OF.get(work, "unknown")] += ns
    return found


def least_share(ranks: int) -> float:
    """Part of all waiting that a rank must cause: of many ranks, of which most wait in places of their own, less."""
    return min(LEAST_SHARE, _OF_MANY / max(ranks, 1))


class _RankDelays(Struct, frozen=True):
    """One rank's own time at the moments that matter, as plain lists."""

    summary: RankSummary
    nodes: RankNodes
    held_up: list[int]  # per node: how long the rank had nothing to do but wait for the last member
    at_begin: Int  # own time by WORK at the beginning and the end of each node
    at_end: Int
    step: list[int]  # index into the graph's steps of each node, -1 outside


_State = Mapping[int, _RankDelays]


def _positions(graph: StepGraph, matching: MatchedCollectives) -> dict[int, list[int]]:
    """The event of each node of a rank."""
    positions: dict[int, list[int]] = defaultdict(list)
    for members, kind in zip(graph.members, graph.kind, strict=True):
        for (rank, node), (_, position) in zip(members, matching.collectives[kind].members, strict=True):
            own = positions[rank]
            own.extend([0] * (node + 1 - len(own)))
            own[node] = position
    return positions


def measure_lateness(ranks: Sequence[RankSummary], matching: MatchedCollectives, graph: StepGraph) -> Lateness:
    """Charge waiting along the chain to its roots [docs/metrics.md, who causes the wait]. For each collective that
    holds a rank up, the member that came last is compared with the waiting rank. What counts is their own time since
    both left the last collective of the step before. The work in which the late one spent more is the cause. What
    either of them had waited for others since then is carried along. So a rank that was late because it had waited
    passes the charge on."""
    waits = waits_by_rank(matching, ranks)
    positions = _positions(graph, matching)
    state = {s.rank: _rank(s, graph, np.array(positions[s.rank], dtype=np.int64), waits[s.rank]) for s in ranks}
    caused = {rank: np.zeros((len(CAUSES), len(graph.steps))) for rank in state}
    waited = {rank: np.zeros(len(graph.steps)) for rank in state}
    charged: dict[int, Shares] = defaultdict(dict)  # since the rank's origin
    origin = {rank: (-1, int(own.nodes.begin[own.nodes.first_edge])) for rank, own in state.items()}
    step_of = dict.fromkeys(state, -1)
    latest = dict.fromkeys(state, -1)
    last_of = _LastMembers(graph, matching)
    number_of = {(rank, node): number for number, members in enumerate(graph.members) for rank, node in members}
    for number, members in enumerate(graph.members):
        for rank, node in members:
            step = state[rank].step[node]
            if step != step_of[rank] and step >= 0:
                step_of[rank] = step
                if latest[rank] >= 0:
                    origin[rank] = (latest[rank], int(state[rank].nodes.end[latest[rank]]))
                    charged[rank] = {}
            latest[rank] = node
        roots: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, node in members:
            ns = state[rank].held_up[node]
            if ns <= 0 or (last := last_of(number, rank)) is None or last[0] == rank:
                continue
            if last not in roots:
                roots[last] = _came_on_its_own(graph, state, last_of, number_of, last)
            root = roots[last]
            shares = _shares(state, origin, charged, root, (rank, node))
            total = sum(shares.values())
            for (who, cause), part in shares.items():
                amount = ns * part / total
                charged[rank][who, cause] = charged[rank].get((who, cause), 0.0) + amount
                if state[rank].step[node] >= 0:
                    caused[who][CAUSES.index(cause), state[rank].step[node]] += amount
            if state[rank].step[node] >= 0:
                waited[rank][state[rank].step[node]] += ns
    return Lateness(graph.steps, caused, waited)


def _rank(summary: RankSummary, graph: StepGraph, positions: Int, waits: tuple[Int, Int, Int]) -> _RankDelays:
    comm, program, nodes = summary.comm, summary.program, graph.ranks[summary.rank]
    start, turn, end = waits
    held = intersect(union(program.join_start, program.join_end), subtract(union(start, turn), union(turn, end)))
    begins, ends = comm.start[positions], comm.end[positions]
    turns = dict(zip(zip(start.tolist(), end.tolist(), strict=True), turn.tolist(), strict=True))
    turn_of = np.array([turns[key] for key in zip(begins.tolist(), ends.tolist(), strict=True)], dtype=np.int64)
    # A moment in which several collectives wait is charged once, to the one whose wait ends first.
    order = turn_of.argsort(kind="stable")
    reached = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(turn_of[order])[:-1]))
    since = np.minimum(np.maximum(begins[order], reached), turn_of[order])
    held_up = np.zeros(len(positions), dtype=np.int64)
    held_up[order] = held.within(since, turn_of[order])
    numbers = summary.step_numbers[np.minimum(np.maximum(comm.step[positions], 0), len(summary.step_numbers) - 1)]
    index = {number: i for i, number in enumerate(graph.steps)}
    inside = (comm.step[positions] >= 0) & (comm.step[positions] < len(summary.step_numbers))
    spent = spent_before(program, np.concatenate((begins, ends)))
    return _RankDelays(
        summary,
        nodes,
        held_up.tolist(),
        spent[: len(begins)],
        spent[len(begins) :],
        [index.get(int(n), -1) if ok else -1 for n, ok in zip(numbers, inside, strict=True)],
    )


class _LastMembers:
    """Whom a rank waited for in each collective: the last to arrive of those that it cannot end without."""

    def __init__(self, graph: StepGraph, matching: MatchedCollectives) -> None:
        self._graph = graph
        self._collectives = [matching.collectives[kind] for kind in graph.kind]
        self._last = [
            None if collective.last_rank is None else next(one for one in members if one[0] == collective.last_rank)
            for collective, members in zip(self._collectives, graph.members, strict=True)
        ]

    def __call__(self, number: int, rank: int) -> tuple[int, int] | None:
        """The last one as (rank, node); None where nobody waits for all others."""
        members = self._graph.members[number]
        if self._graph.needs[number] is None:
            return self._last[number]
        waits = dict(zip(members, self._collectives[number].wait_ns, strict=True))
        return min(self._graph.needed_by(number, rank), key=lambda member: waits[member])


def _came_on_its_own(
    graph: StepGraph, state: _State, last_of: _LastMembers, number_of: Mapping[_Node, int], last: _Node
) -> _Node:
    """The rank and node that the last arrival goes back to, through collectives that it had to follow."""
    rank, node = last
    for _ in range(len(graph.members)):
        nodes = state[rank].nodes
        before = int(nodes.after[node])
        # It followed another collective if that ended after its own work was done, and just before it began.
        freed = int(nodes.end[before]) if before >= 0 else 0
        if before < 0 or freed <= int(nodes.standing[node]) or int(nodes.begin[node]) - freed > FOLLOWS_NS:
            break
        if (earlier := last_of(number_of[rank, before], rank)) is None:
            break
        rank, node = earlier
    return rank, node


def _shares(
    state: _State, origin: Mapping[int, _Node], charged: Mapping[int, Shares], late: _Node, waiting: _Node
) -> Shares:
    """How the lateness of one rank over another divides over ranks and causes; positive, not scaled."""
    (rank, node), (other, other_node) = late, waiting
    if rank == other:
        return {(rank, _BEFORE): 1.0}
    shares: Shares = defaultdict(float)
    own = _since_origin(state[rank], origin[rank], node)
    others = _since_origin(state[other], origin[other], other_node)
    on_gpu = state[rank].summary.on_gpu
    for bucket, spent, theirs in zip(WORK, own, others, strict=True):
        more = spent - theirs
        cause = CAUSE_OF.get(bucket, "unknown")
        cause = "host" if cause == "gpu_compute" and not on_gpu else cause
        # Less work than the other's is the other's own delay, which counts against the charge.
        shares[rank if more > 0 else other, cause] += more
    for key, ns in charged[rank].items():
        shares[key] += ns
    for key, ns in charged[other].items():
        shares[key] -= ns
    shares[rank, _BEFORE] += origin[rank][1] - origin[other][1]
    positive = {key: ns for key, ns in shares.items() if ns > 0 and key[0] != other}
    return positive or {(rank, "unknown"): 1.0}


def _since_origin(own: _RankDelays, origin: tuple[int, int], node: int) -> list[int]:
    """Own time by WORK from the rank's origin to the beginning of the node, ns."""
    at = own.at_begin[node]
    spent: list[int] = (at - own.at_end[origin[0]] if origin[0] >= 0 else at).tolist()
    return spent


class PathSegment(Struct, frozen=True):
    """One piece of the path (ns, common clock): a rank's own work, or the transfer of a collective. `kind` is
    'transfer', or the bucket of WORK that most of the piece went to; `spent` tells how much went to each."""

    rank: int
    kind: str
    start: int
    duration: int
    collective: int | None
    spent: dict[str, int]


def critical_path(graph: StepGraph, step: int) -> list[PathSegment]:
    """Walk back from the end of a step (index into graph.steps) on the rank that left it last, in time order. At each
    beginning the walk goes on with what was over last. That is the rank's own work since the collective that last held
    it up, or the collective before it on the stream. From a collective the walk goes on to the member that came
    last."""
    begins = {rank: int(nodes.begin[graph.edges[rank][step]]) for rank, nodes in graph.ranks.items()}
    ends = {rank: int(nodes.begin[graph.edges[rank][step + 1]]) for rank, nodes in graph.ranks.items()}
    number_of = {(rank, node): number for number, members in enumerate(graph.members) for rank, node in members}
    rank = max(ends, key=lambda r: (ends[r], -r))
    node, moment = int(graph.edges[rank][step + 1]), ends[rank]
    pieces: list[PathSegment] = []
    for _ in range(4 * sum(len(nodes.work) for nodes in graph.ranks.values())):
        since = begins[rank]
        if moment <= since:
            break
        before, freed = _released(graph, rank, node, moment)
        start = max(freed, since)
        if moment > start:
            pieces.append(_own_work(graph, rank, node, start, moment))
        if before < 0 or freed <= since:
            break
        number = number_of[rank, before]
        last, last_node = max(
            graph.needed_by(number, rank), key=lambda member: (int(graph.ranks[member[0]].begin[member[1]]), -member[0])
        )
        arrived = min(int(graph.ranks[last].begin[last_node]), freed)
        if freed > arrived:
            pieces.append(PathSegment(rank, "transfer", arrived, freed - arrived, number, {}))
        if last == rank and last_node == node:
            break
        rank, node, moment = last, last_node, arrived
    return pieces[::-1]


def _released(graph: StepGraph, rank: int, node: int, moment: int) -> tuple[int, int]:
    """The node of the collective whose end let the rank go on last before `moment`, and when; -1, NEVER for none."""
    nodes = graph.ranks[rank]
    best, freed = -1, int(NEVER)
    after = int(nodes.after[node])
    if after >= 0 and int(nodes.end[after]) > int(nodes.standing[node]):
        best, freed = after, int(nodes.end[after])
    for join in range(len(nodes.join_node) - 1, -1, -1):
        if nodes.joined_at[join] > nodes.stands_at[node]:
            continue
        held_by = int(nodes.join_node[join])
        if int(nodes.end[held_by]) > freed and int(nodes.end[held_by]) <= moment:
            best, freed = held_by, int(nodes.end[held_by])
        break
    return best, min(freed, moment)


def _own_work(graph: StepGraph, rank: int, node: int, start: int, moment: int) -> PathSegment:
    """What the rank did in [start, moment), by its own time at the nodes around it."""
    nodes = graph.ranks[rank]
    upto = nodes.spent[node]
    earlier = [i for i in range(len(nodes.begin)) if nodes.standing[i] <= start]
    since = nodes.spent[max(earlier, key=lambda i: int(nodes.standing[i]))] if earlier else upto * 0
    spent = {name: int(ns) for name, ns in zip(WORK, upto - since, strict=True) if ns > 0}
    if total := sum(spent.values()):  # nodes lie a little beside the ends of the piece
        spent = {name: round(ns * (moment - start) / total) for name, ns in spent.items()}
    kind = max(spent, key=lambda name: spent[name]) if spent else "idle_gap"
    return PathSegment(rank, "idle_host" if kind == "masked" else kind, start, moment - start, None, spent)
