"""The tables of a hang on the page: ranks and who waits for whom, equal ones merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceops.core.rank_text import ranks_text
from traceops.hangs.model import Diagnosis
from traceops.render.cells import Cell, Column, Table, build_table, name
from traceops.render.hang.rows import RankGroup, merged_waits, shown_waits
from traceops.render.hang.text import bytes_text, operation_text, state_text

MOST_ROWS = 64
_MOST_WAITS = 100
_WORD = 60  # characters before the middle of a name is left out


def ranks_table(diagnosis: Diagnosis, groups: Sequence[RankGroup]) -> Table:
    """A row for equal ranks, causes first; columns that nobody fills are left out."""
    rows = [{**_row(group), "ranks": group.ranks} for group in groups[:MOST_ROWS]]
    columns = [
        Column("ranks", "Rank", number=False, make=lambda row: _ranks_cell(row["ranks"])),
        Column("state", "State", number=False, make=lambda row: row["state"]),
        *(
            Column(key, label, title, number=False, make=lambda row, key=key: row[key])  # type: ignore[misc]
            for key, label, title in (
                ("host", "Host", ""),
                ("step", "Steps done", "steps finished"),
                ("op", "In", "the rank's earliest operation that has not completed"),
                ("sequence", "Number", "place of the operation in its group"),
                ("group", "Group", ""),
                ("bytes", "Size", ""),
                ("op_state", "Operation is", "as the rank's flight recorder has it"),
                ("where", "Called at", "line of code of the operation"),
                ("doing", "Main thread is", "from its stack"),
                ("exit_code", "Exit code", "as a shell has it: 128 + n for signal n"),
                ("waits_for", "Waits for", ""),
                ("pending", "Pending", "operations called and not completed"),
                ("sources", "Known from", ""),
            )
            if any(row[key].text for row in rows)
        ),
    ]
    merged = "" if len(groups) == len(diagnosis.ranks) else "Ranks that are alike share a row"
    left = sum(len(group.ranks) for group in groups[MOST_ROWS:])
    note = f"{merged}; {left} more ranks in hang_ranks.csv" if left else merged
    return build_table("What each rank was in", columns, rows, note=note)


def waits_table(diagnosis: Diagnosis) -> Table | None:
    """The graph in words: who waits for whom, in what and why; None where nobody waits."""
    waits = sorted(merged_waits(shown_waits(diagnosis)), key=lambda wait: (-len(wait.ranks), wait.ranks))
    if not waits:
        return None
    rows = [
        {
            "ranks": wait.ranks,
            "on": wait.on,
            "in": operation_text({"op": wait.op, "sequence": wait.sequence, "group": wait.group}),
            "why": wait.why,
        }
        for wait in waits[:_MOST_WAITS]
    ]
    columns = [
        Column("ranks", "Ranks", number=False, make=lambda row: _ranks_cell(row["ranks"])),
        Column("on", "Wait for", number=False, make=lambda row: _ranks_cell(row["on"])),
        Column("in", "In", number=False, make=lambda row: _text(row["in"])),
        Column("why", "Because", number=False, make=lambda row: _text(row["why"], 160)),
    ]
    rest = len(waits) - _MOST_WAITS
    return build_table(
        "Who waits for whom", columns, rows, note=f"{rest} more in hang_waits.csv" if rest > 0 else ""
    )


def _row(group: RankGroup) -> dict[str, Any]:
    cells: dict[str, Any] = {
        key: _shared(group, key)
        for key in (
            "host",
            "step",
            "op",
            "sequence",
            "group",
            "op_state",
            "where",
            "doing",
            "exit_code",
            "pending",
        )
    }
    cells["state"] = Cell(state_text(group), css="worst" if group.root is not None else "")
    cells["bytes"] = Cell(bytes_text(group.shared, group.differ), _exact(group), "nowrap")
    cells["waits_for"] = _ranks_cell(group.waits_for)
    several = group.differ.get("sources", (group.shared.get("sources") or (),))
    cells["sources"] = Cell(
        ", ".join(dict.fromkeys(str(source) for sources in several for source in sources or ()))
    )
    return cells


def _exact(group: RankGroup) -> str:
    nbytes = group.shared.get("bytes")
    return "" if nbytes is None else f"{nbytes:,} bytes"


def _shared(group: RankGroup, key: str) -> Cell:
    if key in group.differ:
        return Cell(
            f"{len(group.differ[key])} values", "these ranks differ; hang_ranks.csv has each", "unknown"
        )
    value = group.shared.get(key)
    return _text("" if value is None else str(value))


def _text(text: str, limit: int = _WORD) -> Cell:
    return Cell(text) if len(text) <= limit else name(text, limit)


def _ranks_cell(ranks: Sequence[int]) -> Cell:
    text = ranks_text(ranks, 6)
    count = f" ({len(ranks)})" if len(ranks) > 2 and "in all" not in text else ""
    return Cell(text + count, ranks_text(ranks, 60), "nowrap" if len(text) < 16 else "")
