"""Several runs side by side: runs.html, runs.json, runs.csv, and the table on a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TextIO
from urllib.parse import quote

from msgspec import structs

from traceops.core.file_formats import FORMATS
from traceops.core.units import UNKNOWN, fixed_text, ms_text, number_text, size_text
from traceops.measure.ledger import BUCKETS
from traceops.render.cells import Cell, Column, Table, build_table, size
from traceops.render.document import (
    Block,
    Code,
    Document,
    Headline,
    Section,
    TableBlock,
    Term,
    Terms,
    bold,
    items,
    soft,
    spans,
    text,
)
from traceops.render.files import write_files
from traceops.render.report.terms import TERMS
from traceops.render.writers.csv import csv_text
from traceops.render.writers.html import write_html
from traceops.render.writers.markdown import prose
from traceops.render.writers.markdown import table as lines_of
from traceops.render.writers.terminal import MARK, write_terminal
from traceops.report.write import json_text
from traceops.runs.row import RunRow, RunsDocument

# What several runs say in a sentence.


_ALIKE = 1.02  # runs that differ by less have no order: one capture each says no more


def runs_verdict(rows: Sequence[RunRow]) -> Headline:
    """Which run gets most done, if one does, and how many could not be analysed."""
    usable = [row for row in rows if not row.problem]
    failed = len(rows) - len(usable)
    more = f" {failed} of {len(rows)} runs {'has' if failed == 1 else 'have'} no report." if failed else ""
    if not usable:
        return Headline("error", f"None of {len(rows)} runs can be analysed.")
    return Headline("warning" if failed else "info", f"{_fastest(usable)}{more}")


def _fastest(rows: Sequence[RunRow]) -> str:
    """Compared by what is known of all: samples a second, or the step where no run tells its samples."""
    rates = [row.samples_per_s for row in rows]
    if all(rate is not None for rate in rates) and len(rows) > 1:
        ordered = sorted(rows, key=lambda row: -(row.samples_per_s or 0.0))
        best, second = ordered[0], ordered[1]
        ratio = (best.samples_per_s or 0.0) / (second.samples_per_s or 1.0)
        said = f"{number_text(best.samples_per_s or 0.0)} samples/s"
        if ratio < _ALIKE:
            return f"{best.name} and {second.name} are equally fast within 2 %: {said}."
        return f"{best.name} is fastest with {said}, {100 * (ratio - 1):.0f} % more than {second.name}."
    steps = sorted((row for row in rows if row.step_ms), key=lambda row: row.step_ms or 0.0)
    if not steps:
        return f"{len(rows)} runs; of none is the time of a step known."
    first, last = steps[0], steps[-1]
    if first is last:
        return f"{first.name}: a step takes {ms_text(first.step_ms or 0.0)} ms."
    return (
        f"A step takes from {ms_text(first.step_ms or 0.0)} ms ({first.name}) to {ms_text(last.step_ms or 0.0)} ms "
        f"({last.name}); not every run tells its samples a step, so throughput is not compared."
    )


# Several runs as tables: the figures of each, and the ledgers of their steps side by side.


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


# Tables of several runs in Markdown.


_MOST = 300  # characters of a cell


def markdown_lines(table: Table) -> list[str]:
    """The lines of a table; numbers stand to the right and as they are, words are escaped."""
    right = tuple(place for place, column in enumerate(table.columns) if column.number)
    cells = [
        [cell.text if place in right else prose(cell.text, _MOST) for place, cell in enumerate(row)]
        for row in table.rows
    ]
    return lines_of(tuple(prose(column.label) for column in table.columns), cells, right)


# runs.html: several runs side by side, self-contained, without a script.


def render_runs_html(rows: Sequence[RunRow], title: str) -> bytes:
    """The page in UTF-8."""
    return write_html(describe(rows, title))


def describe(rows: Sequence[RunRow], title: str) -> Document:
    """Several runs as a document."""
    return Document(
        title=f"{len(rows)} runs",
        heading=spans(title),
        command="traceops analyze",
        verdict=runs_verdict(rows),
        intro=(),
        sections=tuple(sections(rows, linked=True)),
        footer="the same is in runs.json and runs.csv beside this page",
    )


def sections(rows: Sequence[RunRow], *, linked: bool) -> list[Section]:
    """The tables of runs, and those that have no report with the reason."""
    used = [bucket for bucket in BUCKETS if any(row.ledger_ms.of(bucket) for row in rows)]
    made = [Section("runs", "Runs", (TableBlock(figures_table(rows, linked=linked)),))]
    if used:
        terms = Terms(tuple(Term(TERMS[b].label, TERMS[b].definition, b, TERMS[b].colour) for b in used))
        about = soft("Bars are as long as the recorded step, so that steps and what fills them compare by eye.")
        made.append(
            Section("ledger", "Where the steps go", (TableBlock(ledger_table(rows, linked=linked)), about, terms))
        )
    failed = [row for row in rows if row.problem]
    if failed:
        made.append(Section("problems", "Without a report", (problems(failed),)))
    return made


def problems(failed: Sequence[RunRow]) -> Block:
    """Runs without a report, and why."""
    return items([text(bold(row.name), f": {row.problem}") for row in failed], "problems")


FILES = ("runs.html", "runs.json", "runs.csv")


def write_runs(rows: Sequence[RunRow], folder: Path, title: str, formats: tuple[str, ...] = FORMATS) -> list[Path]:
    """Write the chosen formats into `folder`, each file whole or not at all; returns the paths written.

    Raises InputError where the folder cannot be written to.
    """
    contents: dict[str, str | bytes] = {}
    if "html" in formats:
        contents["runs.html"] = render_runs_html(rows, title)
    if "json" in formats:
        contents["runs.json"] = json_text(RunsDocument(runs=tuple(rows)))
    if "csv" in formats:
        contents["runs.csv"] = runs_csv(rows)
    return write_files(contents, set(FILES), folder)


def runs_csv(rows: Sequence[RunRow]) -> str:
    """A row a run, a column a bucket of its ledger, its findings in one cell."""
    return csv_text([_row(row) for row in rows])


def _row(row: RunRow) -> dict[str, object]:
    own = structs.asdict(row)
    del own["ledger_ms"]
    own["findings"] = "; ".join(f"{one.rule} {one.severity} {one.count}" for one in row.findings)
    return {**own, **{f"{bucket}_ms": row.ledger_ms.of(bucket) for bucket in BUCKETS}}


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
