"""The tables of a hang: ranks and who waits for whom, equal ones merged on the page, every one in the CSV files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter

from msgspec.structs import asdict

from traceops.core.claims import first_phrase
from traceops.core.rank_text import is_cut, ranks_text
from traceops.hangs.model import Diagnosis
from traceops.hangs.words import WAIT_REASONS
from traceops.render.cells import Cell, Table, name, table_of
from traceops.render.writers.csv import csv_text, struct_csv
from traceops.report import hang_text
from traceops.words.catalogue import texts

WORDS = texts("views", "hang")
say = partial(first_phrase, "views", "hang")
MOST_ROWS = 64
_MOST_WAITS = 100
_RANK_KEYS = [key for key in texts("tables", "hang_ranks") if key[0] != "@"]
_WORD = 60  # characters before the middle of a name is left out


def ranks_table(diagnosis: Diagnosis, groups: Sequence[hang_text.RankGroup]) -> Table:
    """A row for equal ranks, causes first; columns that nobody fills are left out."""
    rows = [_cells(group) for group in groups[:MOST_ROWS]]
    empty = [key for key in _RANK_KEYS if key not in ("ranks", "state") and not any(row[key].text for row in rows)]
    left = sum(len(group.ranks) for group in groups[MOST_ROWS:])
    note = say("rank_rows", alike=len(groups) != len(diagnosis.ranks), left_ranks=left or None)
    return table_of("hang_ranks", rows, make={key: itemgetter(key) for key in _RANK_KEYS}, without=empty, note=note)


def waits_table(diagnosis: Diagnosis) -> Table | None:
    """The graph in words: which ranks wait for which, in what and why; None where none waits."""
    waits = sorted(
        hang_text.merged_waits(hang_text.shown_waits(diagnosis)), key=lambda wait: (-len(wait.ranks), wait.ranks)
    )
    cells: dict[str, Callable[[hang_text.MergedWait], Cell]] = {
        "ranks": lambda wait: _ranks_cell(wait.ranks),
        "on": lambda wait: _ranks_cell(wait.on),
        "op": lambda wait: _text(hang_text.operation_text(wait.op, wait.sequence, wait.group)),
        "reason": lambda wait: _text(WAIT_REASONS[wait.reason], 160),
    }
    return table_of("hang_waits", waits, make=cells, most=_MOST_WAITS) if waits else None


def _cells(group: hang_text.RankGroup) -> dict[str, Cell]:
    """The cell of each column."""
    sources = dict.fromkeys(source for several in group.values("sources") for source in several)
    nbytes = group.shared("bytes")
    times = sorted(time for time in group.values("last_line") if time is not None)
    own = {
        "ranks": _ranks_cell(group.ranks),
        "state": Cell(hang_text.state_text(group), css="worst" if group.root is not None else ""),
        "bytes": Cell(hang_text.bytes_text(group), "" if nbytes is None else f"{nbytes:,} bytes", "nowrap"),
        "waits_for": _ranks_cell(group.waits_for),
        "last_line": Cell(" to ".join(dict.fromkeys((*times[:1], *times[-1:]))), css="nowrap" if times else ""),
        "sources": Cell(", ".join(sources)),
    }
    return {key: own[key] if key in own else _shared(group, key) for key in _RANK_KEYS}


def _shared(group: hang_text.RankGroup, key: str) -> Cell:
    if key in group.differ:
        return Cell(say("values", values=len(group.values(key))), WORDS["differ"], "unknown")
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
    waits = [{**asdict(wait), "why": WAIT_REASONS[wait.reason]} for wait in diagnosis.waits]
    files = {"hang_ranks.csv": struct_csv(diagnosis.ranks), "hang_waits.csv": csv_text(waits, _WAIT_COLUMNS)}
    return {name: text for name, text in files.items() if text}
