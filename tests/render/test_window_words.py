"""What a report says of a run without steps: of its window, in every text, from whoever makes it."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from shown_texts import texts

import traceops
from traceops.across.agreed_steps import as_one_window
from traceops.answers.answering import answer
from traceops.answers.asked import QUESTIONS, Asked
from traceops.answers.opening import opened
from traceops.answers.text import describe_answer
from traceops.pipeline import conclude
from traceops.pipeline.analyze import analyze
from traceops.render.document import Checks, Drawing, Terms
from traceops.render.report.card import card_of
from traceops.render.report.html import describe, render_html
from traceops.render.report.terminal import print_report
from traceops.rules.registry import BY_ID

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
    assert (
        card.window and "87.9" in card.headline and (card.now_ms, card.fixed_ms) == pytest.approx((161, 102), rel=0.01)
    )


REWRITES = re.compile(r"""\.(?:sub|subn|replace)\(\s*[rf]*["'][^"'\n]*\b(?:steps?|windows?)\b[^"'\n]*["']""", re.I)


def test_no_module_rewrites_what_another_has_said():
    """Words are chosen where a sentence is made: nothing that shows it puts `window` for `step` afterwards."""
    modules = Path(traceops.__file__).parent.rglob("*.py")
    assert [path.name for path in modules if REWRITES.search(path.read_text())] == []
    assert REWRITES.search("said.replace('a step', words)") and REWRITES.search('re.sub(r"\\beach step\\b", to, said)')
