"""The tables of the HTML page about kernels, collectives, calls, HTA's results and a finding's evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceops.core.rank_text import ranks_text
from traceops.core.words import ROLES, STEP, StepWords
from traceops.render.cells import Cell, Column, Table, build_table, name, number, rows_of, share, sizes_apart, table_of
from traceops.render.report.terms import COLUMNS, KINDS
from traceops.report.model import Report
from traceops.report.rows import CollectiveRow, PipelineRow, ReferenceRow
from traceops.report.tables import BlockingCallRow, CopyRow

# The page's table of copies between host and device.


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
    cells = {
        "direction": lambda row: name(_WAYS.get(row.direction, row.direction)),
        "memory": lambda row: name(row.memory),
        "purpose": lambda row: name(_PURPOSES.get(row.purpose, row.purpose)),
        "operator": lambda row: name(_place(row), 60),
    }
    rest = len(report.tables.copies) - min(len(rows), _MOST_COPIES)
    note = f"{rest} more in copies.csv." if rest > 0 else ""
    return table_of("copies", rows[:_MOST_COPIES], report.summary.step_words, make=cells, note=note)


def _place(row: CopyRow) -> str:
    return " in ".join(part for part in (row.operator, row.region and f"'{row.region}'") if part) or "no operator"


MOST_KERNELS = 15
MOST_COLLECTIVES = 40
MOST_CALLS = 40
MOST_HTA_ROWS = 200
_HTA_UNITS = {"idle_time": "µs", "sum": "µs", "percentage": "%"}  # where the name does not say it


def kernels_table(report: Report) -> Table:
    """The kernels that take most time over all ranks."""
    cpu = report.run.device_type == "cpu"
    facts = {"grid": "Input shapes", "call": "call"} if cpu else {"grid": "Grid", "call": "launch"}
    cells = {
        "name": lambda row: name(str(row.name)),
        "kind": lambda row: _kind_cell(row.kind),
        "share_pct": lambda row: share(row.share_pct, _kind_colour(row.kind)),
        "grid": lambda row: _shapes_cell(row.grid),
    }
    alone = ("worst_rank", "worst_rank_total_ms", "least_rank_total_ms") if len(report.ranks) < 2 else ()
    rows, words = report.tables.kernels, report.summary.step_words
    return table_of("kernels", rows, words, make=cells, without=alone, facts=facts, most=MOST_KERNELS)


def collectives_table(report: Report) -> Table:
    """Each kind of collective: what it moves, how long it takes, how fast the link was."""
    shown = report.collectives[:MOST_COLLECTIVES]
    size_cell = sizes_apart([row.bytes for row in shown])
    cells = {"group": group_cell, "role": _role_cell, "bytes": lambda row: size_cell(row.bytes), "places": _places_cell}
    unknown = () if any(row.role not in (None, "unknown") for row in shown) else ("role",)
    return table_of(
        "collectives", report.collectives, report.summary.step_words, make=cells, without=unknown,
        facts={"busbw": COLUMNS["Bus bandwidth"]}, most=MOST_COLLECTIVES,
    )  # fmt: skip


def _role_cell(row: CollectiveRow) -> Cell:
    return Cell(ROLES[row.role]) if row.role not in (None, "unknown") else number(None)


def _places_cell(row: CollectiveRow) -> Cell:
    if not row.places:
        return number(None)
    return Cell(f"{ranks_text(row.places, 6)} of {row.places_of}", value=float(row.places[0]))


def operators_table(report: Report) -> Table | None:
    """What the average rank calls in a step, by operator and input shapes; None where the report does not hold it."""
    rows = report.inventory.operators if report.inventory is not None else ()
    if not rows:
        return None
    whole, host = (
        sum(times) for times in zip(*((r.device_ms_per_step, r.host_ms_per_step) for r in rows), strict=True)
    )
    by_time = sorted(rows, key=lambda row: (-row.device_ms_per_step, -row.host_ms_per_step))
    cells = {
        "name": lambda row: name(row.name),
        "shapes": lambda row: _shapes_cell(row.shapes),
        "device_share": lambda row: number(100.0 * row.device_ms_per_step / whole, 1),
        "host_share": lambda row: number(100.0 * row.host_ms_per_step / host, 1),
    }
    none = [key for key, total in (("device_share", whole), ("host_share", host)) if total <= 0]
    return table_of("operators", by_time, report.summary.step_words, make=cells, without=none, most=MOST_KERNELS)


def _shapes_cell(shapes: str | None) -> Cell:
    return name(shapes, 60) if shapes else number(None)


def blocking_table(report: Report) -> Table | None:
    """Calls in which the host waited for the device; None without any."""
    rows = sorted(report.tables.blocking_calls, key=lambda row: -(row.total_ms or 0.0))
    if not rows:
        return None
    return table_of(
        "blocking_calls", rows, report.summary.step_words, make={"operator": _operator_cell}, most=MOST_CALLS
    )


def hta_tables(report: Report, shown: Sequence[int]) -> list[Table]:
    """HTA's temporal breakdown, idle time and kernel types, in HTA's own columns."""
    tables = []
    for key, caption in (
        ("hta_temporal_breakdown", "Temporal breakdown"),
        ("hta_idle_time_breakdown", "Idle time breakdown"),
        ("hta_kernel_types", "Kernel types"),
    ):
        rows = rows_of(report.tables.hta.get(key, ()), shown)
        if not rows:
            continue
        columns = [
            Column(
                k,
                k,
                unit=_HTA_UNITS.get(k, ""),
                number=not isinstance(rows[0][k], str),
                decimals=0 if k in ("rank", "stream") else None,
            )
            for k in rows[0]
        ]
        left_out = len(report.tables.hta[key]) - len(rows[:MOST_HTA_ROWS])
        note = f"{left_out} more rows in {key}.csv." if left_out else ""
        tables.append(build_table(caption, columns, rows[:MOST_HTA_ROWS], note=note, file=f"{key}.csv"))
    return tables


def what_if_table(report: Report) -> Table | None:
    """Predicted step time for one change at a time; None where nothing was predicted."""
    if not report.what_if:
        return None
    cells = {"ranks": lambda row: Cell(ranks_text(row.ranks) or "all")}
    return table_of("what_if", report.what_if, report.summary.step_words, make=cells)


def stages_table(pipeline: PipelineRow, words: StepWords = STEP) -> Table:
    """A row a stage of a pipeline: its work and its bubble."""
    whole = pipeline.schedule_bubble_pct is None
    facts = {"ranks": ranks_text(pipeline.ranks, 8), "late": "Fill, drain and late sends" if whole else "Late sends"}
    unknown = ("fill_drain_ms", "fill_ms", "drain_ms") if whole else ()
    return table_of("stages", pipeline.stages, words, without=unknown, facts=facts)


def _kind_cell(kind: Any) -> Cell:
    return Cell(str(kind), "", "swatch", colour=_kind_colour(kind))


def _kind_colour(kind: Any) -> str:
    term = KINDS.get(str(kind))
    return term.colour if term else "#7A7A7A"


def group_cell(row: CollectiveRow | ReferenceRow) -> Cell:
    """A process group by name and number of ranks; hovering names them."""
    ranks = row.ranks
    group, count = str(row.group), f"{len(ranks)} ranks"
    return Cell(count if group == count else f"{group[:40]} · {count}", f"{group}: ranks {ranks_text(ranks)}")


def _operator_cell(row: BlockingCallRow) -> Cell:
    return name(str(row.operator)) if row.operator else Cell("none", "called outside any operator")
