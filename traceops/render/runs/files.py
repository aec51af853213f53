"""Several runs side by side: runs.html, runs.json, runs.csv, and the table on a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TextIO
from urllib.parse import quote

from msgspec.structs import asdict, replace

from traceops.core.claims import phrases
from traceops.core.documents import json_text
from traceops.core.files import FORMATS
from traceops.core.findings import SEVERITIES, Severity
from traceops.core.units import number_text
from traceops.measure.ledger import BUCKETS
from traceops.render import document
from traceops.render.cells import NOT_KNOWN, Cell, Column, Table, number, size, table_of
from traceops.render.files import write_files
from traceops.render.report.terms import TERMS
from traceops.render.writers.csv import csv_text
from traceops.render.writers.html import write_html
from traceops.render.writers.markdown import prose
from traceops.render.writers.markdown import table as lines_of
from traceops.render.writers.terminal import MARK, write_terminal
from traceops.runs.row import RunRow, RunsDocument
from traceops.words.catalogue import texts

_ALIKE = 1.02  # runs that differ by less have no order: one capture each says no more


def runs_verdict(rows: Sequence[RunRow]) -> document.Headline:
    """The run with the worst finding, which run gets most done, and how many could not be analysed."""
    if not (usable := [row for row in rows if not row.problem]):
        return document.Headline("error", phrases("runs", "runs", "verdict", none=True, count=len(rows))[0])
    ill = [row for row in sickest_first(usable) if _badness(row)]
    failed = len(rows) - len(usable)
    said = phrases(
        "runs", "runs", "verdict", count=len(rows), failed=failed or None, fastest=_fastest(usable),
        ill=len(ill) if len(ill) > 1 else None, of_ill=len(rows), sick=ill[0].name if ill else "",
        verdict=ill[0].verdict if ill else "",
    )  # fmt: skip
    level = worst_severity(ill[0]) if ill else "info"
    return document.Headline("warning" if failed and level == "info" else level, " ".join(said))


def worst_severity(row: RunRow) -> Severity:
    """Of its findings; 'info' without any."""
    return max((one.severity for one in row.findings), key=SEVERITIES.index, default="info")


def _badness(row: RunRow) -> int:
    return SEVERITIES.index(worst_severity(row))


def sickest_first(rows: Sequence[RunRow]) -> list[RunRow]:
    """Runs by their worst finding, in their order where that is alike."""
    return sorted(rows, key=lambda row: -_badness(row))


def _fastest(rows: Sequence[RunRow]) -> str:
    """Compared by what is known of all: samples per second, or the step where not every run has its samples."""
    facts: dict[str, Any] = {"unknown": True}
    steps = sorted((row for row in rows if row.step_ms), key=lambda row: row.step_ms or 0.0)
    if len(rows) > 1 and all(row.samples_per_s is not None for row in rows):
        best, second, *_ = sorted(rows, key=lambda row: -(row.samples_per_s or 0.0))
        ratio = (best.samples_per_s or 0.0) / (second.samples_per_s or 1.0)
        facts = {"best": best.name, "rate": number_text(best.samples_per_s or 0.0), "more_pct": 100 * (ratio - 1)}
        facts["second" if ratio < _ALIKE else "slower"] = second.name
    elif steps:
        first, last = steps[0], steps[-1]
        facts = {"first": first.name, "last": last.name, "least": first.step_ms, "most": last.step_ms}
        facts |= {"only": first.name} if first is last else {}
    return phrases("runs", "runs", "fastest", count=len(rows), **facts)[0]


# Several runs as tables: the figures of each, and the ledgers of their steps side by side.

PAGE = "summary.html"
_MOST_RULES = 4
_GRADIENT = "linear-gradient(to right, {})"


def figures_table(rows: Sequence[RunRow], *, linked: bool) -> Table:
    """A row a run that has a report. `linked`: its name leads to the report's page."""
    shown = sickest_first([row for row in rows if not row.problem])
    cells = {
        "name": lambda row: name_cell(row, linked),
        "step_ms": _step_cell,
        "compute": _compute_cell,
        "collective_bytes": lambda row: size(row.collective_bytes),
        "peak_memory_bytes": lambda row: size(row.peak_memory_bytes),
        "findings": lambda row: Cell(
            findings_text(row), ", ".join(f"{one.rule} {one.severity}" for one in row.findings)
        ),
    }
    note = texts("runs", "runs")["profiled"] if any(row.step_profiled for row in shown) else ""
    alone = () if any((row.hosts or 1) > 1 for row in shown) else ("hosts",)
    return table_of("runs", shown, make=cells, without=alone, note=note)


