"""The column that says which rank a row is of, or which ranks it stands for."""

from __future__ import annotations

from typing import Any

from traceops.core.rank_text import ranks_text
from traceops.render.cells import Cell, Column, value_of
from traceops.render.report.rank_groups import MOST_RANKS, groups_of
from traceops.report.model import Report


def rank_column(report: Report) -> Column:
    """Numbers; where rows stand for kinds of ranks, '1 and 63 alike' with all of them as title."""
    if len(report.ranks) <= MOST_RANKS:
        return Column("rank", "Rank", decimals=0)
    by_example = {group.example: group for group in groups_of(report)}

    def cell(row: Any) -> Cell:
        rank = int(value_of(row, "rank"))
        group = by_example.get(rank)
        if group is None or len(group.ranks) == 1:
            return Cell(str(rank))
        return Cell(f"{rank} and {len(group.ranks) - 1} alike", f"ranks {ranks_text(group.ranks, 40)}")

    return Column("rank", "Rank", "ranks whose steps are alike are one row", number=False, make=cell)
