"""The chain of work and transfers that set how long a step took, across ranks."""

from __future__ import annotations

from msgspec import Struct

from traceops.across.replay.graph import WORK, StepGraph
from traceops.measure.program import NEVER


class PathSegment(Struct, frozen=True):
    """One piece of the path (ns, common clock): a rank's own work, or the transfer of a collective.

    `kind` is 'transfer', or the bucket of WORK that most of the piece went to; `spent` tells how much
    went to each.
    """

    rank: int
    kind: str
    start: int
    duration: int
    collective: int | None
    spent: dict[str, int]


def critical_path(graph: StepGraph, step: int) -> list[PathSegment]:
    """Walk back from the end of a step (index into graph.steps) on the rank that left it last, in time order.

    At each beginning the walk goes on with what was over last. That is the rank's own work since the collective that
    last held it up, or the collective before it on the stream. From a collective the walk goes on to the member that
    came last.
    """
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
    total = sum(spent.values())
    if total:  # nodes lie a little beside the ends of the piece
        spent = {name: round(ns * (moment - start) / total) for name, ns in spent.items()}
    kind = max(spent, key=lambda name: spent[name]) if spent else "idle_gap"
    return PathSegment(rank, "idle_host" if kind == "masked" else kind, start, moment - start, None, spent)
