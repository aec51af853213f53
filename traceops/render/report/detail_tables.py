"""The tables of the HTML page about kernels, collectives, calls, HTA's results and a finding's evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceops.core.rank_text import ranks_text
from traceops.core.words import ROLES, STEP, StepWords
from traceops.render.cells import Cell, Column, Table, build_table, name, number, rows_of, share, sizes_apart
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


MOST_KERNELS = 15
MOST_COLLECTIVES = 40
MOST_CALLS = 40
MOST_HTA_ROWS = 200
_HTA_UNITS = {"idle_time": "µs", "sum": "µs", "percentage": "%"}  # where the name does not say it


def kernels_table(report: Report) -> Table:
    """The kernels that take most time over all ranks."""
    rows, words = report.tables.kernels, report.summary.step_words
    head, call = ("Input shapes", "call") if report.run.device_type == "cpu" else ("Grid", "launch")
    columns = [
        Column("name", "Kernel", number=False, make=lambda row: name(str(row.name))),
        Column("kind", "Kind", number=False, make=lambda row: _kind_cell(row.kind)),
        Column("share_pct", "Share %", "of all device activity, summed over ranks",
               make=lambda row: share(row.share_pct, _kind_colour(row.kind))),
        Column("ms_per_step", words.unit("ms"), f"mean over ranks{words.choose(' and steps', '')}; over all streams, "
               f"so it can exceed {words.the}"),
        Column("count", "Count", words.choose("over all ranks and steps", "over all ranks"), decimals=0),
        Column("mean_us", "Mean µs", decimals=1),
        Column("min_us", "Min µs", decimals=1),
        Column("max_us", "Max µs", decimals=1),
        *([Column("grid", head, f"of its longest {call}", number=False, make=lambda row: _shapes_cell(row.grid))]
          if any(row.grid for row in rows[:MOST_KERNELS]) else []),
        *([Column("worst_rank", "Most on rank", "the rank that spends most time in it", decimals=0),
           Column("worst_rank_total_ms", "Most ms", "on that rank, all its steps"),
           Column("least_rank_total_ms", "Least ms", "on the rank that spends least time in it, all its steps; 0 where "
                  "one does not run it")]
          if len(report.ranks) > 1 else []),
    ]  # fmt: skip
    return build_table("Kernels and operators by time", columns, rows, most=MOST_KERNELS, file="kernels.csv")


def collectives_table(report: Report) -> Table:
    """Each kind of collective: what it moves, how long it takes, how fast the link was."""
    shown, words = report.collectives[:MOST_COLLECTIVES], report.summary.step_words
    size_cell = sizes_apart([row.bytes for row in shown])
    columns = [
        Column("group", "Group", number=False, make=group_cell),
        *(
            [Column("role", "Role", "what the group is for", number=False, make=_role_cell)]
            if any(row.role not in (None, "unknown") for row in shown)
            else []
        ),
        Column("op", "Operation", number=False),
        Column(
            "bytes", "Size", "the larger of input and output, one collective", make=lambda row: size_cell(row.bytes)
        ),
        *(
            [
                Column(
                    "places",
                    f"Which in {words.a}",
                    f"of the group's collectives in {words.a}, counted from the first: the "
                    "bucket of gradients, for instance",
                    number=False,
                    make=_places_cell,
                )
            ]
            if any(row.places for row in shown)
            else []
        ),
        Column("count", "Count", "matched collectives in the window", decimals=0),
        Column("median_ms", "Transfer ms", "median of one collective, all members there", decimals=3),
        Column("median_wait_ms", "Longest wait ms", "median of the longest wait of a member", decimals=3),
        Column("total_ms", "All transfer ms", "over the window"),
        Column("busbw_gbs", "Bus GB/s", COLUMNS["Bus bandwidth"], decimals=1),
    ]
    return build_table(
        "Collectives, most transfer first", columns, report.collectives, most=MOST_COLLECTIVES, file="collectives.csv"
    )


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
    words = report.summary.step_words
    by_time = sorted(rows, key=lambda row: (-row.device_ms_per_step, -row.host_ms_per_step))
    columns = [
        Column("name", "Operator", number=False, make=lambda row: name(row.name)),
        Column("count_per_step", f"Calls {words.per}", "of the average rank", decimals=1),
        Column(
            "device_ms_per_step", f"Device {words.unit('ms')}", "of the kernels that it launches itself", decimals=3
        ),
        Column(
            "host_ms_per_step", f"Host {words.unit('ms')}", "inside it and in no operator that it calls", decimals=3
        ),
    ]
    if any(row.shapes for row in rows):
        columns.insert(1, Column("shapes", "Input shapes", number=False, make=lambda row: _shapes_cell(row.shapes)))
    if whole > 0:
        scale = 100.0 / whole
        columns.insert(-1, Column("device_ms_per_step", "Device share %", "of all operators", decimals=1, scale=scale))
    if host > 0:
        scale = 100.0 / host
        columns.append(Column("host_ms_per_step", "Host share %", "of all operators", decimals=1, scale=scale))
    return build_table(
        "Operators by device time", columns, by_time, most=MOST_KERNELS, rest_in="report.json, inventory"
    )


def _shapes_cell(shapes: str | None) -> Cell:
    return name(shapes, 60) if shapes else number(None)


def blocking_table(report: Report) -> Table | None:
    """Calls in which the host waited for the device; None without any."""
    rows = sorted(report.tables.blocking_calls, key=lambda row: -(row.total_ms or 0.0))
    if not rows:
        return None
    columns = [
        Column("call", "Call", number=False),
        Column("operator", "In operator", number=False, make=_operator_cell),
        Column("rank", "Rank", decimals=0),
        Column("count", "Count", "in the window", decimals=0),
        Column(
            "total_ms",
            "Total ms",
            f"in the window; much of it may be harmless waiting at the end of {report.summary.step_words.a}",
        ),
        Column("idle_ms", "Idle after, ms", f"GPU idle time that the call causes, {report.summary.step_words.per}"),
    ]
    return build_table("Calls that wait for the device", columns, rows, most=MOST_CALLS, file="blocking_calls.csv")


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
    best = [Column("predicted_least_ms", "At best ms", "where more than the change decides")]
    if all(row.predicted_least_ms is None for row in report.what_if):
        best = []
    columns = [
        Column("change", "If", number=False),
        Column("ranks", "Ranks", number=False, make=lambda row: Cell(ranks_text(row.ranks) or "all")),
        Column("step_time_ms", report.summary.step_words.heading),
        Column("predicted_step_time_ms", "Would be ms"),
        *best,
        Column("saved_pct", "Saved %", decimals=1),
    ]
    return build_table("What one change would save", columns, report.what_if)


def stages_table(pipeline: PipelineRow, words: StepWords = STEP) -> Table:
    """A row a stage of a pipeline: its work and its bubble."""
    columns = [
        Column("stage", "Stage", decimals=0),
        Column("rank", "Rank", decimals=0),
        Column("step_time_ms", words.heading),
        Column("work_ms", "Work ms"),
        Column("bubble_ms", "Bubble ms"),
        Column("imbalance_ms", "For a slower stage", unit="ms"),
    ]
    if pipeline.schedule_bubble_pct is None:
        columns.append(Column("late_ms", "Fill, drain and late sends", unit="ms"))
    else:
        columns += [
            Column("fill_drain_ms", "Fill and drain", unit="ms"),
            Column("fill_ms", "of it fill", unit="ms"),
            Column("drain_ms", "of it drain", unit="ms"),
            Column("late_ms", "Late sends", unit="ms"),
        ]
    return build_table(f"Stages of the pipeline of ranks {ranks_text(pipeline.ranks, 8)}", columns, pipeline.stages)


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
