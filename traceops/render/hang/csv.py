"""The two tables of a hang: a row a rank, and a row an edge of who waits for whom."""

from __future__ import annotations

import msgspec

from traceops.hangs.model import Diagnosis
from traceops.hangs.words import WAIT_REASONS
from traceops.render.writers.csv import csv_text

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
