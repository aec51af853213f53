"""The page's table of copies between host and device."""

from __future__ import annotations

from traceops.render.cells import Column, Table, build_table, name
from traceops.report.model import Report
from traceops.report.tables import CopyRow

_MOST_COPIES = 25
_LEAST_MS = 0.01  # on the device a step: shorter ones are in the file only
_WAYS = {"to_device": "to the device", "to_host": "to the host"}
_PURPOSES = {
    "input": "data",
    "output": "results",
    "offload": "offload",
    "values": "small values",
    "exchange": "around gloo's collectives",
}


def copies_table(report: Report) -> Table | None:
    """Copies by rank and kind, the most exposed first; None without any worth showing."""
    rows = [row for row in report.tables.copies if row.device_ms >= _LEAST_MS]
    if not rows:
        return None
    words = report.summary.step_words
    columns = [
        Column("direction", "Copies", number=False, make=lambda row: name(_WAYS.get(row.direction, row.direction))),
        Column("memory", "Host memory", number=False, make=lambda row: name(row.memory)),
        Column("purpose", "Of", number=False, make=lambda row: name(_PURPOSES.get(row.purpose, row.purpose))),
        Column("operator", "In", number=False, make=lambda row: name(_place(row), 60)),
        Column("rank", "Rank", decimals=0),
        Column("count", words.unit("count"), decimals=1),
        Column("bytes", "MB", "of the median copy", scale=1e-6),
        Column("exposed_ms", f"Exposed {words.unit('ms')}", "while no kernel runs"),
        Column("device_ms", f"Device {words.unit('ms')}", "beside kernels or not"),
        Column("host_ms", f"Host {words.unit('ms')}", "in their calls, and waiting for them"),
        Column("gbs", "GB/s", "of bytes over device time"),
    ]  # fmt: skip
    rest = len(report.tables.copies) - min(len(rows), _MOST_COPIES)
    note = f"{rest} more in copies.csv." if rest > 0 else ""
    return build_table("Copies between host and device", columns, rows[:_MOST_COPIES], note=note, file="copies.csv")


def _place(row: CopyRow) -> str:
    return " in ".join(part for part in (row.operator, row.region and f"'{row.region}'") if part) or "no operator"
