"""What a reader sees first: the answer, two bars and the aligned steps, and nothing that the findings do not say."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from changed import replace
from html_page import Page
from msgspec import UNSET
from sample_report import sample_report, with_tables

from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, Check, Evidence, Finding, count_checks
from traceops.pipeline.analyze import analyze
from traceops.render.document import AlignedSteps, Answer, Cost, Fold
from traceops.render.report.card import card_of
from traceops.render.report.compute import kernels_sentence
from traceops.render.report.first_screen import aligned_steps, dense_stretches, first_screen
from traceops.render.report.html import describe, render_html
from traceops.render.report.lead import cure_of, lead_finding
from traceops.render.report.step_sections import ranks_table
from traceops.render.report.terminal import describe_summary
from traceops.render.svg.marks import lanes_plot
from traceops.render.svg.plot import Note, Rectangle
from traceops.render.writers.csv import render_csv_files
from traceops.render.writers.terminal import write_terminal
from traceops.report.detail import APART_PCT, alike_ranks
from traceops.report.model import Report
from traceops.report.tables import Tables, TimelineRow

pytestmark = pytest.mark.usefixtures("kept_summaries")
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def slow_loader() -> Report:
    return analyze(DATA / "slow_loader4")


def costs_of(report: Report) -> tuple[Cost, ...]:
    return next(block for block in first_screen(report, card_of(report)) if isinstance(block, Answer)).costs


def test_the_page_opens_with_the_card(slow_loader: Report) -> None:
    card = card_of(slow_loader)
    answer = next(block for block in first_screen(slow_loader, card) if isinstance(block, Answer))
    assert [label for label, _ in answer.lines] == ["Do", "Confidence", "Proof", "Coverage"]
    now, then = answer.costs
    assert (now.text, then.text) == ("53.8 ms", "23.3 ms (57 % less)")
    shown = Page(render_html(slow_loader)).text()
    assert all(one in shown for one in (card.headline, *card.actions, card.proof, "3 of 3 steps"))
    cure = cure_of(slow_loader, slow_loader.findings[0])
    assert cure is not None and card.fixed_ms == cure.then_ms and card.saved_pct == pytest.approx(cure.pct)


def test_of_steps_that_were_not_recorded_no_typical_step_gets_shorter(slow_loader: Report) -> None:
    """An evaluation in steps 31 and 62, of which 3 to 5 were recorded: a step takes as long without it."""
    mean = slow_loader.summary.step_time_ms.median
    assert mean is not None
    run = Finding(
        "TO-W001", "warning", "high", "Steps unlike", "Evaluation takes 37 %.", (Evidence(Fact.CAME, 2, "times"),),
        (0, 1, 2, 3), (31, 62), mean / 2, "evaluation",
    )  # fmt: skip
    report = replace(slow_loader, findings=(run,))
    card = card_of(report)
    assert cure_of(report, run) is None and card.fixed_ms is None and card.rule == run.rule
    recorded = replace_finding(run, steps=slow_loader.run.steps)
    assert cure_of(report, recorded) is not None


def test_the_picture_has_the_culprit_a_victim_and_the_rest_as_one_row(slow_loader: Report) -> None:
    steps = aligned_steps(slow_loader, lead_finding(slow_loader))
    assert steps is not None
    assert [lane.label for lane in steps.lanes] == ["rank 1", "rank 3\nwaits", "ranks 0, 2:\nalike"]
    culprit, victim, rest = steps.lanes
    assert culprit.blamed and culprit.marks[0].text == "Idle: input: 29.6 ms in this step (rank 3: none)"
    assert victim.marks[0].text == "waits 38.2 ms in this step" and not rest.marks
    assert 0 < victim.marks[0].start_ms < victim.marks[0].end_ms <= steps.end_ms
    plot = lanes_plot(steps)
    assert any(isinstance(mark, Note) and "waits 38.2" in mark.text for mark in plot.marks)
    assert {entry.text for entry in plot.legend} >= {"Compute", "Waiting for ranks", "Idle: input"}


def test_a_text_of_the_picture_is_no_longer_than_a_narrow_page(slow_loader: Report) -> None:
    """'Idle: launched late: 25.8 ms in this step (rank 0: none)' began with 'nched late' on a page of 400 px."""
    rows = [
        replace(row, kind="idle_host" if row.kind == "idle_input" else row.kind) for row in slow_loader.tables.timeline
    ]
    steps = aligned_steps(with_tables(slow_loader, timeline=rows), lead_finding(slow_loader))
    assert steps is not None
    assert steps.lanes[0].marks[0].text.startswith("Idle: launched late: ") and "(rank" in steps.lanes[0].marks[0].text
    assert all(len(mark.text) <= 50 for lane in steps.lanes for mark in lane.marks)


def test_another_rule_about_the_same_rank_and_gain_is_no_other_problem(slow_loader: Report) -> None:
    first = slow_loader.findings[0]
    again = replace_finding(first, rule="TO-B001", title="A stage", message="Rank 1 computes longer.")
    other = replace_finding(again, rule="TO-C001", title="A link", ranks=(2,))
    report = replace(slow_loader, findings=(first, again, other))
    heads = [
        "".join(span.text for span in one.summary)
        for one in first_screen(report, card_of(report))
        if isinstance(one, Fold)
    ]
    assert heads[:2] == ["The same, by another rule (1): A stage", "Other findings (1): A link"]


def test_consequences_and_what_was_not_checked_are_folded_and_link_to_the_findings(slow_loader: Report) -> None:
    folds = [block for block in first_screen(slow_loader, card_of(slow_loader)) if isinstance(block, Fold)]
    heads = ["".join(span.text for span in one.summary) for one in folds]
    unjudged = [one for one in slow_loader.checks if one.status == "not_evaluated" and one.unjudged is UNSET]
    assert len(unjudged) > 20
    assert heads[0].startswith("Consequences (1): ")
    assert heads[-1].startswith(f"Not checked ({len(unjudged)} rules)")
    assert not any(one.open for one in folds)
    page = Page(render_html(slow_loader))
    ids = {attributes.get("id") for _, attributes in page.elements}
    links = [a["href"] or "" for a in page.all("a")]
    assert {"#finding-1", "#finding-2", "#lateness", "#idle"} <= set(links)
    assert all(link[1:] in ids for link in links)
    assert page.mismatched == [] and page.open == []
    own = ('{"names":', "// The timeline of a step", "// Tables:")  # nothing on the first screen needs a script
    assert all(text.startswith(own) for text in page.scripts())


def test_the_proof_stands_before_every_section(slow_loader: Report) -> None:
    document = describe(slow_loader)
    assert any(isinstance(block, AlignedSteps) for block in document.intro)
    text = Page(render_html(slow_loader)).text()
    assert text.index("waits 38.2 ms in this step") < text.index("A rank is persistently late")


def test_several_ranks_of_many_are_one_answer() -> None:
    report = sample_report(256)
    late = set(range(1, 256, 4))
    rows = tuple(
        replace(row, late_share=1.0 if row.rank == 1 else 0.0, comm_wait_ms=0.0 if row.rank in late else 30.0,
                idle_input_ms=30.0 if row.rank in late else 0.0)
        for row in report.ranks
    )  # fmt: skip
    found = replace_finding(report.findings[0], ranks=tuple(sorted(late)), cause="input")
    summary = replace(report.summary, ledger_pct=replace(report.summary.ledger_pct, comm_wait=60.0))
    checks = (Check("TO-S001", "clear", "nobody alone"),)
    report = replace(report, ranks=rows, findings=(found,), summary=summary, checks=checks)
    timeline = tuple(
        TimelineRow(step=3, rank=rank, kind=kind, start_ms=0.0, duration_ms=30.0)
        for rank in range(256)
        for kind in ["idle_input" if rank in late else "comm_wait"]
    )  # fmt: skip
    steps = aligned_steps(with_tables(report, timeline=timeline), found)
    assert steps is not None
    assert [lane.label for lane in steps.lanes] == [
        "rank 1 and\n63 alike", "rank 0\nwaits", "rank 2 and\n190 alike",
    ]  # fmt: skip


def test_ranks_are_alike_where_their_longest_step_is(slow_loader: Report) -> None:
    """A rank that waits 93 ms of the step shown was 'alike' one that does not: their mean steps are."""
    rows = tuple(
        TimelineRow(step=4, rank=rank, kind=kind, start_ms=start, duration_ms=ms)
        for rank, kind, start, ms in (
            (0, "compute", 90.0, 70.0), (1, "compute", 0.0, 67.0), (1, "comm_wait", 67.0, 93.0),
        )
    )  # fmt: skip
    steps = aligned_steps(with_tables(slow_loader, timeline=rows), None)
    assert steps is not None
    assert [(lane.label, [mark.text for mark in lane.marks]) for lane in steps.lanes] == [
        ("rank 0", []), ("rank 1", ["waits 93.0 ms in this step"]),
    ]  # fmt: skip


def replace_finding(finding: Finding, **changes: object) -> Finding:
    return replace(finding, **changes)  # type: ignore[arg-type]


def test_what_a_cure_gives_is_a_range_where_no_rule_predicts_it() -> None:
    report = sample_report()
    exposed = Finding(
        "TO-O001",
        "warning",
        "high",
        "t",
        "m",
        (Evidence(Fact.OTHER, 1.0, subject="e"),),
        ranks=(0, 1, 2, 3),
        impact_ms=10.0,
    )
    report = replace(report, findings=(exposed,))
    cure = cure_of(report, exposed)
    assert cure is not None and cure.least_ms == pytest.approx(cure.now_ms - 10.0) and cure.then_ms == cure.now_ms
    assert "at most" in costs_of(report)[1].text
    unknown = replace_finding(exposed, impact_ms=None)
    assert len(costs_of(replace(report, findings=(unknown,)))) == 1


def test_without_workers_that_would_be_enough_late_input_may_stay() -> None:
    """Of 0.94 ms in a loader with workers all was promised, and the trace showed 0.58 ms of it taking the batch."""
    evidence = (Evidence(Fact.STEP, 40.0, "ms"),)
    waits = Finding("TO-I002", "error", "high", "t", "m", evidence, ranks=(0,), impact_ms=10.0, facts={"need": None})
    told = replace_finding(waits, facts={"need": {"rest": 30.0}})
    cure, known = (cure_of(sample_report(), one) for one in (waits, told))
    assert cure is not None and known is not None
    assert (cure.least_ms, cure.then_ms, known.least_ms, known.then_ms) == (30.0, 40.0, None, 30.0)


def test_without_a_finding_the_card_says_what_was_not_checked() -> None:
    report = replace(sample_report(), findings=())
    card = card_of(report)
    assert card.headline.startswith("The ranks wait 30.0 ms per step") and card.rule is None and card.not_checked
    assert len(costs_of(report)) == 1 and costs_of(report)[0].text.endswith(" ms")
    steps = aligned_steps(report, None)
    assert steps is not None and not any(lane.blamed for lane in steps.lanes)


def test_without_a_timeline_there_is_no_picture_and_no_crash() -> None:
    report = replace(sample_report(), tables=Tables())
    assert aligned_steps(report, lead_finding(report)) is None
    assert not any(isinstance(block, AlignedSteps) for block in first_screen(report, card_of(report)))


def test_stretches_are_joined_where_they_are_dense() -> None:
    rows = [TimelineRow(step=1, rank=0, kind="comm_wait", start_ms=at, duration_ms=ms) for at, ms in
            ((10, 5), (16, 4), (60, 2))]  # fmt: skip
    assert dense_stretches(rows, "comm_wait", 100.0) == [(10, 20, 9), (60, 62, 2)]


def test_ranks_are_alike_by_what_their_steps_go_to() -> None:
    kinds = alike_ranks(sample_report(256).ranks)
    assert [len(kind.ranks) for kind in kinds] == [255, 1] and kinds[1].ranks == (1,)
    assert kinds[0].example in kinds[0].ranks and kinds[0].apart_pct == APART_PCT
    assert alike_ranks(()) == ()
    rows = [replace(row, compute_ms=float(5 * row.rank), comm_wait_ms=0.0) for row in sample_report(40).ranks]
    few = alike_ranks(rows, most=4)
    assert len(few) <= 4 and few[0].apart_pct > APART_PCT
    assert sorted(rank for kind in few for rank in kind.ranks) == list(range(40))


def test_a_page_of_1024_ranks_is_small() -> None:
    page = render_html(sample_report(1024, steps=20))
    assert len(page) < 2_000_000


def test_bars_of_a_lane_do_not_leave_the_picture(slow_loader: Report) -> None:
    steps = aligned_steps(slow_loader, lead_finding(slow_loader))
    assert steps is not None
    for mark in lanes_plot(steps).marks:
        if isinstance(mark, Rectangle):
            assert mark.x >= 0 and mark.x + mark.width <= 100.01


@pytest.mark.browser
def test_the_first_screen_in_a_browser(browser: Any, tmp_path: Path, slow_loader: Report) -> None:
    path = tmp_path / "summary.html"
    path.write_bytes(render_html(slow_loader))
    said: list[str] = []
    asked: list[str] = []
    tab = browser.new_context(offline=True, viewport={"width": 1280, "height": 800}).new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    bottom = "document.getElementById('aligned').getBoundingClientRect().bottom"
    assert tab.evaluate(bottom) < 800  # the whole proof is on the first screen
    tab.locator("#definitions").scroll_into_view_if_needed()
    assert (
        tab.evaluate("document.querySelector('nav').getBoundingClientRect().top") < 50
    )  # and the sections stay at hand
    tab.set_viewport_size({"width": 390, "height": 844})
    root = "document.documentElement"
    assert tab.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    assert said == [] and [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.browser
def test_on_paper_a_head_stays_with_its_table(browser: Any, tmp_path: Path, slow_loader: Report) -> None:
    """Chromium leaves a button blank where it repeats a head on the next sheet."""
    path = tmp_path / "a.html"
    path.write_bytes(render_html(slow_loader))
    tab = browser.new_context(offline=True).new_page()
    tab.goto(path.as_uri())
    tab.emulate_media(media="print")
    style = "([what, name]) => getComputedStyle(document.querySelector(what))[name]"
    assert tab.evaluate(style, ["thead .sort", "display"]) == "contents"
    for what in ("thead", "h2", ".part > p.soft"):
        assert tab.evaluate(style, [what, "breakAfter"]) == "avoid", what
    assert tab.evaluate(style, [".plot", "breakInside"]) == "avoid"
    tab.emulate_media(media="screen")
    assert tab.evaluate(style, ["thead .sort", "display"]) != "contents"


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
    return float(shown.replace(",", "").replace("\u202f", "")) == pytest.approx(
        known, abs=0.0051, rel=5e-3
    )  # three digits


def csv_rows(report: Report, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_csv_files(report)[name])))


def waiting_and_transfer_are_one_number(report: Report, page: str, text: str) -> None:
    table = page_ranks(report, page)
    for row, cells in zip(report.ranks, csv_rows(report, "summary.csv"), strict=True):
        shown = table[row.rank]
        on_terminal = terminal_rank(text, row.rank) if len(table) > 1 else None
        for column, key, place in (
            ("Exposed wait ms", "comm_wait_ms", 4),
            ("Exposed transfer ms", "comm_transfer_ms", 5),
        ):
            known = getattr(row, key)
            assert cells[key] == ("" if known is None else str(known))
            assert on_terminal is None or same(on_terminal[place], known)
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
    assert f"{count} not evaluated" in page


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
        shown += [value for value in (found.facts or {}).values() if isinstance(value, float)]
        known = any(value == pytest.approx(found.impact_ms, abs=1e-5) for value in shown)
        assert known or f"{found.impact_ms:.2f}" in found.message, found.rule


def how_fast_kernels_are_is_said_once(report: Report, page: str, text: str) -> None:
    serious = any(one.severity != "info" for one in report.findings)
    if said := kernels_sentence(report):
        assert page.count(said) == bool(report.steps)
        assert text.count(said) == bool(report.steps and not serious)


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
