"""The sentence a report opens with, from hand-made reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from sample_report import typed_report

from traceops.core.facts import Fact
from traceops.core.findings import Check, Confidence, Evidence, Finding, Severity
from traceops.render.report.stragglers import who_text
from traceops.render.report.verdict import not_evaluated, verdict
from traceops.report.model import Report
from traceops.report.rows import WhatIfRow
from traceops.rules.registry import BY_ID
from traceops.rules.straggler_claims import Late


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


def test_first_serious_finding_says_who_loses_what_of_which_step() -> None:
    said = verdict(make_report([make_finding("TO-I002")]))
    assert said.level == "error"
    assert said.sentence == (
        "Rank 1 waits for input for 29.3 ms of each 50.0 ms step; with input in time a step would take 20.7 ms "
        "(59 % less) (TO-I002, error)."
    )


def test_waiting_of_the_others_is_added_and_the_further_findings_counted() -> None:
    findings = [make_finding("TO-I002"), make_finding("TO-I001", "info")]
    said = verdict(make_report(findings, wait_pct=68.0))
    assert said.sentence.endswith("(TO-I002, error). Rank 0 waits 34.0 ms a step in collectives. 1 more finding below.")


def test_a_late_rank_that_no_finding_names_is_named_beside_the_finding() -> None:
    said = verdict(make_report([make_finding("TO-I003", "warning", ranks=(0,))], wait_pct=30.0))
    assert said.level == "warning"
    assert "rank 1 causes 100 % of that" in said.sentence


@pytest.mark.parametrize(("pct", "level"), [(15.0, "info"), (26.5, "warning")])
def test_unexplained_waiting_names_the_rank_that_causes_it(pct: float, level: str) -> None:
    said = verdict(make_report(wait_pct=pct, late={0: 0.1, 1: 0.2, 2: 0.7}))
    assert said.level == level
    assert "rank 2 causes 70 % of that" in said.sentence


def test_ranks_that_wait_for_each_other_by_turns_are_both_told() -> None:
    """'Rank 1 causes 51 % of that' of two healthy ranks on one GPU: it read as if rank 1 were the late one."""
    said = verdict(make_report(wait_pct=50.0, late={0: 0.49, 1: 0.51}))
    assert "for others that are late, by turns: for rank 1 for 51 % and for rank 0 for 49 % of that" in said.sentence
    assert "causes" not in said.sentence


def test_waiting_without_blame_says_so() -> None:
    said = verdict(make_report(wait_pct=50.0, late={0: None, 1: None}))
    assert "which one cannot be said" in said.sentence


def test_of_ranks_that_nothing_may_compare_none_is_named() -> None:
    findings = [make_finding("TO-V006", "info", ranks=())]
    said = verdict(make_report(findings, wait_pct=26.5, late={0: 0.0, 1: 1.0}))
    assert "rank 1" not in said.sentence
    assert "the traces do not tell which one: the ends of collectives do not fit together (TO-V006)" in said.sentence


def test_finding_without_a_clause_speaks_through_its_message() -> None:
    said = verdict(make_report([make_finding("TO-V001", "warning", ranks=(), impact=None)]))
    assert said.sentence == "The message (TO-V001, warning)."


def test_clean_bill_names_what_was_not_evaluated() -> None:
    checks = [
        Check("TO-V001", "clear"),
        Check("TO-V006", "not_evaluated", "why"),
        Check("TO-S001", "not_evaluated"),
        Check("TO-S002", "not_evaluated"),
    ]
    said = verdict(make_report(checks=checks))
    assert said.level == "clear"
    assert said.sentence.endswith("Not evaluated: TO-V006, stragglers.")
    assert not_evaluated([Check("TO-V001", "clear")]) == []


def test_of_a_family_hardly_judged_a_number_is_said_and_no_list() -> None:
    skipped = [Check(f"TO-M00{n}", "not_evaluated") for n in (1, 2, 3)]
    assert not_evaluated([*skipped, Check("TO-M005", "clear")]) == ["3 rules of memory"]
    assert not_evaluated([*skipped[:2], Check("TO-M005", "clear")]) == ["TO-M001", "TO-M002"]


def test_info_findings_do_not_make_a_clear_level() -> None:
    said = verdict(make_report([make_finding("TO-I001", "info")]))
    assert said.level == "info"
    assert "Nothing serious found" in said.sentence and "1 finding of severity info" in said.sentence


def test_a_finding_that_has_a_headline_opens_with_it() -> None:
    exposed = make_finding("TO-O001", "warning", (0, 1), 5.887)
    exposed = dataclasses.replace(exposed, headline="Communication that nothing hides takes 13.3 ms per step")
    said = verdict(make_report([exposed])).sentence
    assert said.startswith("Communication that nothing hides takes 13.3 ms per step (TO-O001, warning).")


def test_impact_beyond_the_step_is_not_called_a_part_of_it() -> None:
    said = verdict(make_report([make_finding("TO-I001", impact=80.0)]))
    assert "80.0 ms a step" in said.sentence


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


def test_a_straggler_is_one_crisp_clause_and_waiting_is_not_said_again() -> None:
    said = verdict(make_report([straggler()], wait_pct=60.0, late=FOUR, checks=[FIRED]))
    assert said.level == "error"
    assert said.sentence == (
        "Rank 2's GPU computes longer: the other ranks wait 22.2 ms per step; at the other ranks' pace a step would "
        "take 29.0 instead of 50.0 ms (42 % less) (TO-S001, error)."
    )


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
    said = verdict(make_report([straggler(cause=cause)], late=FOUR, checks=[FIRED]))
    assert said.sentence.startswith(start)


def test_the_replayed_step_is_what_savings_are_taken_from() -> None:
    report = make_report([straggler(saved=20.957)], late=FOUR, checks=[FIRED])
    report = replace(report, what_if=(what_if((2,), 45.66, 24.703),))
    assert "take 24.7 instead of 45.7 ms (46 % less)" in verdict(report).sentence


def test_late_in_some_steps_names_them() -> None:
    found = straggler(rule="TO-S002", severity="warning", steps=(14,))
    said = verdict(make_report([found], late=FOUR, checks=[CLEAR]))
    assert said.sentence.startswith("Rank 2's GPU computes longer in step 14; ")


def test_stragglers_that_only_help_together_are_one_clause() -> None:
    both = [straggler(0, waits=13.4), straggler(2, cause="input", waits=0.0)]
    extra = make_finding("TO-I002", "info")
    report = make_report([*both, extra], late=FOUR, checks=[FIRED])
    report = replace(report, what_if=(what_if((0, 2), 91.8, 71.3),))
    assert verdict(report).sentence == (
        "Ranks 0 (its GPU computes longer) and 2 (its input comes late) are late: the other 2 ranks wait 20.1 ms of "
        "each 91.8 ms step for them; at the other ranks' pace a step would take 71.3 ms (22 % less) (TO-S001, error). "
        "1 more finding below."
    )


def test_stragglers_without_a_common_prediction_stay_apart() -> None:
    report = make_report([straggler(0), straggler(2)], late=FOUR, checks=[FIRED])
    assert verdict(report).sentence.startswith("Rank 0's GPU") and "1 more finding" in verdict(report).sentence


def test_a_straggler_whose_cure_saves_nothing_is_a_remark() -> None:
    found = straggler(severity="info", cause="host", saved=0.157, waits=14.6, steps=())
    said = verdict(make_report([found], wait_pct=40.0, late=FOUR, checks=[FIRED]))
    assert said.level == "info"
    assert "but at the other ranks' pace a step would be only 0.157 ms shorter (TO-S001, info)" in said.sentence


def test_low_confidence_is_said() -> None:
    found = straggler(severity="info", cause="host", confidence="low")
    said = verdict(make_report([found], late=FOUR, checks=[FIRED]))
    assert "42 % less) (TO-S001, info, low confidence)" in said.sentence


def test_unknown_numbers_are_left_out_of_the_clause() -> None:
    said = verdict(make_report([straggler(waits=None)], steps=False, late=FOUR, checks=[FIRED]))
    assert said.sentence == "Rank 2's GPU computes longer (TO-S001, error)."


@pytest.mark.parametrize("findings", [[], [make_finding("TO-I001", ranks=(0,))]])
def test_waiting_accuses_nobody_where_stragglers_are_clear(findings: list[Finding]) -> None:
    said = verdict(make_report(findings, wait_pct=50.0, late=FOUR, checks=[CLEAR]))
    assert "late" not in said.sentence.replace("launches too late", "") and "rank 2" not in said.sentence.lower()


def test_much_waiting_is_no_clean_bill_though_nobody_is_to_blame() -> None:
    said = verdict(make_report(wait_pct=50.0, late=FOUR, checks=[CLEAR]))
    assert said.level == "info" and "50 % waiting for each other" in said.sentence
    assert "waiting" not in verdict(make_report(wait_pct=15.0, late=FOUR, checks=[CLEAR])).sentence


def test_waiting_is_still_named_where_stragglers_could_not_be_judged() -> None:
    unknown = Check("TO-S001", "not_evaluated", "no step is common to all ranks")
    said = verdict(make_report(wait_pct=50.0, late=FOUR, checks=[unknown]))
    assert said.level == "warning" and "rank 2 causes 100 % of that" in said.sentence


def what_if(ranks: tuple[int, ...], step: float, predicted: float) -> WhatIfRow:
    return WhatIfRow(change="c", ranks=ranks, step_time_ms=step, predicted_step_time_ms=predicted, saved_pct=None)


@pytest.mark.parametrize(
    ("ranks", "count", "text"),
    [
        ((3,), 4, "Rank 3"),
        ((0, 1), 2, "Both ranks"),
        ((0, 2), 4, "Ranks 0 and 2"),
        ((0, 1, 2, 3), 4, "All 4 ranks"),
        (tuple(range(40)), 64, "40 of 64 ranks"),
    ],
)
def test_who_text(ranks: tuple[int, ...], count: int, text: str) -> None:
    assert who_text(ranks, count) == text
