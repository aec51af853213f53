"""The card of hand-made reports: which finding leads, what its cure saves, and what is said without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from changed import replace
from sample_report import typed_report

from traceops.core.facts import Fact
from traceops.core.findings import Check, Confidence, Evidence, Finding, Severity
from traceops.core.units import ms_text
from traceops.render.report.card import card_of, told_first
from traceops.render.report.lead import not_evaluated
from traceops.report.model import Report
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
            "ledger_ms": {"comm_wait": wait_ms, "compute": 20.0},
            "ledger_pct": {"comm_wait": wait_pct, "compute": 40.0},
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
    card = card_of(make_report([make_finding("TO-I002"), make_finding("TO-I001", "info")], wait_pct=68.0))
    assert (card.level, card.rule, card.headline) == ("error", "TO-I002", "The message")
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


def test_clean_bill_names_what_was_not_evaluated() -> None:
    checks = [
        Check("TO-V001", "clear"),
        Check("TO-V006", "not_evaluated", "why"),
        Check("TO-S001", "not_evaluated"),
        Check("TO-S002", "not_evaluated"),
    ]
    card = card_of(make_report(checks=checks))
    assert (card.level, card.rule) == ("clear", None) and card.headline.startswith("No problem found")
    assert not_evaluated(checks) == ["TO-V006", "stragglers"]
    assert not_evaluated([Check("TO-V001", "clear")]) == []


def test_of_a_family_hardly_judged_a_number_is_said_and_no_list() -> None:
    skipped = [Check(f"TO-M00{n}", "not_evaluated") for n in (1, 2, 3)]
    assert not_evaluated([*skipped, Check("TO-M005", "clear")]) == ["3 rules of memory"]
    assert not_evaluated([*skipped[:2], Check("TO-M005", "clear")]) == ["TO-M001", "TO-M002"]


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
        ("host", "Rank 2's host launches late: "),
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
    assert card.headline == "2 of 4 ranks are late, and the others wait for them"
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
    assert (card.headline, card.now_ms, card.fixed_ms) == ("Rank 2's GPU computes longer", None, None)


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
