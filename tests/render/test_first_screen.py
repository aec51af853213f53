"""What a reader sees first: the answer, two bars and the aligned steps, and nothing that the findings do not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from changed import replace
from html_page import Page
from msgspec import UNSET
from sample_report import sample_report, with_tables

from traceops.core.facts import Fact
from traceops.core.findings import Check, Evidence, Finding
from traceops.pipeline.analyze import analyze
from traceops.render.document import AlignedSteps, Answer, Cost, Fold
from traceops.render.report.card import card_of
from traceops.render.report.first_screen import aligned_steps, dense_stretches, first_screen
from traceops.render.report.html import describe, render_html
from traceops.render.report.lead import cure_of, lead_finding
from traceops.render.svg.marks import lanes_plot
from traceops.render.svg.plot import Note, Rectangle
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
    for what in ("thead", "h2", "section > p.soft"):
        assert tab.evaluate(style, [what, "breakAfter"]) == "avoid", what
    assert tab.evaluate(style, [".plot", "breakInside"]) == "avoid"
    tab.emulate_media(media="screen")
    assert tab.evaluate(style, ["thead .sort", "display"]) != "contents"
