"""Each rank's ledger with its communication split, and that by what its groups are for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.across.match import MatchedCollectives
from traceops.across.replay.graph import Label, RankNodes, StepGraph
from traceops.across.roles import ROLE_ORDER, Roles
from traceops.core.arrays import Int, Intervals, intersect, mean_ms, subtract, union
from traceops.core.words import Role
from traceops.measure.summary import RankSummary


class RankTimes(Struct, frozen=True):
    """One rank's ledger, ns per bucket and step; waiting and transfer of all its collectives in the steps.

    `caused_wait_ns` is what others waited for this rank with nothing else to do; all of them None where
    waiting and transfer cannot be told apart; the last also where much of the waiting is charged to nobody.
    `typical` says which steps are like the others: means are
    taken over these.
    """

    summary: RankSummary
    duration: Int
    buckets: dict[str, Int]
    typical: NDArray[np.bool_]
    wait_ns: int | None
    transfer_ns: int | None
    caused_wait_ns: int | None

    def mean_ms(self, bucket: str) -> float:
        """Time in a bucket, ms: mean over the typical steps."""
        return mean_ms(self.buckets[bucket][self.typical])

    @property
    def step_ms(self) -> float:
        """Duration of a step, ms: mean over the typical steps."""
        return mean_ms(self.duration[self.typical])

    @property
    def recording_ms(self) -> float:
        """The most that recording takes of a step on this host, ms: mean over the typical steps; 0 where not known."""
        own = np.array(self.summary.host.recording)
        return mean_ms(own[self.typical]) if len(own) == len(self.typical) > 0 else 0.0

    def share_pct(self, bucket: str) -> float | None:
        """Percent of the typical steps that a bucket takes; None without a step."""
        total = int(self.duration[self.typical].sum())
        return 100.0 * int(self.buckets[bucket][self.typical].sum()) / total if total > 0 else None


class RoleTimes(Struct, frozen=True):
    """Exposed communication of one rank and role, ns per step; over all roles they add up to the ledger's buckets."""

    wait: Int
    transfer: Int
    unmatched: Int

    @property
    def exposed(self) -> Int:
        """All of it."""
        return self.wait + self.transfer + self.unmatched


ByRole = Mapping[Role, RoleTimes]


def measure_role_times(ranks: Sequence[RankSummary], matching: MatchedCollectives, roles: Roles) -> dict[int, ByRole]:
    """By rank and role. An instant in which several roles do the same goes to the first of ROLE_ORDER."""
    matched: dict[int, list[tuple[int, int, int]]] = {summary.rank: [] for summary in ranks}
    for collective, role in zip(matching.collectives, roles.of_collective, strict=True):
        code = ROLE_ORDER.index(role)
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            matched[rank].append((position, wait, code))
    return {summary.rank: _of_rank(summary, matched[summary.rank], roles) for summary in ranks}


def _of_rank(summary: RankSummary, matched: Sequence[tuple[int, int, int]], roles: Roles) -> ByRole:
    comm, exposed = summary.comm, summary.ledger.exposed
    at, wait, code = np.array(matched, dtype=np.int64).reshape(-1, 3).T
    start, end = comm.start[at], comm.end[at]
    turn = start + wait
    moving = union(turn, end)
    transferring = intersect(exposed, moving)
    waiting = subtract(intersect(exposed, union(start, turn)), moving)
    rest = subtract(subtract(exposed, transferring), waiting)
    every = np.array([ROLE_ORDER.index(role) for role in roles.of_event[summary.rank]], dtype=np.int64)
    parts: dict[Role, dict[str, Int]] = defaultdict(dict)
    for name, left, begins, ends, of in (
        ("transfer", transferring, turn, end, code),
        ("wait", waiting, start, turn, code),
        ("unmatched", rest, comm.start, comm.end, every),
    ):
        for number, role in enumerate(ROLE_ORDER):
            chosen = of == number
            if chosen.any():
                own = union(begins[chosen], ends[chosen])
                parts[role][name] = _within(intersect(left, own), summary)
                left = subtract(left, own)
    none = np.zeros(len(summary.step_numbers), dtype=np.int64)
    return {
        role: RoleTimes(own.get("wait", none), own.get("transfer", none), own.get("unmatched", none))
        for role, own in parts.items()
    }


def _within(part: Intervals, summary: RankSummary) -> Int:
    return part.within(summary.step_edges[:-1], summary.step_edges[1:])


# In which kind of parallelism the others wait for a rank, and what groups are for together.


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
