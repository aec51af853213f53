"""Tables of a page: sorted, searched and saved by one script, and whole without it; what tells their rows apart."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from changed import replace
from html_page import Page

from traceops.pipeline.analyze import analyze
from traceops.render.cells import Cell, Column, build_table, name, number, size, sizes_apart
from traceops.render.document import Document, Headline, Section, TableBlock, spans, text
from traceops.render.files import write_report
from traceops.render.report.cross_sections import collectives_table
from traceops.render.report.html import describe, render_html
from traceops.render.report.step_sections import kernels_table, operators_table
from traceops.render.writers.html import write_html
from traceops.report.model import Report
from traceops.report.tables import read_tables

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def ddp() -> Report:
    return analyze(str(DATA / "ddp4"), cache=False, jobs=1)


def test_collectives_of_almost_one_size_are_told_apart(ddp: Report) -> None:
    table = collectives_table(ddp)
    labels = [column.label for column in table.columns]
    rows = [dict(zip(labels, [cell.text for cell in row], strict=True)) for row in table.rows]
    assert len({row["Size"] for row in rows}) == len(rows) == 6
    assert {row["Role"] for row in rows} == {"data parallel"}
    assert {row["Which in a step"] for row in rows} >= {"1 of 14", "2 of 14", "3, 6, 9, 12 of 14"}
    assert sorted(place for row in ddp.collectives for place in row.places) == list(range(1, 15))


def test_sizes_have_as_many_digits_as_they_need() -> None:
    cell = sizes_apart([33_603_584, 33_587_200, None])
    assert [cell(n).text for n in (33_603_584, 33_587_200, None)] == ["33.60 MB", "33.59 MB", "–"]
    assert cell(33_603_584).title == "33,603,584 bytes"
    assert sizes_apart([33_603_584, 8])(33_603_584).text == size(33_603_584).text


def test_kernels_say_what_they_cost_on_each_rank_and_operators_their_shapes(ddp: Report) -> None:
    labels = [column.label for column in kernels_table(ddp).columns]
    assert labels[-3:] == ["Most on rank", "Most ms", "Least ms"]
    assert all(row.least_rank_total_ms <= row.worst_rank_total_ms for row in ddp.tables.kernels)
    gloo = analyze(str(DATA / "straggler_gloo2"), cache=False, jobs=1)
    assert ddp.inventory.operators
    operators = operators_table(ddp)
    assert operators is not None
    shares = [column.label for column in operators.columns if "share" in column.label]
    assert shares == ["Device share %", "Host share %"]
    assert kernels_table(gloo).rows


def test_each_column_of_numbers_has_a_unit_or_is_a_count(ddp: Report) -> None:
    units = ("ms", "µs", "(us)", "%", "pctg", "GB/s")
    counts = {
        "Count",
        "Count of",
        "Rank",
        "Stream",
        "Stage",
        "Step",
        "Size",
        "Value",
        "Fires from",
        "Other ranks",
        "rank",
    }
    counts |= {"Most on rank", "On rank", "Last rank", "In step", "Calls per step", "stream", "Ranks", "Groups"}
    counts |= {"Slowest rank", "Last comes rank", "idle_time_ratio"}
    tables = [block.table for block in describe(ddp).all_blocks if isinstance(block, TableBlock)]
    missing = {
        f"{table.caption}: {column.label}"
        for table in tables
        for column in table.columns
        if column.number and not any(u in f"{column.label} {column.unit}" for u in units) and column.label not in counts
    }
    assert missing == set()


def test_links_to_csv_files_are_there_where_the_files_are(ddp: Report, tmp_path: Path) -> None:
    write_report(ddp, tmp_path, ("html", "csv"))
    links = {a["href"] for a in Page((tmp_path / "summary.html").read_bytes()).all("a") if ".csv" in (a["href"] or "")}
    assert {"./kernels.csv", "./collectives.csv", "./summary.csv", "./steps.csv"} <= links
    assert all((tmp_path / str(link)).is_file() for link in links)
    assert not [a for a in Page(render_html(ddp)).all("a") if ".csv" in (a["href"] or "")]


def long_name(text: str, long: bool) -> Cell:
    return name(text + "x" * 80) if long else Cell(text)


def hostile() -> Document:
    rows = [
        {"kernel": f"k{at}<b>", "ms": ms, "bytes": nbytes}
        for at, (ms, nbytes) in enumerate([(9.5, 900), (None, 33_603_584), (1234.5, None), (10.25, 2_000)])
    ]
    rows += [{"kernel": "=HYPERLINK(1)", "ms": 3.0, "bytes": 5}] + [
        {"kernel": f"filler {n}", "ms": 0.5, "bytes": 1} for n in range(6)
    ]
    columns = [
        Column("kernel", "Kernel", number=False, make=lambda row: long_name(row["kernel"], row["ms"] == 9.5)),
        Column("ms", "Time", unit="ms", make=lambda row: number(row["ms"])),
        Column("bytes", "Size", make=lambda row: size(row["bytes"])),
    ]
    table = build_table("Rows, odd", columns, rows, note="Of a test")
    section = Section("t", "Tables", (TableBlock(table),))
    return Document("t", spans("t"), "test", Headline("info", "x"), (text("x"),), (section,), "end")


def test_a_page_without_tables_has_no_script() -> None:
    empty = replace(hostile(), sections=())
    assert Page(write_html(empty)).scripts() == []
    assert len(Page(write_html(hostile())).scripts()) == 1


@pytest.mark.browser
def test_a_browser_sorts_searches_and_saves(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(write_html(hostile()))
    tab = browser.new_context(offline=True, accept_downloads=True).new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(path.as_uri())
    heads = tab.locator("thead th")
    cells = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[{}].textContent.trim())"
    assert heads.all_inner_texts()[1].startswith("Time ms")
    whole = tab.evaluate(cells.format(1))
    heads.nth(1).locator("button").press("Enter")
    assert tab.evaluate(cells.format(1))[:3] + tab.evaluate(cells.format(1))[-1:] == ["1234", "10.25", "9.50", "–"]
    assert heads.nth(1).get_attribute("aria-sort") == "descending"
    heads.nth(1).locator("button").click()
    assert tab.evaluate(cells.format(1))[-3:] == ["10.25", "1234", "–"]
    heads.nth(1).locator("button").click()
    assert tab.evaluate(cells.format(1)) == whole
    heads.nth(2).locator("button").click()
    assert tab.evaluate(cells.format(2))[:3] == ["33.6 MB", "2.0 kB", "900 B"]
    tab.locator("input[type=search]").fill("k <b>")
    assert tab.locator("[role=status]").inner_text() == "4 of 11 rows"
    tab.locator("input[type=search]").fill("")
    tab.locator("th", has_text="Kernel").locator("button").click()
    with tab.expect_download() as got:
        tab.get_by_role("button", name="Save as CSV: Rows, odd").click()
    assert got.value.suggested_filename == "rows-odd.csv"
    saved = list(csv.reader(Path(got.value.path()).read_text().splitlines()))
    assert saved[0] == ["Kernel", "Time ms", "Size"]
    by_name = {row[0]: row[1:] for row in saved[1:]}
    assert by_name["'=HYPERLINK(1)"] == ["3.00", "5"]
    assert by_name["k1<b>"] == ["", "33603584"]
    assert by_name["k0<b>" + "x" * 80] == ["9.50", "900"]
    assert said == []


def test_a_table_of_an_earlier_version_is_still_read(ddp: Report, tmp_path: Path) -> None:
    write_report(ddp, tmp_path, ("csv",))
    path = tmp_path / "kernels.csv"
    assert read_tables(tmp_path)[0].kernels == ddp.tables.kernels
    lines = list(csv.reader(path.read_text().splitlines()))
    before = lines[0].index("least_rank_total_ms")  # this column and those after it came later
    assert lines[0][before:][:2] == ["least_rank_total_ms", "grid"]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(line[:before] for line in lines)
    read, problems = read_tables(tmp_path)
    assert problems == () and len(read.kernels) == len(lines) - 1
    assert read.kernels[0].least_rank_total_ms is None and read.kernels[0].grid == ""
