"""Findings that explain each other, and numbers that are rounded once."""

from __future__ import annotations

import csv
import io
import re
from itertools import permutations

import pytest
from changed import replace
from generated_run import SlowInput, ddp, simulate, write_traces
from measured_runs import program

from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.pipeline.analyze import analyze
from traceops.render.finding_blocks import evidence_lines
from traceops.render.report.card import card_of
from traceops.render.report.html import describe
from traceops.render.writers.csv import findings_csv
from traceops.render.writers.html import write_html
from traceops.rules.explained import EXPLAINS, merge_overlapping
from traceops.rules.registry import BY_ID, RULES


def found(rule, severity="warning", ranks=(), cause=None):
    return BY_ID[rule].finding(
        severity, "high", f"{rule}.", [Evidence(Fact.OTHER, 1, subject="x")], ranks=ranks, cause=cause
    )


def severities(findings):
    return {f.rule: f.severity for f in merge_overlapping(findings)}


def test_a_straggler_explains_its_own_idle_time():
    late = found("TO-S001", "error", (3,), "input")
    idle = found("TO-I001", "warning", (3,))
    merged = {f.rule: f for f in merge_overlapping([idle, late])}
    assert merged["TO-S001"] == late
    assert merged["TO-I001"].severity == "info"
    assert merged["TO-I001"].message == "TO-I001. TO-S001 (rank 3) explains it."
    assert merged["TO-I001"].evidence == idle.evidence


@pytest.mark.parametrize(
    "late",
    [
        found("TO-S001", "error", (3,), "gpu_compute"),  # another cause
        found("TO-S001", "info", (3,), "input"),  # a remark explains nothing
        found("TO-S001", "error", (2,), "input"),  # another rank
        found("TO-S001", "error", (3,), None),
    ],
)
def test_what_does_not_explain_leaves_alone(late):
    assert severities([late, found("TO-I001", "error", (3,))])["TO-I001"] == "error"


def test_idle_time_of_more_ranks_than_the_straggler_stays():
    late = found("TO-S001", "error", (3,), "host")
    assert severities([late, found("TO-I001", "warning", (2, 3))])["TO-I001"] == "warning"
    assert severities([late, found("TO-I003", "warning", (3,))])["TO-I003"] == "info"
    assert severities([late, found("TO-I002", "warning", (3,))])["TO-I002"] == "warning"


def test_a_slow_link_explains_exposed_communication_of_anybody():
    for rule in ("TO-C001", "TO-C002", "TO-O002", "TO-O003"):
        merged = severities([found(rule, "warning", (0, 1)), found("TO-O001", "error", (0, 1, 2, 3))])
        assert merged == {rule: "warning", "TO-O001": "info"}


@pytest.mark.parametrize(
    ("own", "severity"), [("shared_cores", "warning"), ("recompilation", "warning"), ("host", "info")]
)
def test_an_evaluation_of_the_run_explains_no_step_that_is_long_for_a_known_other_reason(own, severity):
    run, step = found("TO-W001", cause="evaluation"), found("TO-T001", cause=own)
    assert severities([run, step])["TO-T001"] == severity


def test_what_the_run_recompiles_explains_a_recorded_step_that_does():
    run, step = found("TO-W001", cause="recompilation"), found("TO-T001", cause="recompilation")
    assert severities([run, step])["TO-T001"] == "info"


@pytest.mark.parametrize(
    ("run_ms", "waits", "severity"), [(600.0, 1, "info"), (600.0, 0, "error"), (300.0, 1, "error")]
)
def test_steps_that_a_rank_fills_with_work_are_not_long_for_want_of_a_core(run_ms, waits, severity):
    """A collector took 86 % of a run, and "meanwhile rank 1 waits for a core" led the report."""
    run = replace(found("TO-W001", "error", (1,), "garbage_collection"), impact_ms=run_ms)
    step = replace(
        found("TO-T001", "error", (0, 1), "shared_cores"),
        impact_ms=770.0,
        evidence=(Evidence(Fact.WAITS_FOR_CORE_BEYOND_TYPICAL, 970.0, "ms", rank=waits),),
    )
    assert severities([run, step])["TO-T001"] == severity


