"""Which rows figures and tables have: a row a rank, or a row for each kind of rank where there are too many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from traceops.core.rank_text import ranks_text
from traceops.core.words import CAUSES
from traceops.render.cells import Cell, Column, value_of
from traceops.render.report.terms import say, say_first
from traceops.report.detail import APART_PCT, Alike, Detail, alike_ranks
from traceops.report.model import Report
from traceops.report.tables import LatenessRow

MOST_RANKS = 64  # a bar and a table row each
WORST_RANKS = 32  # lanes of the critical path
MOST_NAMED = 16  # ranks that findings name, with a row of their own beside the kinds
_FEW = 8  # a finding about more ranks names none of them


def groups_of(report: Report) -> tuple[Alike, ...]:
    """The rows: one a rank up to `MOST_RANKS`; beyond, those that findings name, and the others by kind."""
    if len(report.ranks) <= MOST_RANKS:
        return tuple(Alike((row.rank,), row.rank) for row in report.ranks)
    named = named_ranks(report)
    rest = [row for row in report.ranks if row.rank not in named]
    alone = [Alike((rank,), rank) for rank in named]
    return tuple(sorted((*alone, *alike_ranks(rest)), key=lambda group: group.example))


def shown_ranks(report: Report) -> list[int]:
    """All ranks, or one of each group, in rank order."""
    return [group.example for group in groups_of(report)]


def row_labels(report: Report, ranks: Iterable[int]) -> list[str]:
    """What rows of these ranks are called: a rank that stands for others says for how many."""
    names = {group.example: group.label for group in groups_of(report)} if len(report.ranks) > MOST_RANKS else {}
    return [names.get(rank, f"rank {rank}") for rank in ranks]


def group_label(report: Report, rank: int) -> str:
    """The row that a rank is in: 'rank 1 and 63 alike', or 'rank 3'."""
    return next((group.label for group in groups_of(report) if rank in group.ranks), f"rank {rank}")


def groups_text(report: Report) -> str:
    """That rows stand for ranks that are alike; '' where each rank has its own."""
    if len(report.ranks) <= MOST_RANKS:
        return ""
    named = named_ranks(report)
    rest = [row for row in report.ranks if row.rank not in named]
    apart = next((kind.apart_pct for kind in alike_ranks(rest)), APART_PCT)
    return say("ranks", "groups", ranks=len(report.ranks), apart=apart)


def outliers(report: Report) -> list[int]:
    """Ranks that findings name, in their order, then those of small groups."""
    small = [rank for group in groups_of(report) if len(group.ranks) <= 3 for rank in group.ranks]
    return list(dict.fromkeys((*named_ranks(report), *small)))[:MOST_NAMED]


def named_ranks(report: Report) -> tuple[int, ...]:
    """Ranks that findings about few ranks name, the first finding's first."""
    present = {row.rank for row in report.ranks}
    named: dict[int, None] = {}
    for finding in report.findings:
        if len(finding.ranks) <= _FEW:
            named.update((rank, None) for rank in finding.ranks if rank in present)
    return tuple(named)[:MOST_NAMED]


# The column that says which rank a row is of, or which ranks it stands for.


def rank_column(report: Report) -> Column:
    """Numbers; where rows stand for kinds of ranks, '1 and 63 alike' with all of them as title."""
    if len(report.ranks) <= MOST_RANKS:
        return Column("rank", "Rank", decimals=0)
    by_example = {group.example: group for group in groups_of(report)}

    def cell(row: Any) -> Cell:
        rank = int(value_of(row, "rank"))
        if (group := by_example.get(rank)) is None or len(group.ranks) == 1:
            return Cell(str(rank))
        return Cell(f"{rank} and {len(group.ranks) - 1} alike", f"ranks {ranks_text(group.ranks, 40)}")

    return Column("rank", "Rank", say("ranks", "alike"), number=False, make=cell)


_FEW_DRAWN = 4  # ranks that a label names one by one


def drawn_ranks(report: Report, detail: Detail) -> dict[str, Any]:
    """For the page's script. shown: every rank drawn; folded: one of each kind, on each host where all its ranks are
    drawn; unlike: how many ranks nobody stands for. Ranks that findings name stand for themselves. Of the others, those
    that are not drawn are told by one of their kind that is; of several that are drawn, `folded` keeps one."""
    drawn = {rank.rank for step in detail.steps for rank in step.ranks}
    hosts = {row.rank: row.host or "" for row in report.ranks}
    several = len(set(hosts.values())) > 1
    apart = set(named_ranks(report))
    shown = {rank: [rank] for rank in drawn}
    folded = {rank: [rank] for rank in drawn & apart}
    unlike = len(hosts.keys() & apart - drawn)
    for kind in alike_ranks([row for row in report.ranks if row.rank not in apart]):
        if not (there := [rank for rank in kind.ranks if rank in drawn]):
            unlike += len(kind.ranks)
            continue
        first = kind.example if kind.example in drawn else there[0]
        shown[first] += sorted(set(kind.ranks) - drawn)
        # Where some stand for ranks that are not drawn, one row is the whole kind, wherever its ranks are.
        by_host: dict[str, list[int]] = defaultdict(list)
        for rank in there:
            by_host[hosts[rank] if len(there) == len(kind.ranks) else ""].append(rank)
        for here in by_host.values():
            example = first if first in here else here[0]
            folded[example] = sorted({*here, *shown[example]})
    return {
        "shown": _rows(shown, hosts, several, len(report.ranks)),
        "folded": _rows(folded, hosts, several, len(report.ranks)) if len(folded) < len(shown) else None,
        "unlike": unlike,
    }


def _rows(groups: dict[int, list[int]], hosts: dict[int, str], several: bool, all_ranks: int) -> list[dict[str, Any]]:
    """In order of hosts, each at its first rank, and of ranks. host: '' where the run has one; count: ranks that a row
    stands for, and itself."""
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
    few = ranks_text(sorted(ranks), _FEW_DRAWN) if len(ranks) <= _FEW_DRAWN else None
    return say_first(
        "ranks", "group", rank=rank, alone=len(ranks) == 1, every=all_ranks if len(ranks) == all_ranks else None,
        few=few, more=len(ranks) - 1, hosts=len(hosts) if len(hosts) > 1 else None,
    )  # fmt: skip


# Waiting that each row of ranks caused: of ranks that are alike, all of theirs together.


def lateness_by_group(report: Report) -> tuple[LatenessRow, ...]:
    """The rows of the lateness table; of too many ranks one a group and step, under its example's number. Caused
    waiting is summed over a group: which of ranks that are alike comes last is chance. What they waited themselves is
    their mean."""
    if len(report.ranks) <= MOST_RANKS:
        return report.tables.lateness
    example = {rank: group.example for group in groups_of(report) for rank in group.ranks}
    together: dict[tuple[int, int | None], list[LatenessRow]] = defaultdict(list)
    for row in report.tables.lateness:
        together[example.get(row.rank, row.rank), row.step].append(row)
    return tuple(
        LatenessRow(
            rank=rank,
            step=step,
            caused_wait_ms=sum(row.caused_wait_ms for row in rows),
            waited_ms=sum(row.waited_ms for row in rows) / len(rows),
            **{f"{cause}_ms": sum(row.cause_ms(cause) for row in rows) for cause in CAUSES},
        )
        for (rank, step), rows in together.items()
    )
