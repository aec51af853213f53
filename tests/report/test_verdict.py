"""The sentence a report opens with, from hand-made reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from traceops.model import Check, Evidence, Finding, Report, Severity
from traceops.report.verdict import not_evaluated, verdict, who_text


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
    return Report(
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
    evidence = (Evidence("m", 1.0, rank=ranks[0] if ranks else None),)
    return Finding(rule, severity, "high", "Title", "The message.", evidence, ranks, impact_ms=impact)


def test_first_serious_finding_says_who_loses_what_of_which_step() -> None:
    said = verdict(make_report([make_finding("TO-I002")]))
    assert said.level == "error"
    assert said.sentence == "Rank 1 waits for input for 29.3 ms of each 50.0 ms step (TO-I002, error)."


def test_waiting_of_the_others_is_added_and_the_further_findings_counted() -> None:
    findings = [make_finding("TO-I002"), make_finding("TO-I001", "info")]
    said = verdict(make_report(findings, wait_pct=68.0))
    assert said.sentence.endswith("(TO-I002, error). Rank 0 waits 34.0 ms a step. 1 more finding below.")


def test_a_late_rank_that_no_finding_names_is_named_beside_the_finding() -> None:
    said = verdict(make_report([make_finding("TO-I003", "warning", ranks=(0,))], wait_pct=30.0))
    assert said.level == "warning"
    assert "rank 1 causes 100 % of that" in said.sentence


@pytest.mark.parametrize(("pct", "level"), [(15.0, "info"), (26.5, "warning")])
def test_unexplained_waiting_names_the_rank_that_causes_it(pct: float, level: str) -> None:
    said = verdict(make_report(wait_pct=pct, late={0: 0.1, 1: 0.2, 2: 0.7}))
    assert said.level == level
    assert "rank 2 causes 70 % of that" in said.sentence


def test_waiting_without_blame_says_so() -> None:
    said = verdict(make_report(wait_pct=50.0, late={0: None, 1: None}))
    assert "which one cannot be said" in said.sentence


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


def test_info_findings_do_not_make_a_clear_level() -> None:
    said = verdict(make_report([make_finding("TO-I001", "info")]))
    assert said.level == "info"
    assert "Nothing serious found" in said.sentence and "1 finding of severity info" in said.sentence


def test_no_steps_and_unknown_wait_is_not_a_clean_bill() -> None:
    said = verdict(make_report(steps=False, wait_pct=None))
    assert said.level == "info"
    assert "no complete step" in said.sentence


def test_impact_beyond_the_step_is_not_called_a_part_of_it() -> None:
    said = verdict(make_report([make_finding("TO-I001", impact=80.0)]))
    assert "80.0 ms a step" in said.sentence


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
