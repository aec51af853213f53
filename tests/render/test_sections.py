"""What sections of a report say, on the page and on a terminal: their tables, and why something is not known."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from changed import replace
from html_page import Page
from sample_report import sample_report, with_tables
from shown_texts import texts

import traceops
from traceops.across.agreed_steps import as_one_window
from traceops.across.send_receive import NO_END
from traceops.answers.answering import answer
from traceops.answers.asked import QUESTIONS, Asked
from traceops.answers.opening import open_run, opened
from traceops.cli.show import describe_answer
from traceops.core.findings import Check
from traceops.pipeline import conclude
from traceops.pipeline.analyze import analyze
from traceops.render.cells import Cell, Column, build_table, name, number, size, sizes_apart
from traceops.render.document import Checks, Document, Drawing, Headline, Section, TableBlock, Terms, spans, text
from traceops.render.files import write_report
from traceops.render.report.card import card_of
from traceops.render.report.coverage import NO_REPLAY, to_match, unjudged_sentence
from traceops.render.report.cross_sections import (
    arrivals_table,
    clocks_sentence,
    collectives_table,
    lateness_table,
    path_sentence,
    path_table,
    replay_sentence,
    waiting_sentence,
)
from traceops.render.report.html import describe, render_html
from traceops.render.report.step_sections import kernels_table, operators_table
from traceops.render.report.terminal import describe_summary, print_report
from traceops.render.report.whole_run import whole_run_sentence
from traceops.render.writers.html import write_html
from traceops.report.model import Report
from traceops.report.step_times import EndedRow, WholeRunRows
from traceops.report.summary import Clocks, Replay
from traceops.report.tables import PathRow, Tables, read_tables
from traceops.rules.registry import BY_ID


def with_checks(*checks: Check):
    return replace(sample_report(), checks=tuple(checks))


def test_path_names_the_rank_whose_work_it_runs_through() -> None:
    assert path_sentence(sample_report()) == (
        "78 % of the path runs through rank 1's computation, 10 % through transfer, "
        "8 % through rank 0's host, which launches late, 4 % through rank 1's kernels that wait for an event or "
        "another stream."
    )


def test_path_over_many_ranks_names_none() -> None:
    report = sample_report(50)
    piece = report.tables.critical_path[0]
    report = with_tables(report, critical_path=tuple(replace(piece, rank=rank) for rank in range(50)))
    assert path_sentence(report).startswith("95 % of the path runs through computation on 50 ranks")


def test_own_work_that_no_bucket_holds_is_the_hosts() -> None:
    report = sample_report()
    piece = PathRow(
        step=3, rank=3, kind="idle_host", what="idle_host", stream=7, start_ms=0.0, duration_ms=10.0,
        spent_ms={"compute": 2.0, "idle_host": 5.0},
    )  # fmt: skip
    report = with_tables(report, critical_path=(piece,))
    assert path_sentence(report).startswith("80 % of the path runs through rank 3's host")


def test_replay_says_its_error_and_the_slowdown() -> None:
    report = sample_report()
    assert "steps 3–5 is within 0.27 %" in replay_sentence(report)
    assert "S = 1.67" in replay_sentence(report)
    unfit = replace(report, findings=(replace(report.findings[0], rule="TO-V006"),))
    assert "S =" not in replay_sentence(unfit) and "cross-rank numbers are unreliable" in replay_sentence(unfit)
    doubtful = Replay(error_pct=7.0, straggler_slowdown=1.004, steps=(3,))
    report = replace(report, summary=replace(report.summary, replay=doubtful))
    assert "with care" in replay_sentence(report) and "next to nothing" in replay_sentence(report)
    late = replace(report.findings[0], rule="TO-S001")
    assert "S =" not in replay_sentence(replace(report, findings=(late,)))  # half of the ranks are late
    report = replace(report, summary=replace(report.summary, replay=None))
    assert replay_sentence(report) == ""


def test_clocks_say_their_residual_or_that_nothing_aligns_them() -> None:
    report = sample_report()
    assert clocks_sentence(report) == "Clocks agree within 9.33 µs (p95 over 42 collectives)."
    none = Clocks(anchors=0, residual_p50_us=None, residual_p95_us=None)
    report = replace(report, summary=replace(report.summary, clocks=none))
    assert "as the traces have them" in clocks_sentence(report)
    assert clocks_sentence(sample_report(1)) == ""


@pytest.mark.parametrize(
    ("status", "start"), [("clear", "No straggler: "), ("not_evaluated", "Not evaluated: "), ("fired", "")]
)
def test_waiting_says_why_nobody_is_blamed(status, start) -> None:
    said = waiting_sentence(with_checks(Check("TO-S001", status, "the reason")))
    assert said == (f"{start}the reason." if start else "")


def test_waiting_in_some_steps_only_is_not_called_no_straggler() -> None:
    checks = (Check("TO-S001", "clear", "the reason"), Check("TO-S002", "fired", "late"))
    assert waiting_sentence(with_checks(*checks)) == "No rank is late in most steps: the reason."


def test_lateness_table_has_the_worst_rank_first_and_only_causes_that_occur() -> None:
    table = lateness_table(sample_report(20))
    assert table is not None and len(table.rows) == 8 and table.note == "12 more in lateness.csv."
    assert [column.label for column in table.columns][:4] == ["Rank", "Others wait ms", "GPU ms", "Unknown ms"]
    assert [cell.text for cell in table.rows[0]][:3] == ["1", "24.00", "19.00"]


def test_path_table_keeps_unknown_cells_empty() -> None:
    path = path_table(sample_report())
    assert path is not None
    assert [row[3].text for row in path.rows] == ["Compute", "Transfer", "Idle: launched late"]
    assert path.rows[1][-1].text == ""


def test_no_tables_without_rows() -> None:
    bare = replace(sample_report(), tables=Tables())
    assert lateness_table(bare) is arrivals_table(bare) is path_table(bare) is None


DATA = Path(__file__).parents[1] / "data"
# Times of one step; 'steps 3 to 5', 'no steps' and 'out of step' are none.
OF_A_STEP = re.compile(
    r"(?i)\b(a|each|the|this|per|typical|longest|median|worst|recorded) step\b|/step\b|% of step\b|\bstep (ms|ledger)\b"
)
# Said of steps on purpose: what a rule is called and what to do about it, and the help of the commands.
ON_PURPOSE = {text for rule in BY_ID.values() for text in (rule.title, rule.advice)}

OF_ALL_RUNS = (Checks, Drawing, Terms)  # the words of rules and of terms are the same for every run


@pytest.fixture(scope="module")
def report():
    """A run whose ranks are one window each, though its traces mark steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conclude, "with_agreed_steps", lambda ranks, world: [as_one_window(own) for own in ranks])
        return analyze(str(DATA / "slow_loader4"))


