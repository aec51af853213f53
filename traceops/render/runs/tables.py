"""Several runs as tables: the figures of each, and the ledgers of their steps side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from urllib.parse import quote

from traceops.core.units import UNKNOWN, number_text
from traceops.measure.ledger import BUCKETS
from traceops.render.cells import Cell, Column, Table, build_table, size
from traceops.render.report.terms import TERMS
from traceops.runs.model import RunRow

PAGE = "summary.html"
_MOST_RULES = 4


def figures_table(rows: Sequence[RunRow], *, linked: bool) -> Table:
    """A row a run that has a report. `linked`: its name leads to the report's page."""
    columns = [
        Column("name", "Run", number=False, make=lambda row: name_cell(row, linked)),
        Column("ranks", "Ranks", decimals=0),
        Column("hosts", "Hosts", decimals=0),
        Column(
            "step_ms", "Step, ms", "without the profiler where such steps were timed, else as recorded (marked *)",
            make=_step_cell,
        ),
        Column("samples_per_s", "Samples/s", "of all ranks together"),
        Column("tokens_per_s", "Tokens/s", "of all ranks together"),
        Column("mfu_pct", "MFU, %", "model FLOPs a second over the devices' dense peak", decimals=1),
        Column("compute", "Compute, %", "of the recorded step", decimals=1, make=_compute_cell),
        Column("overlap_pct", "Overlap, %", "communication with computation beside it", decimals=1),
        Column("exposed_comm_ms", "Exposed comm., ms", "communication that nothing hides, waiting included"),
        Column("collective_bytes", "Traffic a step", "bytes in collectives of the average rank", make=_traffic_cell),
        Column("peak_memory_bytes", "Peak memory", "of the rank that has most", make=_memory_cell),
        Column("findings", "Findings", number=False, make=_findings_cell),
    ]  # fmt: skip
    shown = [row for row in rows if not row.problem]
    always = ("name", "step_ms", "compute", "findings")
    kept = [column for column in columns if column.key in always or _known(shown, column.key)]
    kept = [column for column in kept if column.key != "hosts" or any((row.hosts or 1) > 1 for row in shown)]
    note = "* of recorded steps, which the profiler makes longer" if any(r.step_profiled for r in shown) else ""
    return build_table("Runs", kept, shown, note=note)


def ledger_table(rows: Sequence[RunRow], *, linked: bool) -> Table:
    """Where the recorded step of each run goes: a bar as long as its step, and the buckets in ms."""
    shown = [row for row in rows if row.recorded_step_ms]
    longest = max((row.recorded_step_ms or 0.0 for row in shown), default=0.0)
    used = [bucket for bucket in BUCKETS if any(row.ledger_ms.of(bucket) for row in shown)]
    columns = [
        Column("name", "Run", number=False, make=lambda row: name_cell(row, linked)),
        Column("bar", "Step", number=False, make=lambda row: _bar(row, longest), css="ledger"),
        Column("recorded_step_ms", "ms", "the typical recorded step"),
        *(Column(bucket, TERMS[bucket].label, TERMS[bucket].definition, make=_bucket_cell(bucket)) for bucket in used),
    ]
    return build_table("Ledgers of the steps, ms: medians over ranks", columns, shown)


def name_cell(row: RunRow, linked: bool) -> Cell:
    """The run's name, which leads to its report where that is a page beside this one."""
    href = ""
    if linked and row.report is not None:
        href = "./" + quote(os.fsencode(PurePosixPath(row.report, PAGE)))  # names need not be valid UTF-8
    return Cell(row.name, row.verdict, href=href)


def findings_text(row: RunRow) -> str:
    """'TO-S001 error, TO-O001 info', the worst first; what is more is counted."""
    said = [f"{one.rule} {one.severity}" for one in row.findings]
    more = len(said) - _MOST_RULES
    return ", ".join(said[:_MOST_RULES]) + (f" and {more} more" if more > 0 else "") if said else "none"


def _known(rows: Sequence[RunRow], key: str) -> bool:
    return any(getattr(row, key) is not None for row in rows)


def _step_cell(row: RunRow) -> Cell:
    if row.step_ms is None:
        return Cell(UNKNOWN, "not known", "unknown")
    return Cell(number_text(row.step_ms) + ("*" if row.step_profiled else ""))


def _compute_cell(row: RunRow) -> Cell:
    compute, step = row.ledger_ms.compute, row.recorded_step_ms
    return Cell(UNKNOWN, "not known", "unknown") if compute is None or not step else Cell(f"{100 * compute / step:.1f}")


def _traffic_cell(row: RunRow) -> Cell:
    return size(row.collective_bytes)


def _memory_cell(row: RunRow) -> Cell:
    return size(row.peak_memory_bytes)


def _findings_cell(row: RunRow) -> Cell:
    return Cell(findings_text(row), ", ".join(f"{one.rule} {one.severity}" for one in row.findings))


def _bucket_cell(bucket: str) -> Callable[[RunRow], Cell]:
    def cell(row: RunRow) -> Cell:
        ms = row.ledger_ms.of(bucket)
        return Cell(UNKNOWN, "not known", "unknown") if ms is None else Cell(number_text(ms))

    return cell


def _bar(row: RunRow, longest: float) -> Cell:
    """The step as a bar of its buckets in their colours, as CSS: no script, and no figure to load."""
    stops, at = [], 0.0
    for bucket in BUCKETS:
        ms = row.ledger_ms.of(bucket) or 0.0
        if ms <= 0:
            continue
        to = min(at + 100.0 * ms / longest, 100.0)
        stops.append(f"{TERMS[bucket].colour} {at:.2f}% {to:.2f}%")
        at = to
    said = ", ".join(
        f"{TERMS[bucket].label} {number_text(own)} ms" for bucket in BUCKETS if (own := row.ledger_ms.of(bucket))
    )
    fill = f"linear-gradient(to right, {', '.join([*stops, f'transparent {at:.2f}%'])})" if stops else ""
    return Cell("", said, "bar ledger", colour=fill)
