"""Which rows of the timeline in the page stand where: by host, and where one rank stands for others, for whom."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypedDict

from traceops.core.rank_text import ranks_text
from traceops.render.report.rank_groups import named_ranks
from traceops.report.alike import alike_ranks
from traceops.report.detail import Detail
from traceops.report.model import Report

_FEW = 4  # ranks that a label names one by one


class DrawnRank(TypedDict):
    """A rank with rows in the timeline. host: '' where the run has one; count: ranks that it stands for, and itself."""

    rank: int
    host: str
    label: str
    count: int


def drawn_ranks(report: Report, detail: Detail) -> dict[str, Any]:
    """For the page's script. shown: every rank drawn; folded: one of each kind, on each host where all its ranks are
    drawn; unlike: how many ranks nobody stands for.

    Ranks that findings name stand for themselves. Of the others, those that are not drawn are told by one of their
    kind that is; of several that are drawn, `folded` keeps one.
    """
    drawn = {rank.rank for step in detail.steps for rank in step.ranks}
    hosts = {row.rank: row.host or "" for row in report.ranks}
    several = len(set(hosts.values())) > 1
    apart = set(named_ranks(report))
    shown = {rank: [rank] for rank in drawn}
    folded = {rank: [rank] for rank in drawn & apart}
    unlike = len({row.rank for row in report.ranks if row.rank in apart} - drawn)
    for kind in alike_ranks([row for row in report.ranks if row.rank not in apart]):
        there = [rank for rank in kind.ranks if rank in drawn]
        if not there:
            unlike += len(kind.ranks)
            continue
        first = kind.example if kind.example in drawn else there[0]
        shown[first] += [rank for rank in kind.ranks if rank not in drawn]
        # Where some stand for ranks that are not drawn, one row is the whole kind, wherever its ranks are.
        parts = dict.fromkeys(hosts[rank] for rank in there) if len(there) == len(kind.ranks) else [None]
        for host in parts:
            here = [rank for rank in there if host is None or hosts[rank] == host]
            example = first if first in here else here[0]
            folded[example] = sorted({*here, *shown[example]})
    return {
        "shown": _rows(shown, hosts, several, len(report.ranks)),
        "folded": _rows(folded, hosts, several, len(report.ranks)) if len(folded) < len(shown) else None,
        "unlike": unlike,
    }


def _rows(groups: dict[int, list[int]], hosts: dict[int, str], several: bool, all_ranks: int) -> list[DrawnRank]:
    """In order of hosts, each at its first rank, and of ranks."""
    first: dict[str, int] = {}
    for rank in sorted(hosts):
        first.setdefault(hosts[rank], rank)
    return [
        {
            "rank": rank,
            "host": hosts.get(rank, "") if several else "",
            "label": group_text(rank, groups[rank], {hosts.get(one, "") for one in groups[rank]}, all_ranks),
            "count": len(groups[rank]),
        }
        for rank in sorted(groups, key=lambda rank: (first.get(hosts.get(rank, ""), rank), rank))
    ]


def group_text(rank: int, ranks: Sequence[int], hosts: Collection[str], all_ranks: int) -> str:
    """'rank 3', 'ranks 2, 3: alike', 'all 8 ranks: alike', 'rank 2 and 61 alike, on 8 hosts'."""
    if len(ranks) == 1:
        return f"rank {rank}"
    if len(ranks) == all_ranks:
        return f"all {all_ranks} ranks: alike, this is rank {rank}"
    over = f", on {len(hosts)} hosts" if len(hosts) > 1 else ""
    if len(ranks) <= _FEW:
        return f"ranks {ranks_text(sorted(ranks), _FEW)}: alike{over}, this is rank {rank}"
    return f"rank {rank} and {len(ranks) - 1} alike{over}"
