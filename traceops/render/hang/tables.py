"""The tables of a hang: ranks and who waits for whom, equal ones merged on the page, every one in the CSV files."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from traceops.core.rank_text import is_cut, ranks_text
from traceops.hangs.model import Diagnosis
from traceops.hangs.words import WAIT_REASONS
from traceops.render.cells import Cell, Column, Table, build_table, name
from traceops.render.writers.csv import csv_text
from traceops.report.hang_rows import MergedWait, RankGroup, merged_waits, shown_waits
from traceops.report.hang_text import bytes_text, operation_text, state_text

MOST_ROWS = 64
_MOST_WAITS = 100
_RANK_COLUMNS = (
    ("state", "State", ""),
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
    ("last_line", "Last line at", "time of day in the rank's last line in a log: its last sign of life"),
    ("sources", "Known from", ""),
)
_WORD = 60  # characters before the middle of a name is left out


def ranks_table(diagnosis: Diagnosis, groups: Sequence[RankGroup]) -> Table:
    """A row for equal ranks, causes first; columns that nobody fills are left out."""
    rows = [(group, _cells(group)) for group in groups[:MOST_ROWS]]
    columns = [
        Column("ranks", "Rank", number=False, make=lambda row: _ranks_cell(row[0].ranks)),
        *(
            Column(key, label, title, number=False, make=lambda row, key=key: row[1][key])  # type: ignore[misc]
            for key, label, title in _RANK_COLUMNS
            if key == "state" or any(cells[key].text for _, cells in rows)
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
    columns = [
        Column("ranks", "Ranks", number=False, make=lambda wait: _ranks_cell(wait.ranks)),
        Column("on", "Wait for", number=False, make=lambda wait: _ranks_cell(wait.on)),
        Column("in", "In", number=False, make=_operation),
        Column("why", "Because", number=False, make=lambda wait: _text(WAIT_REASONS[wait.reason], 160)),
    ]
    rest = len(waits) - _MOST_WAITS
    return build_table(
        "Who waits for whom", columns, waits[:_MOST_WAITS], note=f"{rest} more in hang_waits.csv" if rest > 0 else ""
    )


def _operation(wait: MergedWait) -> Cell:
    return _text(operation_text(wait.op, wait.sequence, wait.group))


def _cells(group: RankGroup) -> dict[str, Cell]:
    """The cell of each column."""
    sources = dict.fromkeys(source for several in group.values("sources") for source in several)
    cells = {key: _shared(group, key) for key, _, _ in _RANK_COLUMNS}
    cells["state"] = Cell(state_text(group), css="worst" if group.root is not None else "")
    cells["bytes"] = Cell(bytes_text(group), _exact(group), "nowrap")
    cells["waits_for"] = _ranks_cell(group.waits_for)
    cells["last_line"] = _times(group)
    cells["sources"] = Cell(", ".join(sources))
    return cells


def _times(group: RankGroup) -> Cell:
    """One time, or the first and the last of several."""
    times = sorted(time for time in group.values("last_line") if time is not None)
    return Cell(" to ".join(dict.fromkeys((times[0], times[-1]))), css="nowrap") if times else Cell("")


def _exact(group: RankGroup) -> str:
    nbytes = group.shared("bytes")
    return "" if nbytes is None else f"{nbytes:,} bytes"


def _shared(group: RankGroup, key: str) -> Cell:
    if key in group.differ:
        return Cell(f"{len(group.values(key))} values", "these ranks differ; hang_ranks.csv has each", "unknown")
    value = group.shared(key)
    return _text("" if value is None else str(value))


def _text(text: str, limit: int = _WORD) -> Cell:
    return Cell(text) if len(text) <= limit else name(text, limit)


def _ranks_cell(ranks: Sequence[int]) -> Cell:
    text = ranks_text(ranks, 6)
    count = f" ({len(ranks)})" if len(ranks) > 2 and not is_cut(ranks, 6) else ""
    return Cell(text + count, ranks_text(ranks, 60), "nowrap" if len(text) < 16 else "")


HANG_CSV_FILES = ("hang_ranks.csv", "hang_waits.csv")
_WAIT_COLUMNS = ("rank", "on", "group", "op", "sequence", "why")


def render_hang_csv_files(diagnosis: Diagnosis) -> dict[str, str]:
    """File name -> text."""
    waits = [
        {
            "rank": wait.rank,
            "on": wait.on,
            "group": wait.group,
            "op": wait.op,
            "sequence": wait.sequence,
            "why": WAIT_REASONS[wait.reason],
        }
        for wait in diagnosis.waits
    ]
    files = {
        "hang_ranks.csv": csv_text([msgspec.structs.asdict(status) for status in diagnosis.ranks]),
        "hang_waits.csv": csv_text(waits, _WAIT_COLUMNS),
    }
    return {name: text for name, text in files.items() if text}
