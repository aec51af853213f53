"""Which rows figures and tables have: a row a rank, or a row for each kind of rank where there are too many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from traceops.measure.ledger import IDLE_BUCKETS
from traceops.report.alike import APART_PCT, alike_ranks
from traceops.report.model import Report
from traceops.report.rows import RankRow

MOST_RANKS = 64  # a bar and a table row each
WORST_RANKS = 32  # lanes of the critical path
MOST_NAMED = 16  # ranks that findings name, with a row of their own beside the kinds
_FEW = 8  # a finding about more ranks names none of them


@dataclass(frozen=True)
class ShownGroup:
    """A row: one rank, or ranks that are alike, `example` first of what is shown of them."""

    example: int
    ranks: tuple[int, ...]

    @property
    def label(self) -> str:
        """'rank 1', 'rank 1 and 63 alike'."""
        return f"rank {self.example}" + (f" and {len(self.ranks) - 1} alike" if len(self.ranks) > 1 else "")


def groups_of(report: Report) -> tuple[ShownGroup, ...]:
    """A group a rank up to `MOST_RANKS`; beyond, those that findings name, and the others by kind."""
    if len(report.ranks) <= MOST_RANKS:
        return tuple(ShownGroup(row.rank, (row.rank,)) for row in report.ranks)
    named = named_ranks(report)
    rest = [row for row in report.ranks if row.rank not in named]
    kinds = [ShownGroup(kind.example, kind.ranks) for kind in alike_ranks(rest)]
    return tuple(sorted((*(ShownGroup(rank, (rank,)) for rank in named), *kinds), key=lambda group: group.example))


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
    rest = [row for row in report.ranks if row.rank not in named_ranks(report)]
    apart = next((kind.apart_pct for kind in alike_ranks(rest)), APART_PCT)
    return (
        f"Of {len(report.ranks)} ranks, those whose steps differ by less than {apart:g} % are one row, which shows the "
        "middle one of them."
    )


def outliers(report: Report) -> list[int]:
    """Ranks that findings name, in their order, then those of small groups."""
    small = [rank for group in groups_of(report) if len(group.ranks) <= 3 for rank in group.ranks]
    return list(dict.fromkeys((*named_ranks(report), *small)))[:MOST_NAMED]


def idle_ms(row: RankRow) -> float:
    """All idle buckets of a rank's row together, ms a step."""
    return sum(row.bucket_ms(bucket) or 0.0 for bucket in IDLE_BUCKETS)


def named_ranks(report: Report) -> tuple[int, ...]:
    """Ranks that findings about few ranks name, the first finding's first."""
    present = {row.rank for row in report.ranks}
    named: dict[int, None] = {}
    for finding in report.findings:
        if len(finding.ranks) <= _FEW:
            named.update((rank, None) for rank in finding.ranks if rank in present)
    return tuple(named)[:MOST_NAMED]
