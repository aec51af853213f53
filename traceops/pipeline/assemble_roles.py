"""The kinds of parallelism of a run as rows of its report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import numpy as np

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.across.groups import Ranks
from traceops.across.links import overall_busbw
from traceops.across.match import Collective
from traceops.across.replay.roles_free import role_change
from traceops.across.role_times import RoleTimes
from traceops.across.roles import ROLE_ORDER, GroupRole
from traceops.core.arrays import Int, mean_ms
from traceops.core.units import stored
from traceops.core.words import Role
from traceops.report.cross_rows import RoleRow

_ALL = 0.95  # of a role's exposed time: what makes one host its place
_MOST_NAMES = 8  # of groups; there may be one a layer


def role_rows(run: CrossRank) -> tuple[RoleRow, ...]:
    """report.json's roles: a row for each kind of parallelism, most exposed communication first."""
    collectives: dict[Role, list[Collective]] = defaultdict(list)
    for collective, role in zip(run.matching.collectives, run.roles.of_collective, strict=True):
        collectives[role].append(collective)
    groups: dict[Role, list[GroupRole]] = defaultdict(list)
    for group in run.roles.groups:
        groups[group.role].append(group)
    rows = [_row(run, role, groups[role], collectives[role]) for role in ROLE_ORDER if groups[role]]
    return tuple(sorted(rows, key=lambda row: -(row.exposed_ms or 0.0)))


def _row(run: CrossRank, role: Role, groups: Sequence[GroupRole], collectives: Sequence[Collective]) -> RoleRow:
    times = [
        (rank, own) for rank in run.ranks if (own := run.role_times.get(rank.summary.rank, {}).get(role)) is not None
    ]
    exposed = {rank.summary.rank: _mean(rank, own.exposed) for rank, own in times}
    worst = max(exposed, key=lambda rank: exposed[rank], default=None)
    late, share = _waited_for(collectives)
    saved = None
    if run.what_if is not None and run.roles.several:
        saved = run.what_if.saved_ns(role_change(role))
    members = {group.ranks for group in groups if group.ranks}
    members |= {collective.group for collective in collectives if not collective.links}
    return RoleRow(
        role=role,
        told_by=tuple(sorted({group.told_by for group in groups})),
        names=tuple(sorted({group.description for group in groups if group.description}))[:_MOST_NAMES],
        groups=len(members),
        group_sizes=tuple(sorted({len(ranks) for ranks in members})),
        ranks=len(times),
        exposed_ms=_median(exposed.values()),
        wait_ms=_part(times, "wait") if run.split else None,
        transfer_ms=_part(times, "transfer") if run.split else None,
        unmatched_ms=_part(times, "unmatched"),
        worst_rank=worst if worst is not None and exposed[worst] > 0 else None,
        worst_exposed_ms=None if worst is None or exposed[worst] <= 0 else stored(exposed[worst]),
        reach=_reach(run, members or {collective.group for collective in collectives}),
        host=_host(run, exposed),
        busbw_gbs=overall_busbw(collectives),
        waits_for_rank=late,
        waits_for_pct=share,
        fused=role == "tensor" and run.roles.fused,
        saved_ms=None if saved is None else stored(max(saved, 0.0) / 1e6),
    )


def _mean(times: RankTimes, ns: Int) -> float:
    return mean_ms(ns[times.typical])


def _part(times: Sequence[tuple[RankTimes, RoleTimes]], part: str) -> float | None:
    return _median([_mean(rank, getattr(own, part)) for rank, own in times])


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return stored(float(np.median(known))) if known else None


def _reach(run: CrossRank, groups: Collection[Ranks]) -> Literal["inside", "between"] | None:
    """Whether the groups lie inside hosts or between them; None where hosts are not named."""
    hosts = [{run.hosts.get(rank) for rank in ranks} for ranks in groups]
    if not hosts or any(None in own for own in hosts):
        return None
    return "inside" if all(len(own) == 1 for own in hosts) else "between"


def _host(run: CrossRank, exposed: dict[int, float]) -> str | None:
    """The one host of several whose ranks have nearly all of the exposed time."""
    total = sum(exposed.values())
    of_host: dict[str | None, float] = defaultdict(float)
    for rank, ms in exposed.items():
        of_host[run.hosts.get(rank)] += ms
    if total <= 0 or len({run.hosts.get(times.summary.rank) for times in run.ranks}) < 2:
        return None
    name, most = max(of_host.items(), key=lambda item: item[1])
    return name if most >= _ALL * total else None


def _waited_for(collectives: Sequence[Collective]) -> tuple[int | None, float | None]:
    """The rank that comes last where most is waited, and its part of all waiting, percent; None where nobody waits."""
    waited = Counter[int]()
    for collective in collectives:
        if collective.last_rank is not None:
            waited[collective.last_rank] += sum(collective.wait_ns)
    total = sum(waited.values())
    if not total:
        return None, None
    rank, most = max(waited.items(), key=lambda item: (item[1], -item[0]))
    return rank, stored(100.0 * most / total)
