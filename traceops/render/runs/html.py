"""runs.html: several runs side by side, self-contained, without a script."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.measure.ledger import BUCKETS
from traceops.render.document import Block, Document, Section, TableBlock, Term, Terms, bold, items, soft, spans, text
from traceops.render.report.terms import TERMS
from traceops.render.runs.tables import figures_table, ledger_table
from traceops.render.runs.text import runs_verdict
from traceops.render.writers.html import write_html
from traceops.runs.model import RunRow


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
