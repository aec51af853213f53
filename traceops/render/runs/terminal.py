"""Several runs on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from traceops.core.units import fixed_text, number_text, size_text
from traceops.render.cells import Cell, Column, Table
from traceops.render.document import Block, Code, TableBlock, text
from traceops.render.runs.files import findings_text, runs_verdict
from traceops.render.writers.terminal import MARK, write_terminal
from traceops.runs.row import RunRow


def print_runs(rows: Sequence[RunRow], file: TextIO, written: Path) -> None:
    """The table, runs without a report, and where all of it lies."""
    write_terminal(describe_summary(rows, written), file)


def describe_summary(rows: Sequence[RunRow], written: Path) -> list[Block]:
    """What the terminal says of several runs."""
    said = runs_verdict(rows)
    return [
        text(f"{MARK[said.level]} {said.sentence}", look=f"level-{said.level}", indent=(0, 2)),
        *table_of(rows),
        *(
            text(f"{MARK['error']} {row.name}: {row.problem}", look="level-error", indent=(0, 2))
            for row in rows
            if row.problem
        ),
        Code((f"Runs: {written}",), look=""),
    ]


def table_of(rows: Sequence[RunRow]) -> list[Block]:
    """The figures of the runs that have a report; columns that nobody knows are left out."""
    usable = [row for row in rows if not row.problem]
    if not usable:
        return []
    columns: list[tuple[str, list[str]]] = [
        ("run", [row.name for row in usable]),
        ("ranks", [_whole(row.ranks) for row in usable]),
        ("step ms", [_number(row.step_ms) + ("*" if row.step_profiled else "") for row in usable]),
        ("samples/s", [_number(row.samples_per_s) for row in usable]),
        ("tokens/s", [_number(row.tokens_per_s) for row in usable]),
        ("MFU %", [fixed_text(row.mfu_pct, 1) for row in usable]),
        ("compute %", [_compute(row) for row in usable]),
        ("overlap %", [fixed_text(row.overlap_pct, 1) for row in usable]),
        ("exposed ms", [_number(row.exposed_comm_ms) for row in usable]),
        ("traffic", [_size(row.collective_bytes) for row in usable]),
        ("memory", [_size(row.peak_memory_bytes) for row in usable]),
        ("findings", [findings_text(row) for row in usable]),
    ]
    unknown = fixed_text(None, 0)
    kept = [(label, cells) for label, cells in columns if any(cell != unknown for cell in cells)]
    heads = tuple(Column(label, label, number=label not in ("run", "findings")) for label, _ in kept)
    body = tuple(tuple(Cell(cells[place]) for _, cells in kept) for place in range(len(usable)))
    note = "* of recorded steps, which the profiler makes longer" if any(r.step_profiled for r in usable) else ""
    return [TableBlock(Table("", heads, body, note=note))]


def _number(value: float | None) -> str:
    return fixed_text(None, 0) if value is None else number_text(value)


def _whole(value: int | None) -> str:
    return fixed_text(None, 0) if value is None else str(value)


def _size(value: float | None) -> str:
    return fixed_text(None, 0) if value is None else size_text(value)


def _compute(row: RunRow) -> str:
    compute, step = row.ledger_ms.compute, row.recorded_step_ms
    return fixed_text(None if compute is None or not step else 100 * compute / step, 1)
