"""Waiting that each row of ranks caused: of ranks that are alike, all of theirs together."""

from __future__ import annotations

from collections import defaultdict

from traceops.core.cause_words import CAUSES
from traceops.render.report.rank_groups import MOST_RANKS, groups_of
from traceops.report.model import Report
from traceops.report.tables import LatenessRow


def lateness_by_group(report: Report) -> tuple[LatenessRow, ...]:
    """The rows of the lateness table; of too many ranks one a group and step, under its example's number.

    Caused waiting is summed over a group: which of ranks that are alike comes last is chance. What they waited
    themselves is their mean.
    """
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
