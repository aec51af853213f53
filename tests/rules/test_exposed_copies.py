"""TO-I004 on real traces of one H200: what is copied, what of it is exposed, and what its cure saves as measured."""

from pathlib import Path

import pytest
from changed import replace

from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.rules.explained import merge_overlapping
from traceops.rules.idle_claims import BlockedOnDevice
from traceops.rules.registry import BY_ID

COPIES = Path(__file__).parents[1] / "data" / "copies"


@pytest.fixture(scope="module")
def reports():
    return {path.name: analyze(path) for path in sorted(COPIES.iterdir())}


def found(report, rule="TO-I004"):
    return [one for one in report.findings if one.rule == rule]


def value(finding, metric):
    return next(one.value for one in finding.evidence if one.metric == metric)


# What the same program took with its cure, measured without a profiler: benchmarks/copies.
@pytest.mark.parametrize(
    ("name", "cause", "severity", "cured_ms", "within"),
    [
        ("pageable", "pageable_input", "error", 5.979, 0.05),
        ("same_stream", "pinned_input", "error", 7.855, 0.05),
        ("to_host", "output", "error", 3.614, 0.12),
    ],
)
def test_the_step_that_is_promised_is_the_one_that_the_cure_gave(reports, name, cause, severity, cured_ms, within):
    (one,) = found(reports[name])
    assert (one.cause, one.severity, one.ranks) == (cause, severity, (0,))
    assert value(one, "step") - one.impact_ms == pytest.approx(cured_ms, rel=within)
    assert card_of(reports[name]).fixed_ms == pytest.approx(value(one, "step") - one.impact_ms)


@pytest.mark.parametrize(("name", "cured_ms"), [("saved_on_host", 9.109), ("adam_on_host", 5.502)])
def test_offload_is_a_warning_at_most_and_promises_no_more_than_pinned_memory_gives(reports, name, cured_ms):
    (one,) = found(reports[name])
    assert (one.cause, one.severity) == ("offload", "warning")
    assert value(one, "step") - one.impact_ms >= cured_ms
    assert "DataLoader" not in one.advice and "it is offloaded" in one.message


def test_copies_beside_kernels_are_fine(reports):
    report = reports["to_host_ahead"]
    assert found(report) == [] and found(report, "TO-I003") == []
    (check,) = [one for one in report.checks if one.rule == "TO-I004"]
    assert (check.status, check.reason) == ("clear", "at most 1.9 % of the step (bound 5 %)")
    assert sum(one.pct for one in report.summary.unjudged if one.bucket == "memory") < 2  # memsets


def test_size_speed_and_place_are_told_and_where_the_links_speed_is_from(reports):
    (one,) = found(reports["pageable"])
    assert "1 copy of 168 MB a step from pageable memory in aten::to, at 9.8 GB/s." in one.message
    assert "From pinned memory it would take 3.50 ms, at 48 GB/s, as PCIe 5.0 x16 gives." in one.message
    (own,) = found(reports["same_stream"])
    assert value(own, "link from pinned memory") == pytest.approx(55.5, abs=0.2)  # more than the table
    assert "pinned already" in own.advice


def test_a_wait_for_copies_is_told_once_and_not_as_item_calls(reports):
    """'Keep values on the device: no .item()' of a program that reads none."""
    (many,) = found(reports["many_small"], "TO-I003")
    assert many.cause == "copies" and ".item()" not in many.advice
    assert claim_of(many, BlockedOnDevice).copies_pct == 100
    (idle,) = found(reports["saved_on_host"], "TO-I003")
    assert idle.severity == "info" and idle.message.endswith("TO-I004 explains it.")


def test_the_table_has_all_copies(reports):
    (first, *_) = reports["pageable"].tables.copies
    assert (first.direction, first.memory, first.purpose, first.operator) == (
        "to_device", "pageable", "input", "aten::to",
    )  # fmt: skip
    assert first.exposed_ms == pytest.approx(17.12, abs=0.01)
    purposes = {row.purpose for row in reports["adam_on_host"].tables.copies if row.exposed_ms > 0.1}
    assert purposes == {"offload"}


@pytest.mark.parametrize(("cause", "severity"), [("copies", "info"), ("host", "warning")])
def test_copies_explain_no_other_wait(cause, severity):
    def one(rule, cause):
        return BY_ID[rule].finding(
            "warning", "high", "said.", [Evidence(Fact.OTHER, 1, subject="x")], ranks=(0,), cause=cause
        )

    merged = merge_overlapping([one("TO-I004", "pageable_input"), one("TO-I003", cause)])
    assert {each.rule: each.severity for each in merged} == {"TO-I004": "warning", "TO-I003": severity}


def test_a_late_rank_whose_copies_take_longer_explains_them():
    def one(rule, cause, ranks):
        return BY_ID[rule].finding(
            "error", "high", "said.", [Evidence(Fact.OTHER, 1, subject="x")], ranks=ranks, cause=cause
        )

    late, copies = one("TO-S001", "copy", (1,)), one("TO-I004", "pageable_input", (1,))
    assert merge_overlapping([late, copies])[1].severity == "info"
    assert merge_overlapping([late, replace(copies, ranks=(0, 1))])[1].severity == "error"
