"""Sentences about the replay, the clocks, the path and the waiting, per step and of a window."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from changed import replace
from sample_report import sample_report, with_tables
from shown_texts import texts

import traceops
from traceops.across.agreed_steps import as_one_window
from traceops.answers.answering import answer
from traceops.answers.asked import QUESTIONS, Asked
from traceops.answers.opening import opened
from traceops.cli.show import describe_answer
from traceops.core.findings import Check
from traceops.pipeline import conclude
from traceops.pipeline.analyze import analyze
from traceops.render.document import Checks, Drawing, Terms
from traceops.render.report.card import card_of
from traceops.render.report.cross_sections import (
    arrivals_table,
    clocks_sentence,
    lateness_table,
    path_sentence,
    path_table,
    replay_sentence,
    timeline_table,
    waiting_sentence,
)
from traceops.render.report.html import describe, render_html
from traceops.render.report.terminal import print_report
from traceops.report.summary import Clocks, Replay
from traceops.report.tables import PathRow, Tables
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


def test_path_and_timeline_tables_keep_unknown_cells_empty() -> None:
    path, timeline = path_table(sample_report()), timeline_table(sample_report(), [0, 1])
    assert path is not None and timeline is not None
    assert [row[3].text for row in path.rows] == ["Compute", "Transfer", "Idle: launched late"]
    assert path.rows[1][-1].text == ""
    assert len(timeline.rows) == 2 and timeline.note == "2 more in timeline.csv."
    assert timeline.rows[1][2].text == "50.00"


def test_no_tables_without_rows() -> None:
    bare = replace(sample_report(), tables=Tables())
    assert lateness_table(bare) is arrivals_table(bare) is path_table(bare) is timeline_table(bare, []) is None


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
