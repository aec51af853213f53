"""Prefill and decode passes of an inference server: a section, and lines on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.units import fixed_text, ms_text
from traceops.render.cells import Cell, Column, Table, build_table
from traceops.render.document import Block, Section, TableBlock, soft, text
from traceops.report.model import Report
from traceops.report.rows import PassRow

_LABELS = {"prefill": "Prefill", "mixed": "Prefill and decode in one", "decode": "Decode"}


def passes(report: Report, shown: Sequence[int]) -> Section | None:
    """What each kind of pass takes."""
    if not report.passes:
        return None
    columns = [
        Column("kind", "Pass", number=False, make=lambda row: Cell(_LABELS[row.kind])),
        Column("count", "Passes", decimals=0),
        Column("requests", "Requests", decimals=0),
        Column("tokens", "Tokens", decimals=0),
        Column("device_ms", "Device ms", "first kernel's begin to last one's end, median"),
        Column("device_p95_ms", "p95 ms"),
        Column("busy_pct", "Busy %", decimals=1),
        Column("host_ms", "Host ms"),
        Column("graphs", "Graphs", "launches of CUDA graphs in a pass", decimals=0),
        Column("between_ms", "Idle before ms", "the device runs nothing between the pass before and this one"),
        Column("scheduling_ms", "Scheduling ms", "the host is in neither pass"),
        Column("waiting_ms", "Skew ms", "in collectives, waiting for late members"),
        Column("transfer_ms", "Transfer ms", "in collectives, all members there"),
        Column("unmatched_ms", "Unmatched ms"),
    ]
    return Section(
        "passes",
        "Prefill and decode",
        (
            soft("As the server annotates its passes; medians over passes and ranks."),
            *(text(pass_sentence(row)) for row in report.passes),
            TableBlock(build_table("Passes of the server", columns, report.passes, file="passes.csv")),
        ),
        "Inference",
    )


def pass_sentence(row: PassRow) -> str:
    """'Decode: 128 passes, 3.20 ms on the device each; 0.80 ms before each the device waits for the host.'"""
    many = f"{row.count} pass{'es' if row.count != 1 else ''}"
    said = f"{_LABELS[row.kind]}: {many}, {ms_text(row.device_ms)} ms on the device{' each' if row.count != 1 else ''}"
    if row.between_ms is not None:
        said += f", {ms_text(row.between_ms)} ms of nothing before it"
        if row.scheduling_ms:
            said += f" ({ms_text(row.scheduling_ms)} ms between them on the host)"
    if row.waiting_ms is not None and row.transfer_ms is not None and row.waiting_ms + row.transfer_ms > 0:
        said += f"; of its collectives {ms_text(row.waiting_ms)} ms are skew and {ms_text(row.transfer_ms)} ms transfer"
    return f"{said}."


def pass_lines(report: Report) -> list[Block]:
    """The terminal's table, a line a kind of pass."""
    if not report.passes:
        return []
    columns = (
        Column("kind", "passes", number=False),
        Column("count", "count"),
        Column("device", "device ms"),
        Column("busy", "busy %"),
        Column("between", "idle before"),
        Column("host", "scheduling"),
        Column("skew", "skew"),
        Column("transfer", "transfer"),
    )
    rows = [
        (
            row.kind,
            str(row.count),
            fixed_text(row.device_ms, 2),
            fixed_text(row.busy_pct, 0),
            fixed_text(row.between_ms, 2),
            fixed_text(row.scheduling_ms, 2),
            fixed_text(row.waiting_ms, 2),
            fixed_text(row.transfer_ms, 2),
        )
        for row in report.passes
    ]
    return [TableBlock(Table("", columns, tuple(tuple(Cell(said) for said in row) for row in rows)))]