@pytest.mark.parametrize(("run_ms", "severity"), [(24.0, "error"), (60.0, "info")])
def test_late_input_of_most_of_a_run_is_not_explained_by_what_takes_less(run_ms, severity):
    """Late batches took 57 % of a run; an evaluation of 22 % led it, and was said to explain them."""
    run = replace(found("TO-W001", "warning", (0, 1), "evaluation"), impact_ms=run_ms)
    step = replace(found("TO-T001", "error", (0, 1), "input"), impact_ms=72.0)
    assert severities([run, step])["TO-T001"] == severity


def test_late_input_of_the_whole_run_explains_such_steps_before_the_rank_that_had_it_in_the_recorded_ones():
    """16 of 53 steps waited for either rank's batch; that rank 1 was late in two of them "explained" them all."""
    late, run = found("TO-S002", "warning", (1,), "input"), found("TO-W001", "error", (0, 1), "input")
    step = found("TO-T001", "error", (0, 1), "input")
    for order in permutations((late, run, step)):
        told = next(one for one in merge_overlapping(order) if one.rule == "TO-T001")
        assert told.message == "TO-T001. TO-W001 explains it."
    assert "TO-S002 (rank 1) explains it." in merge_overlapping([late, step])[1].message


def test_the_order_of_findings_does_not_matter():
    some = [
        found("TO-C002", "warning", (0, 1)),
        found("TO-C001", "error", (0, 1)),
        found("TO-O001", "error"),
        found("TO-O003", "warning"),
    ]
    results = [severities(order) for order in permutations(some)]
    assert all(result == results[0] for result in results)
    assert results[0]["TO-C002"] == "warning"
    assert results[0]["TO-C001"] == results[0]["TO-O001"] == "info"


def test_the_root_of_a_chain_is_never_turned_into_a_remark():
    """Whatever fires together, something stays that is to be fixed."""
    rules = sorted(r.id for r in {e.rule for e in EXPLAINS} | {r for e in EXPLAINS for r in e.explained})
    for one in rules:
        for other in rules:
            if one != other:
                merged = severities([found(one, "error", (1,), "host"), found(other, "error", (1,), "host")])
                assert "error" in merged.values()


def test_alone_and_none():
    assert merge_overlapping([]) == []
    one = found("TO-O001", "error")
    assert merge_overlapping([one]) == [one]
    assert merge_overlapping([one, one]) == [one, one]


def test_only_rules_that_exist_are_named():
    assert {e.rule for e in EXPLAINS} | {r for e in EXPLAINS for r in e.explained} <= set(RULES)


LOADS_US = 5914.9  # 5.91 ms; rounded to the µs first it is 5.915, and then 5.92


def waiting(tmp_path):
    made = program(ddp, device="cpu", layers=2, steps=3).without_jitter()
    faults = [SlowInput(rank, LOADS_US - 100) for rank in range(2)]
    write_traces(simulate(made, 2, faults), tmp_path)
    report = analyze(tmp_path)
    return report, next(one for one in report.findings if one.rule == "TO-I002")


def test_a_time_is_rounded_once(tmp_path):
    report, found = waiting(tmp_path)
    shown = {
        "message": re.search(r"up to ([\d.]+) ms", found.message),
        "headline": re.search(r"([\d.]+) ms", card_of(report).headline),
    }
    assert {where: told[1] for where, told in shown.items()} == {"message": "5.91", "headline": "5.91"}
    assert f"{found.evidence[0].value:.2f}" == "5.91" and f"{report.ranks[0].idle_input_ms:.2f}" == "5.91"


def test_evidence_is_shown_to_the_microsecond(tmp_path):
    report, found = waiting(tmp_path)
    assert "idle_input 5.915 ms/step" in evidence_lines(found)[0]
    [row] = [row for row in csv.DictReader(io.StringIO(findings_csv(report.findings))) if row["rule"] == "TO-I002"]
    assert "idle_input=5.915 ms/step" in row["evidence"]
    assert b"5.915 ms/step" in write_html(describe(report))


def test_a_share_is_rounded_once(tmp_path):
    report, _ = waiting(tmp_path)
    summary = report.summary
    step = sum(row.typical_step_ms for row in report.ranks) / len(report.ranks)
    for bucket in ("compute", "idle_input"):
        exact = 100 * getattr(summary.ledger_ms, bucket) / step
        assert abs(getattr(summary.ledger_pct, bucket) - exact) < 1e-3
