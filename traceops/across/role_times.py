"""A rank's exposed communication by what its groups are for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traceops.across.match import MatchedCollectives
from traceops.across.roles import ROLE_ORDER, Roles
from traceops.core.arrays import Int
from traceops.core.intervals import Intervals, intersect, subtract, union
from traceops.core.words import Role
from traceops.measure.summary import RankSummary


@dataclass(frozen=True)
class RoleTimes:
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
