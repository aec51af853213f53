"""The card: which finding leads, what fixing it saves, and what stands there without one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from changed import replace
from sample_report import sample_report, typed_report

from traceops.core.facts import Fact
from traceops.core.findings import Check, Confidence, Evidence, Finding, Severity
from traceops.core.units import ms_text
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import LONGEST, actions_of, card_lines, card_of, judged_line, shortened, told_first
from traceops.render.report.terminal import print_report
from traceops.report.model import Card, Report
from traceops.report.rows import WhatIfRow
from traceops.rules.registry import BY_ID
from traceops.rules.stragglers_claims import Late


def make_report(
    findings: Sequence[Finding] = (),
    *,
    wait_pct: float | None = 0.0,
    late: dict[int, float | None] | None = None,
    checks: Sequence[Check] = (),
    steps: bool = True,
) -> Report:
    late = {0: 0.0, 1: 1.0} if late is None else late
    rows: list[dict[str, Any]] = [
        {"rank": r, "late_share": share, "comm_wait_ms": None if wait_pct is None else wait_pct / 2}
        for r, share in late.items()
    ]
    durations = [{"rank": r, "step": 3, "duration_ms": 50.0} for r in late] if steps else []
    wait_ms = None if wait_pct is None else wait_pct / 2
    return typed_report(
        run={},
        summary={
            "step_time_ms": {"median": 50.0 if steps else None},
            "ledger_ms": {"comm_wait": wait_ms, "compute": 5.0},
            "ledger_pct": {"comm_wait": wait_pct, "compute": 10.0},
        },
        ranks=rows,
        steps=durations,
        collectives=[],
        findings=list(findings),
        checks=list(checks),
    )


def make_finding(
    rule: str, severity: Severity = "error", ranks: tuple[int, ...] = (1,), impact: float | None = 29.31
) -> Finding:
    evidence = (Evidence(Fact.OTHER, 1.0, rank=ranks[0] if ranks else None, subject="m"),)
    return Finding(rule, severity, "high", "Title", "The message.", evidence, ranks, impact_ms=impact)


def test_of_the_first_serious_finding_the_card_has_the_step_and_what_it_takes_cured() -> None:
    card = card_of(make_report([make_finding("TO-I003"), make_finding("TO-I001", "info")], wait_pct=68.0))
    assert (card.level, card.rule, card.headline) == ("error", "TO-I003", "The message")
    assert (card.now_ms, card.fixed_ms, card.saved_pct) == pytest.approx((50.0, 20.69, 58.62))


@pytest.mark.parametrize(("pct", "level"), [(15.0, "info"), (26.5, "warning")])
def test_unexplained_waiting_names_the_rank_that_causes_it(pct: float, level: str) -> None:
    card = card_of(make_report(wait_pct=pct, late={0: 0.1, 1: 0.2, 2: 0.7}))
    assert card.level == level
    assert card.headline == f"The ranks wait {ms_text(pct / 2)} ms per step, mostly for rank 2"


@pytest.mark.parametrize("late", [{0: 0.49, 1: 0.51}, {0: None, 1: None}])
def test_of_ranks_that_wait_by_turns_or_for_nobody_known_none_is_named(late: dict[int, float | None]) -> None:
    """'Rank 1 causes 51 % of that' of two healthy ranks on one GPU: it read as if rank 1 were the late one."""
    assert card_of(make_report(wait_pct=50.0, late=late)).headline == "The ranks wait 25.0 ms per step for each other"


def test_of_ranks_that_nothing_may_compare_none_is_named() -> None:
    findings = [make_finding("TO-V006", "info", ranks=())]
    card = card_of(make_report(findings, wait_pct=26.5, late={0: 0.0, 1: 1.0}))
    assert card.headline.endswith("ms per step for each other") and "rank 1" not in card.headline


def test_finding_without_ranks_or_impact_promises_nothing() -> None:
    card = card_of(make_report([make_finding("TO-V001", "warning", ranks=(), impact=None)]))
    assert (card.level, card.headline, card.fixed_ms, card.saved_pct) == ("warning", "The message", None, None)


def test_checks_that_were_not_evaluated_leave_a_clean_bill() -> None:
    checks = [
        Check("TO-V001", "clear"),
        Check("TO-V006", "not_evaluated", "why"),
        Check("TO-S001", "not_evaluated"),
        Check("TO-S002", "not_evaluated"),
    ]
    card = card_of(make_report(checks=checks))
    assert (card.level, card.rule) == ("clear", None) and card.headline.startswith("No problem found")


def test_a_finding_that_has_a_headline_opens_with_it() -> None:
    exposed = make_finding("TO-O001", "warning", (0, 1), 5.887)
    exposed = replace(exposed, headline="Communication that nothing hides takes 13.3 ms per step")
    assert card_of(make_report([exposed])).headline == "Communication that nothing hides takes 13.3 ms per step"


def test_an_impact_beyond_the_step_promises_nothing() -> None:
    assert card_of(make_report([make_finding("TO-I001", impact=80.0)])).fixed_ms is None


def straggler(
    rank: int = 2,
    *,
    rule: str = "TO-S001",
    severity: Severity = "error",
    cause: str = "gpu_compute",
    saved: float = 21.0,
    waits: float | None = 22.2,
    steps: tuple[int, ...] = (3, 4, 5),
    confidence: Confidence = "high",
) -> Finding:
    evidence = (
        Evidence(Fact.SAVED_AT_PEERS_PACE, saved, "ms/step", 5.0, rank),
        Evidence(Fact.WAITING_FOR_IT, waits, "ms/step and rank", rank=rank),
    )
    some = steps if rule == "TO-S002" else ()
    waited = {"waiting_on_average" if some else "waiting": waits}
    claim = Late(rank=rank, does=cause, steps=some, others=3, way="pace", step=50.0, then=50 - saved, saved=saved,
                 pct=2 * saved, **waited)  # fmt: skip
    return BY_ID[rule].finding(
        severity, confidence, claim, evidence, ranks=(rank,), steps=steps, impact_ms=saved, cause=cause
    )


FOUR: dict[int, float | None] = {0: 0.0, 1: 0.0, 2: 1.0, 3: 0.0}
FIRED, CLEAR = (Check("TO-S001", "fired", "why"), Check("TO-S001", "clear", "why"))


def test_of_a_straggler_waiting_and_saving_are_told() -> None:
    card = card_of(make_report([straggler()], wait_pct=60.0, late=FOUR, checks=[FIRED]))
    assert card.headline == "Rank 2's GPU computes longer: the other ranks wait 22.2 ms per step"
    assert (card.level, card.rule, card.confidence) == ("error", "TO-S001", "high")
    assert (card.now_ms, card.fixed_ms, card.saved_pct) == pytest.approx((50.0, 29.0, 42.0))


@pytest.mark.parametrize(
    ("cause", "start"),
    [
        ("host", "Rank 2's host launches work late: "),
        ("input", "Rank 2's input comes late: "),
        ("copy", "Rank 2's memory copies take longer: "),
        ("unknown", "Rank 2 is late: "),
    ],
)
def test_a_stragglers_cause_is_named(cause: str, start: str) -> None:
    card = card_of(make_report([straggler(cause=cause)], late=FOUR, checks=[FIRED]))
    assert card.headline.startswith(start)


def test_the_replayed_step_is_what_savings_are_taken_from() -> None:
    report = make_report([straggler(saved=20.957)], late=FOUR, checks=[FIRED])
    card = card_of(replace(report, what_if=(what_if((2,), 45.66, 24.703),)))
    assert (card.now_ms, card.fixed_ms, card.saved_pct) == pytest.approx((45.66, 24.703, 45.9), abs=0.01)


def test_late_in_some_steps_names_them() -> None:
    found = straggler(rule="TO-S002", severity="warning", steps=(14,))
    card = card_of(make_report([found], late=FOUR, checks=[CLEAR]))
    assert card.headline == "Rank 2's GPU computes longer in step 14"


def test_stragglers_that_only_help_together_are_told_together() -> None:
    both = [straggler(0, waits=13.4), straggler(2, cause="input", waits=0.0)]
    report = make_report([*both, make_finding("TO-I002", "info")], late=FOUR, checks=[FIRED])
    card = card_of(replace(report, what_if=(what_if((0, 2), 91.8, 71.3),)))
    assert card.headline.startswith("2 of 4 ranks are late")
    assert (card.now_ms, card.fixed_ms, card.saved_pct) == pytest.approx((91.8, 71.3, 22.3), abs=0.05)


def test_stragglers_without_a_common_prediction_stay_apart() -> None:
    report = make_report([straggler(0), straggler(2)], late=FOUR, checks=[FIRED])
    assert card_of(report).headline.startswith("Rank 0's GPU") and told_first(report) == [report.findings[0]]


def test_a_straggler_whose_cure_saves_nothing_is_a_remark() -> None:
    found = straggler(severity="info", cause="host", saved=0.157, waits=14.6, steps=())
    card = card_of(make_report([found], wait_pct=40.0, late=FOUR, checks=[FIRED]))
    assert (card.level, card.rule, card.fixed_ms) == ("info", "TO-S001", None)


def test_low_confidence_is_said() -> None:
    found = straggler(severity="info", cause="host", confidence="low")
    card = card_of(make_report([found], late=FOUR, checks=[FIRED]))
    assert (card.level, card.confidence, card.saved_pct) == ("info", "low", pytest.approx(42))


def test_unknown_numbers_are_left_out() -> None:
    card = card_of(make_report([straggler(waits=None)], steps=False, late=FOUR, checks=[FIRED]))
    assert card.headline.startswith("Rank 2's GPU computes longer")
    assert (card.now_ms, card.fixed_ms) == (None, None)


@pytest.mark.parametrize("findings", [[], [make_finding("TO-I001", ranks=(0,))]])
def test_waiting_accuses_nobody_where_stragglers_are_clear(findings: list[Finding]) -> None:
    card = card_of(make_report(findings, wait_pct=50.0, late=FOUR, checks=[CLEAR]))
    assert "late" not in card.headline and "rank 2" not in card.headline.lower()


@pytest.mark.parametrize(("pct", "level"), [(50.0, "info"), (15.0, "clear")])
def test_much_waiting_is_no_clean_bill_though_nobody_is_to_blame(pct: float, level: str) -> None:
    card = card_of(make_report(wait_pct=pct, late=FOUR, checks=[CLEAR]))
    assert card.level == level and card.headline.startswith("No problem found")


def test_waiting_is_still_named_where_stragglers_could_not_be_judged() -> None:
    unknown = Check("TO-S001", "not_evaluated", "no step is common to all ranks")
    card = card_of(make_report(wait_pct=50.0, late=FOUR, checks=[unknown]))
    assert card.level == "warning" and card.headline.endswith("mostly for rank 2")


def what_if(ranks: tuple[int, ...], step: float, predicted: float) -> WhatIfRow:
    return WhatIfRow(change="c", ranks=ranks, step_time_ms=step, predicted_step_time_ms=predicted, saved_pct=None)


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
    assert len(lines) == 2 and lines[0].plain == "● 83 % of the step is compute; how fast it could be is unknown."


@pytest.mark.parametrize(("efficiency", "level"), [(12.0, "info"), (75.0, "clear")])
def test_slow_kernels_are_no_clean_bill(efficiency: float, level: str) -> None:
    report = analyze(DATA / "compute")
    assert report.compute
    summary, compute = replace(report.summary, unjudged=()), replace(report.compute, efficiency_pct=efficiency)
    report = replace(report, findings=(), summary=summary, compute=compute)
    card = card_of(report)
    assert card.level == level and card.headline.startswith("No problem found") is (level == "clear")
    assert f"{efficiency:.0f} % of attainable speed" in card.headline


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
    assert judged_line(replace(card, judged_pct=None)) == "Not checked: a, b, c and 2 more"


def test_the_card_says_what_to_do_before_it_says_why() -> None:
    assert actions_of("The GPU is too hot. Clean its fans. It slows down.") == ("Clean its fans",)
    assert actions_of("The log shows no failure.") == ("The log shows no failure",)  # the only thing to say
    for rule in BY_ID.values():
        assert not actions_of(rule.advice) or actions_of(rule.advice)[0].split()[0] not in ("The", "A", "It", "Each")


def test_lines_that_are_broken_are_indented_below_their_first() -> None:
    card = Card(level="error", headline="It waits", rule="TO-S001", proof="p" * 9, not_checked=("hangs",))
    assert all(line.indent[1] > 0 for line in card_lines(card))


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
        (f"Too little is known: it may be so: {'it comes late ' * 9}", "Too little is known: it may be so"),
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
