"""In which kind of parallelism the others wait for a rank, and what groups are for together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from traceops.across.match import MatchedCollectives
from traceops.across.replay.graph import Label, RankNodes, StepGraph
from traceops.across.roles import Roles
from traceops.core.words import Role

_MOST = 0.5  # of the time, to name the role


def waiting_role(graph: StepGraph, roles: Roles, late: int, others: Sequence[int]) -> Role | None:
    """The role of the communication before which a rank loses time: there the others meet it first.

    Between each two of its collectives its own time is compared with the median of `others`, its peers. None where no
    role has half of what it takes longer.
    """
    own = graph.ranks[late]
    shared = set(own.labels).intersection(*(graph.ranks[rank].labels for rank in others))
    if not others or not shared:
        return None
    at = [node for node in np.argsort(own.work, kind="stable").tolist() if own.labels[node] in shared]
    labels = [own.labels[node] for node in at]
    spent = np.diff(own.work[at])
    usual = np.median([np.diff(_work_at(graph.ranks[rank], labels)) for rank in others], axis=0)
    number_of = {node: number for number, members in enumerate(graph.members) for rank, node in members if rank == late}
    lost: dict[Role | None, float] = defaultdict(float)
    for node, more in zip(at[1:], (spent - usual).tolist(), strict=True):
        number = number_of.get(node)
        lost[None if number is None else roles.of_collective[graph.kind[number]]] += more
    total = sum(ms for ms in lost.values() if ms > 0)
    role, most = max(lost.items(), key=lambda item: item[1])
    return role if most > 0 and most >= _MOST * total else None


def _work_at(nodes: RankNodes, labels: Sequence[Label]) -> list[int]:
    at = {label: node for node, label in enumerate(nodes.labels)}
    work = nodes.work.tolist()
    return [work[at[label]] for label in labels]


def role_of_groups(roles: Roles, matching: MatchedCollectives, groups: Sequence[tuple[int, ...]]) -> Role | None:
    """The role of most transfer in these groups; None where none has half of it."""
    chosen, moved = set(groups), Counter[Role]()
    for collective, role in zip(matching.collectives, roles.of_collective, strict=True):
        if collective.group in chosen:
            moved[role] += collective.transfer_ns
    if not moved:
        return None
    role, most = max(moved.items(), key=lambda item: item[1])
    return role if most > 0 and most >= _MOST * sum(moved.values()) else None
