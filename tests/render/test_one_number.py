"""Terminal, page, CSV and report.json say one number of one thing, on every run in tests/data."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from html_page import Page

from traceops.core.findings import SEVERITIES, count_checks
from traceops.pipeline.analyze import analyze
from traceops.render.report.compute import kernels_sentence
from traceops.render.report.html import render_html
from traceops.render.report.lead import not_evaluated
from traceops.render.report.rank_tables import ranks_table
from traceops.render.report.terminal import describe_summary
from traceops.render.writers.csv import render_csv_files
from traceops.render.writers.terminal import write_terminal
from traceops.report.model import Report

pytestmark = pytest.mark.usefixtures("kept_summaries")

DATA = Path(__file__).parents[1] / "data"
RUNS = sorted(
    {path.parent.parent if path.parts[-3] != "data" and "runs" in path.parts else path.parent
     for path in DATA.rglob("*.json.gz") if path.name.endswith(".json.gz")}
)  # fmt: skip


def terminal_text(report: Report) -> str:
    out = io.StringIO()
    write_terminal(describe_summary(report, Path("summary.html"), verbose=True), out)
    return out.getvalue()


def terminal_rank(text: str, rank: int) -> list[str]:
    """The cells of a rank's row on the terminal."""
    table = text[text.index("rank  ") :]
    return next(line.split() for line in table.splitlines()[1:] if line.split()[:1] == [str(rank)])


def page_ranks(report: Report, page: str) -> dict[int, dict[str, str]]:
    """The table of ranks in summary.html: by rank the text of each cell, by the column's label."""
    table = ranks_table(report, [row.rank for row in report.ranks])
    labels = [column.label for column in table.columns]
    rows = [dict(zip(labels, (cell.text for cell in row), strict=True)) for row in table.rows]
    assert all(cell in page for row in rows for cell in row.values())
    return {int(row["Rank"]): row for row in rows}


def same(shown: str, known: float | None) -> bool:
    """Whether a page or a terminal shows this number, rounded as it rounds."""
    if known is None:
        return shown == "–"
    if shown == "<0.01":
        return 0 < known < 0.01
    return float(shown.replace(",", "")) == pytest.approx(known, abs=0.0051, rel=5e-3)  # three digits


def csv_rows(report: Report, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_csv_files(report)[name])))


def waiting_and_transfer_are_one_number(report: Report, page: str, text: str) -> None:
    table = page_ranks(report, page)
    for row, cells in zip(report.ranks, csv_rows(report, "summary.csv"), strict=True):
        shown = table[row.rank]
        on_terminal = terminal_rank(text, row.rank)
        for column, key, place in (
            ("Exposed wait ms", "comm_wait_ms", 4),
            ("Exposed transfer ms", "comm_transfer_ms", 5),
        ):
            known = getattr(row, key)
            assert cells[key] == ("" if known is None else str(known))
            assert same(on_terminal[place], known)
            assert same(shown[column], known)


def the_step_is_one_number(report: Report, page: str, text: str) -> None:
    table = page_ranks(report, page)
    typical = report.summary.step_time_ms.typical
    for row, cells in zip(report.ranks, csv_rows(report, "summary.csv"), strict=True):
        assert cells["typical_step_ms"] == ("" if row.typical_step_ms is None else str(row.typical_step_ms))
        column = next(label for label in table[row.rank] if label in ("Step ms", "Window ms"))
        assert same(table[row.rank][column], row.typical_step_ms)
        if row.typical_step_ms is not None and row.compute_ms is not None:
            buckets = [value for key, value in cells.items() if key in LEDGER and value]
            assert sum(map(float, buckets)) == pytest.approx(row.typical_step_ms, abs=1e-4)
    if typical is not None:
        middle = sorted(row.typical_step_ms for row in report.ranks if row.typical_step_ms is not None)
        half = len(middle) // 2
        median = middle[half] if len(middle) % 2 else (middle[half - 1] + middle[half]) / 2
        assert typical == pytest.approx(median, abs=1e-5)
        shown = f"step {typical:.2f} ms" if report.summary.steps_found_by != "window" else f"window of {typical:.2f} ms"
        assert shown in text


LEDGER = {
    f"{bucket}_ms"
    for bucket in (
        "compute", "comm_transfer", "comm_wait", "comm_unmatched", "memory", "idle_input", "idle_sync", "idle_host",
        "idle_dependency", "idle_unknown", "idle_gap",
    )
}  # fmt: skip


def the_rules_that_could_not_be_evaluated_are_one_number(report: Report, page: str, text: str) -> None:
    count = count_checks(report.checks).not_evaluated
    said = re.search(r"(\d+) checks? needs? data that is not here", text)
    assert (int(said[1]) if said else 0) == count
    assert f"{count} not evaluated" in page
    named = not_evaluated(report.checks)
    assert bool(named) is bool(count)
    assert "regressions" not in named  # no data of one run could decide these


def findings_are_in_the_order_of_what_their_cure_saves(report: Report, page: str, text: str) -> None:
    order = [(-SEVERITIES.index(one.severity), -(one.impact_ms or 0.0)) for one in report.findings]
    assert order == sorted(order)
    listed = [row["rule"] for row in csv_rows(report, "findings.csv")]
    assert listed == [one.rule for one in report.findings]


def what_a_finding_costs_is_among_its_numbers(report: Report, page: str, text: str) -> None:
    for found in report.findings:
        if not found.impact_ms:
            continue
        shown = [float(one.value) for one in found.evidence if isinstance(one.value, (int, float))]
        known = any(value == pytest.approx(found.impact_ms, abs=1e-5) for value in shown)
        assert known or f"{found.impact_ms:.2f}" in found.message, found.rule


def how_fast_kernels_are_is_said_once(report: Report, page: str, text: str) -> None:
    serious = any(one.severity != "info" for one in report.findings)
    assert page.count(kernels_sentence(report)) == bool(report.steps)
    assert text.count(kernels_sentence(report)) == bool(report.steps and not serious)


CHECKS = (
    waiting_and_transfer_are_one_number,
    the_step_is_one_number,
    the_rules_that_could_not_be_evaluated_are_one_number,
    findings_are_in_the_order_of_what_their_cure_saves,
    what_a_finding_costs_is_among_its_numbers,
    how_fast_kernels_are_is_said_once,
)


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.relative_to(DATA).as_posix())
def test_all_outputs_of_a_run_agree(folder: Path) -> None:
    report = analyze(str(folder))
    page, text = Page(render_html(report, plotlyjs="cdn")).text(), terminal_text(report)
    for check in CHECKS:
        check(report, page, text)