def of_steps(value: Any) -> set[str]:
    """The texts that speak of a step."""
    return {
        said
        for said in texts(value, OF_ALL_RUNS)
        if OF_A_STEP.search(said) and not any(one in said for one in ON_PURPOSE)
    }


def test_everything_that_a_report_says_of_a_window_says_so(report):
    shown = io.StringIO()
    print_report(report, shown, Path("r"), verbose=True)
    assert "where the window goes" in shown.getvalue()
    page = describe(report)
    assert of_steps([report.findings, report.checks, page.sections, page.intro, card_of(report).headline]) == set()
    assert re.search(r"<li[^>]*>costs <b>[\d.]+ ms in the window</b>", render_html(report).decode())


def test_answers_too(report):
    found = opened(report)
    answers = [answer(found, Asked(question.name, rule="TO-I002")) for question in QUESTIONS]
    of_answers = of_steps([describe_answer(one) for one in answers])
    assert {said for said in of_answers if not said.startswith("It fires when")} == set()


def test_the_headline_has_what_the_finding_measured_and_not_what_its_cure_saves(report):
    """It read the unit `ms/step` where a window's is `ms`, and so told 59.3 ms beside a finding of 87.93 ms."""
    card = card_of(report)
    assert card.window and "87.9" in card.headline
    assert (card.now_ms, card.fixed_ms, card.fixed_least_ms) == pytest.approx((161, 161, 102), rel=0.01)


REWRITES = re.compile(r"""\.(?:sub|subn|replace)\(\s*[rf]*["'][^"'\n]*\b(?:steps?|windows?)\b[^"'\n]*["']""", re.I)


