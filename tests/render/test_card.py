"""The card: for every recorded run one short headline, numbers that agree, and a terminal's output of a screen."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from changed import replace
from sample_report import sample_report

from traceops.pipeline.analyze import analyze
from traceops.render.report.card import LONGEST, actions_of, card_lines, card_of, shortened
from traceops.render.report.terminal import print_report
from traceops.report.model import Card, Report

pytestmark = pytest.mark.usefixtures("kept_summaries")
DATA = Path(__file__).parents[1] / "data"
RUNS = sorted({path.parent for path in DATA.rglob("*trace.json*")} - {DATA / "hostile"})
MOST_LINES = 25


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.relative_to(DATA)))
def test_every_run_has_a_card_and_a_screen_of_text(run: Path) -> None:
    report = analyze(run)
    card = card_of(report)
    assert 0 < len(card.headline) <= LONGEST and not card.headline.endswith(".")
    assert "(" not in card.headline and "TO-" not in card.headline
    assert len(card.actions) <= 2 and (card.rule is None) is (card.confidence is None)
    if card.fixed_ms is not None:
        assert card.now_ms is not None and card.saved_pct is not None
        best = card.fixed_ms if card.fixed_least_ms is None else card.fixed_least_ms
        assert card.saved_pct == pytest.approx(100 * (card.now_ms - best) / card.now_ms)
    lines = printed(report)
    assert len(lines) <= MOST_LINES and any(card.headline[:40] in line for line in lines)
    assert not any("Not judged" in line or "could not be evaluated" in line for line in lines)


def test_a_healthy_run_is_two_lines() -> None:
    lines = card_lines(card_of(analyze(DATA / "copies" / "to_host_ahead")))
    assert len(lines) == 2 and lines[0].plain == "● No problem found: 83 % of the step is compute."


def test_of_a_late_rank_with_bars() -> None:
    card = card_of(analyze(DATA / "slow_loader4"))
    assert (card.level, card.rule, card.confidence, card.reason) == ("error", "TO-S001", "high", "3 of 3 steps")
    lines = [line.plain for line in card_lines(card)]
    assert lines[1].endswith("now      Fix it: 23.3 ms (57 % less)")
    assert lines[2].endswith("fixed    Confidence: high (3 of 3 steps)") and lines[1].index("now") == lines[2].index(
        "fixed"
    )
    assert lines[-1].startswith("Proof: dataloader_next 30.2 ms on rank 1")


def test_what_is_shown_of_much_that_was_not_checked_is_short() -> None:
    card = Card(level="clear", headline="No problem found", judged_pct=97.4, not_checked=("a", "b", "c", "d", "e"))
    assert card_lines(card)[1].plain == "Judged 97 % of the step · not checked: a, b, c and 2 more"


def test_verbose_adds_tables_and_evidence() -> None:
    assert len(printed(sample_report(), verbose=True)) > len(printed(sample_report()))


def test_without_steps_nothing_is_judged() -> None:
    assert card_of(replace(sample_report(), findings=(), steps=())).judged_pct is None


@pytest.mark.parametrize(
    ("sentence", "short"),
    [
        ("Rank 1 is late. It waits.", "Rank 1 is late"),
        ("3 of 4 ranks (1–3) have no trace (TO-V001).", "3 of 4 ranks have no trace"),
        ("A step takes 2.5 ms.", "A step takes 2.5 ms"),
        (f"Rank 0 computes longer, {'and waits ' * 12}", "Rank 0 computes longer"),
        ("x" * 200, f"{'x' * 89}…"),
    ],
)
def test_a_sentence_is_cut_where_it_ends(sentence: str, short: str) -> None:
    assert shortened(sentence) == short


def test_actions_are_the_first_two_sentences() -> None:
    assert actions_of("Pin memory. Use more workers. Then look.") == ("Pin memory", "Use more workers")
    assert actions_of("") == ()


def printed(report: Report, *, verbose: bool = False) -> list[str]:
    out = io.StringIO()
    print_report(report, out, Path("reports/x/summary.html"), verbose=verbose)
    return out.getvalue().splitlines()
