"""hang.html and the section on a hang in summary.html, as their readers take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from html_page import TABLES, TABLES_HASH, Page
from msgspec import structs
from sample_hang import HOSTILE, dead_with_log, many, mismatch, nobody_waits, skipped, two_roots
from sample_report import sample_report

from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.rule import Verdict
from traceops.hangs.model import Diagnosis
from traceops.render.hang.html import render_hang_html
from traceops.render.report.card import LONGEST, card_of
from traceops.render.report.html import render_html
from traceops.report.hang_text import hang_sentence
from traceops.rules.explained import checks
from traceops.rules.registry import BY_ID

ALL = (skipped(), two_roots(), mismatch(), dead_with_log(), nobody_waits(), nobody_waits(4, 0), many())


def page(diagnosis: Diagnosis) -> Page:
    findings = [
        BY_ID[root.rule].finding(
            "error",
            root.confidence,
            root.message,
            [Evidence(Fact.CLUE, value, subject=what) for what, value in root.evidence],
            ranks=root.ranks,
        )
        for root in diagnosis.roots
    ]
    checked = checks([Verdict(found.rule, (found,)) for found in findings])
    return Page(render_hang_html(diagnosis, findings, [check for check in checked if check.rule.startswith("TO-H")]))


@pytest.mark.parametrize("diagnosis", [*ALL, skipped(text=HOSTILE)])
def test_pages_nest_and_ask_for_nothing(diagnosis: Diagnosis) -> None:
    shown = page(diagnosis)
    assert shown.mismatched == [] and shown.open == []
    assert shown.scripts() == [TABLES] and len(shown.all("script")) == 1 and shown.all("img") == []
    assert all((a.get("href") or "")[:1] in ("#", "d") for a in (*shown.all("a"), *shown.all("link")))
    policy = next(a["content"] for a in shown.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and f"default-src 'none'; script-src 'sha256-{TABLES_HASH}';" in policy
    assert hang_sentence(diagnosis).replace("\x1b", "\ufffd") in shown.text()
    assert all(a.get("scope") in ("col", "row") for a in shown.all("th"))


def test_every_link_has_its_section() -> None:
    shown = page(skipped())
    ids = [attributes.get("id") for _, attributes in shown.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert all((a["href"] or "")[1:] in ids for a in shown.all("a"))
    assert [a["id"] for a in shown.all("section")] == ["waits", "findings", "ranks", "stacks", "read", "checks"]


def test_every_cause_is_said_with_evidence_and_the_graph_has_a_table() -> None:
    shown = page(two_roots())
    assert [a["data-rule"] for a in shown.all("article")] == ["TO-H004", "TO-H001"]
    text = shown.text()
    assert "Rank 5 never entered all_reduce #31 of replicate_1; ranks 0–1, 4, 8–9, 12–13 wait for it." in text
    assert "137 (SIGKILL)" in text
    assert len(shown.all("svg")) == 2 and all(a.get("aria-label") for a in shown.all("svg"))
    assert "Who waits for whom" in text and "Because" in text


def test_stacks_of_the_cause_and_problems_are_there() -> None:
    text = page(skipped()).text()
    assert "sleep (lib.py:9)" in text and "main (train.py:120)" in text
    assert "evidence/dump_x: it is empty" in text
    assert "No step ended for 42 s (limit 30 s) and nothing moved" in text


def test_what_came_from_a_file_stays_text() -> None:
    shown = page(skipped(text=HOSTILE))
    assert not any("onerror" in attributes for _, attributes in shown.elements)
    assert shown.text().count(HOSTILE.replace("\x1b", "\ufffd")) > 5 and "\x1b" not in shown.text()


def test_512_ranks_stay_a_small_page() -> None:
    findings = render_hang_html(many(), [], [])
    assert len(findings) < 120_000
    assert "448" in Page(findings).text()


def test_without_a_hang_it_says_what_was_read() -> None:
    text = page(nobody_waits()).text()
    assert "These files show no rank waiting for another one." in text
    assert "flight-recorder dumps of ranks 0–3 (4 of 4)" in text


def test_ranks_of_which_nothing_is_known_are_named() -> None:
    assert page(dead_with_log()).text().count("Nothing is known of ranks 0–2.") == 2


def test_summary_leads_with_the_hang_and_keeps_the_rest() -> None:
    report = structs.replace(sample_report(), hang=two_roots())
    card = card_of(report)
    assert card.level == "error" and card.headline.startswith("Rank 14 died") and len(card.headline) <= LONGEST
    shown = Page(render_html(report, plotlyjs="cdn"))
    assert shown.mismatched == []
    assert [a["id"] for a in shown.all("section")][:2] == ["hang", "findings"]
    assert card.headline in shown.text()
    assert "Rank 5 never entered all_reduce #31" in shown.text()
    assert len([a for a in shown.all("svg") if a.get("role") == "img"]) == 2


def test_summary_with_evidence_but_no_cause_keeps_its_own_verdict() -> None:
    report = structs.replace(sample_report(), hang=nobody_waits())
    assert card_of(report) == card_of(sample_report())
    assert "No rank waits for another one." in Page(render_html(report, plotlyjs="cdn")).text()


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1400])
def test_page_fits_and_says_nothing_in_a_browser(browser: Any, tmp_path: Path, width: int) -> None:
    said: list[str] = []
    tab = browser.new_context(offline=True, viewport={"width": width, "height": 900}).new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    for number, diagnosis in enumerate((skipped(text=HOSTILE), two_roots(), many())):
        path = tmp_path / f"hang_{number}.html"
        path.write_bytes(render_hang_html(diagnosis, [], []))
        tab.goto(path.as_uri())
        assert not tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert tab.locator("svg.waits:visible").count() == 1
        inside = "b => { const g = b.parentNode.querySelector('rect').getBBox(), t = b.getBBox();"
        inside += " return t.x >= g.x && t.x + t.width <= g.x + g.width && t.y + t.height <= g.y + g.height }"
        for text in tab.locator("svg.waits:visible .node text").element_handles():
            assert text.evaluate(inside), text.text_content()
    assert said == []