def ledger_table(rows: Sequence[RunRow], *, linked: bool) -> Table:
    """Where the recorded step of each run goes: a bar as long as its step, and the buckets in ms."""
    shown = sickest_first([row for row in rows if row.recorded_step_ms])
    longest = max((row.recorded_step_ms or 0.0 for row in shown), default=0.0)

    def column(bucket: str) -> Column:
        term = TERMS[bucket]
        return Column(bucket, term.label, term.definition, make=lambda row: number(row.ledger_ms.of(bucket)))

    columns = [column(bucket) for bucket in BUCKETS if any(row.ledger_ms.of(bucket) for row in shown)]
    cells = {"name": lambda row: name_cell(row, linked), "bar": lambda row: _bar(row, longest)}
    return table_of("run_ledgers", shown, make=cells, columns=columns)


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


def _step_cell(row: RunRow) -> Cell:
    known = number(row.step_ms)
    return replace(known, text=f"{known.text}*") if row.step_ms is not None and row.step_profiled else known


def _compute_cell(row: RunRow) -> Cell:
    compute, step = row.ledger_ms.compute, row.recorded_step_ms
    return NOT_KNOWN if compute is None or not step else Cell(f"{100 * compute / step:.1f}")


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
    sentence = ", ".join(
        f"{TERMS[bucket].label} {number_text(own)} ms" for bucket in BUCKETS if (own := row.ledger_ms.of(bucket))
    )
    fill = _GRADIENT.format(", ".join([*stops, f"transparent {at:.2f}%"])) if stops else ""
    return Cell("", sentence, "bar ledger", colour=fill)


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


def describe(rows: Sequence[RunRow], title: str) -> document.Document:
    """Several runs as a document."""
    return document.Document(
        title=f"{len(rows)} runs", heading=document.spans(title), command="traceops analyze",
        verdict=runs_verdict(rows), intro=(), sections=tuple(sections(rows, linked=True)),
        footer="the same is in runs.json and runs.csv beside this page",
    )  # fmt: skip


def sections(rows: Sequence[RunRow], *, linked: bool) -> list[document.Section]:
    """The tables of runs, and those that have no report with the reason."""
    used = [bucket for bucket in BUCKETS if any(row.ledger_ms.of(bucket) for row in rows)]
    made = [document.Section("runs", "Runs", (document.TableBlock(figures_table(rows, linked=linked)),))]
    if used:
        terms = document.Terms(
            tuple(document.Term(TERMS[b].label, TERMS[b].definition, b, TERMS[b].colour) for b in used)
        )
        words, ledgers = texts("runs", "runs"), document.TableBlock(ledger_table(rows, linked=linked))
        made.append(document.Section("ledger", words["steps"], (ledgers, document.soft(words["ledgers"]), terms)))
    if failed := [row for row in rows if row.problem]:
        made.append(document.Section("problems", "Without a report", (problems(failed),)))
    return made


def problems(failed: Sequence[RunRow]) -> document.Block:
    """Runs without a report, and why."""
    return document.items([document.text(document.bold(row.name), f": {row.problem}") for row in failed], "problems")


FILES = ("runs.html", "runs.json", "runs.csv")


def write_runs(rows: Sequence[RunRow], folder: Path, title: str, formats: tuple[str, ...] = FORMATS) -> list[Path]:
    """Write the chosen formats into `folder`, each file whole or not at all; returns the paths written. Raises
    InputError where the folder cannot be written to."""
    contents: dict[str, str | bytes] = {}
    if "html" in formats:
        contents["runs.html"] = write_html(describe(rows, title))
    if "json" in formats:
        contents["runs.json"] = json_text(RunsDocument(runs=tuple(rows)))
    if "csv" in formats:
        # One row per run, one column per bucket of its ledger, its findings in one cell.
        lines = []
        for row in rows:
            own = asdict(row) | {f"{bucket}_ms": row.ledger_ms.of(bucket) for bucket in BUCKETS}
            own["findings"] = "; ".join(f"{one.rule} {one.severity} {one.count}" for one in row.findings)
            lines.append({key: value for key, value in own.items() if key != "ledger_ms"})
        contents["runs.csv"] = csv_text(lines)
    return write_files(contents, set(FILES), folder)


def print_runs(rows: Sequence[RunRow], file: TextIO, written: Path) -> None:
    """The table, runs without a report, and where all of it lies."""
    said = runs_verdict(rows)
    blocks: list[document.Block] = [
        document.text(f"{MARK[said.level]} {said.sentence}", look=f"level-{said.level}", indent=(0, 2))
    ]
    if any(not row.problem for row in rows):
        blocks.append(document.TableBlock(figures_table(rows, linked=False)))
    for row in rows:
        if row.problem:
            failed = f"{MARK['error']} {row.name}: {row.problem}"
            blocks.append(document.text(failed, look="level-error", indent=(0, 2)))
    write_terminal([*blocks, document.Code((f"Runs: {written}",), look="")], file)
