"""How a finding names the kind of parallelism that it is about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET, UnsetType

from traceops.across.cross_rank import CrossRank
from traceops.across.rank_times import role_of_groups, waiting_role
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.step_words import StepWords
from traceops.core.units import stored
from traceops.core.words import ROLES, Role

_LEAST_MS = 0.01


def late_in(run: CrossRank, rank: int) -> Role | UnsetType:
    """The role in which the others first wait for a rank."""
    if run.graph is None or run.stragglers is None:
        return UNSET
    late = {straggler.rank for straggler in run.stragglers.found}
    peers = [peer for peer in run.graph.peers(rank) if peer not in late]
    return _told(waiting_role(run.graph, run.roles, rank, peers))


def role_of(run: CrossRank, groups: Sequence[tuple[int, ...]]) -> Role | UnsetType:
    """What these groups are for."""
    return _told(role_of_groups(run.roles, run.matching, groups))


def role_name(run: CrossRank, role: Role | UnsetType) -> str | None:
    """'tensor parallel'; None where it is not known, or where all communication is of one role."""
    return None if role is UNSET or not run.roles.several else ROLES[role]


def transfer_by_role(run: CrossRank) -> dict[Role, float]:
    """Exposed transfer by role, ms a step: medians over ranks, most first; {} where all is of one role."""
    if not run.roles.several:
        return {}
    found = {}
    for role in (*run.roles.known, "unknown"):
        own = [
            float(by_role[role].transfer[times.typical].mean()) / 1e6
            for times in run.ranks
            if times.typical.any() and role in (by_role := run.role_times[times.summary.rank])
        ]
        if own and (ms := float(np.median(own))) >= _LEAST_MS:
            found[role] = ms
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def role_evidence(by_role: dict[Role, float], words: StepWords) -> list[Evidence]:
    """A number a role."""
    return [Evidence(Fact.OF_ROLE, stored(ms), words.unit("ms"), subject=ROLES[role]) for role, ms in by_role.items()]


def main_role(by_role: dict[Role, float]) -> Role | UnsetType:
    """The role of more than half of it."""
    role = next(iter(by_role), None)
    return _told(role if role is not None and 2 * by_role[role] > sum(by_role.values()) else None)


def _told(role: Role | None) -> Role | UnsetType:
    return UNSET if role is None or role == "unknown" else role
