"""What NCCL Inspector measured, as a table."""

from __future__ import annotations

from traceops.core.units import size_range_text
from traceops.fabric.inspector import Inspector, InspectorSpeed
from traceops.render.cells import Cell, Column, Table, build_table, name, number

_MOST_ROWS = 40


def inspector_table(inspector: Inspector) -> Table:
    """Bus bandwidth a rank, operation and size; what moved most bytes first."""
    rows = sorted(inspector.speeds, key=lambda row: (-row.count * row.most, row.op, row.rank))
    columns = [
        Column("op", "Operation", number=False, make=lambda row: Cell(row.op)),
        Column("communicator", "Communicator", number=False, make=_communicator),
        Column("rank", "Rank", "in its communicator", make=lambda row: number(row.rank, 0)),
        Column("size", "Message", make=lambda row: Cell(size_range_text(row.least, row.most))),
        Column("count", "Times", make=lambda row: number(row.count, 0)),
        Column("gbs", "Bus GB/s", "median", make=lambda row: number(row.busbw_gbs)),
    ]
    rest = len(rows) - _MOST_ROWS
    note = f"{rest} more in the JSON file." if rest > 0 else ""
    return build_table("What NCCL Inspector measured", columns, rows[:_MOST_ROWS], note=note)


def _communicator(row: InspectorSpeed) -> Cell:
    return name(f"{row.name or row.communicator} ({row.ranks} ranks)", 40)