def test_no_module_rewrites_what_another_has_said():
    """Words are chosen where a sentence is made: nothing that shows it puts `window` for `step` afterwards."""
    modules = Path(traceops.__file__).parent.rglob("*.py")
    assert [path.name for path in modules if REWRITES.search(path.read_text())] == []
    assert REWRITES.search("said.replace('a step', words)") and REWRITES.search('re.sub(r"\\beach step\\b", to, said)')


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


def told(report, tmp_path):
    return [
        plain
        for block in describe_summary(report, tmp_path, verbose=True)
        if (plain := getattr(block, "plain", "")).lower().startswith(("no what-if", "what if"))
    ]


def one_rank(tmp_path, world):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(DATA / "ddp4" / "rank_0.pt.trace.json.gz", run)
    (run / "run.json").write_text(json.dumps({"world_size": world, "ranks": [{"rank": 0}]}))
    return run


def test_one_trace_of_many(tmp_path):
    """The table was missing without a word."""
    run = one_rank(tmp_path, 4)
    report = analyze(run)
    assert report.summary.no_replay == "other_ranks_missing" and not report.what_if
    assert told(report, tmp_path) == [f"No what-if: {NO_REPLAY['other_ranks_missing']}."]
    assert answer(open_run(run), Asked("what-if")).no_replay == "other_ranks_missing"


def test_a_run_whose_steps_are_replayed_says_what_they_show(tmp_path):
    report = analyze(DATA / "ddp4")
    assert report.summary.no_replay is None and report.what_if and not told(report, tmp_path)
    small = tuple(replace(row, saved_pct=0.2) for row in report.what_if)
    assert told(replace(report, what_if=small), tmp_path) == [
        "What if: no change that was replayed saves 1 % of the step."
    ]


@pytest.mark.parametrize("why", [*NO_REPLAY])
def test_a_reason_has_one_line_at_most_in_terminal_and_page(why, tmp_path):
    report = analyze(DATA / "ddp4")
    report = replace(report, what_if=(), summary=replace(report.summary, replay=None, no_replay=why))
    lines = told(report, tmp_path)  # one rank's summary shows no comparison of ranks
    assert not lines if why == "one_rank" else NO_REPLAY[why] in lines[0] and len(lines[0]) < 120
    page = describe(report)
    [section] = [one for one in page.sections if one.id == "what-if"]
    assert NO_REPLAY[why] in section.blocks[0].plain


def test_a_replay_that_misses_the_recorded_steps_is_no_change_that_saves_nothing(tmp_path):
    """It was said that no change saves 1 %, of steps that nobody could replay."""
    report = analyze(DATA / "pipeline_middle_gloo3")
    assert report.summary.replay is not None and not report.what_if
    [line] = told(report, tmp_path)
    assert line.startswith("No what-if: the replay of the measured steps is off by up to ")


@pytest.mark.parametrize("reason", [NO_END, "its process group is not known"])
def test_of_gloo_nothing_is_advised_that_was_done(reason, tmp_path):
    """It was advised to record CPU activity too, of a trace that holds nothing else, and to run what had run."""
    report = analyze(DATA / "pipeline_middle_gloo3")
    matching = replace(report.summary.matching, unmatched={reason: 4})
    summary = replace(report.summary, replay=None, no_replay="nothing_matched", matching=matching)
    [line] = told(replace(report, summary=summary), tmp_path)
    assert line == f"No what-if: no communication is matched across ranks ({reason}). {to_match(report, reason)}."
    assert "gloo's events" in line


def test_that_ranks_made_different_numbers_of_steps_is_said_of_the_whole_run():
    report = analyze(DATA / "ddp4")
    rows = WholeRunRows(
        steps=29, typical_steps=29, typical_ms=127.0, ended_after=EndedRow(least=30, most=40, first=(2,))
    )
    assert whole_run_sentence(rows, report).endswith(
        " Ranks made different numbers of steps: rank 2 30, others up to 40."
    )


def test_where_nothing_is_launched_nothing_is_launched_late(tmp_path):
    """'29 % of the window: idle: launched late' of a program on a CPU."""
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": ts, "dur": 700, "pid": 1, "tid": 1}
        for ts in range(0, 5000, 1000)
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows}))
    said = unjudged_sentence(analyze(tmp_path))
    assert "100 % of the window: 74 % is compute, and how fast it could be is unknown. The largest other" in said
    assert "time without operators (26 % of the window), because without GPU activity, time between" in said
    assert "launched" not in said
