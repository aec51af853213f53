"""The words and digits that all formats of a comparison share."""

from __future__ import annotations

import pytest
from changed import replace
from sample_comparison import EXPOSED, KERNELS, MEMORY, STEP, sample_comparison, waived
from sample_comparison import UNKNOWN as NOT_KNOWN

from traceops.compare.model import MetricChange
from traceops.core.text import one_line
from traceops.render.comparison import text


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (STEP, "+5.2 % (+3.9 to +6.6)"),
        (EXPOSED, "+0.03 % of step (-0.40 to +0.50)"),
        (KERNELS, "+2 (+0.17 %)"),
        (MEMORY, "+4.1 kB (+0.01 %)"),
        (NOT_KNOWN, "–"),
        (replace(STEP, low_pct=None), "+5.2 %"),
        (replace(STEP, change_pct=-0.0004, low_pct=-0.001, high_pct=0.001), "0.00 % (0.00 to 0.00)"),
        (replace(STEP, change_pct=float("nan"), change=None), "–"),
        (replace(KERNELS, change=0.0, change_pct=0.0), "0"),
        (replace(KERNELS, base=0.0, head=3.0, change=3.0, change_pct=None), "+3"),
    ],
)
def test_a_change_has_its_sign_its_unit_and_its_interval(metric: MetricChange, said: str) -> None:
    assert text.effect_text(metric) == said


def test_both_sides_have_the_same_decimals() -> None:
    assert (text.base_text(STEP), text.head_text(STEP)) == ("60.11 ms", "63.24 ms")
    assert (text.base_text(KERNELS), text.head_text(KERNELS)) == ("1204", "1206")
    assert text.base_text(replace(KERNELS, base=1204.5)) == "1204"
    assert text.base_text(replace(STEP, base=9.0, head=120.0)) == "9.0 ms"
    assert (text.base_text(NOT_KNOWN), text.head_text(NOT_KNOWN)) == ("–", "120 GB/s")


def test_what_would_have_been_found_is_a_sentence_part() -> None:
    assert text.found_text(STEP, 0.9) == "a change of 1.6 % would have been found 9 times of 10"
    assert text.found_text(STEP, 0.95).endswith("95 times of 100")
    assert text.found_text(replace(STEP, mde_pct=None), 0.9) == ""


def test_a_gated_metric_that_could_not_be_judged_is_not_called_ungated() -> None:
    open_one = replace(KERNELS, threshold_pct=10.0, reason="not known for base")
    assert text.outcome_text(open_one) == "not judged"
    assert text.outcome_text(KERNELS) == "not gated"


def test_a_waived_regression_says_until_when_and_why() -> None:
    metric = waived().metrics[0]
    assert text.outcome_text(metric) == "waived until 2027-01-31"
    assert text.reason_text(metric).endswith("waived: needed for the new loss")
    already = replace(metric, reason="waived until 2027-01-31: needed for the new loss")
    assert text.reason_text(already) == already.reason


def test_parts_of_the_step_that_moved_come_beside_the_gated_metrics() -> None:
    comparison = sample_comparison()
    assert [metric.metric for metric in text.movers(comparison)] == ["compute", "idle_sync"]
    gated = replace(comparison.metrics[2], threshold_pct=1.0)
    assert [m.metric for m in text.movers(replace(comparison, metrics=(gated,)))] == []


def test_changes_that_cost_most_come_first_and_a_renamed_one_has_both_names() -> None:
    ordered = text.important_first(sample_comparison(hostile="x").changes)
    assert [change.status for change in ordered[:2]] == ["new", "changed"]
    renamed = next(change for change in ordered if change.status == "renamed")
    assert text.change_name(renamed) == "gemm_f32 → gemm_tf32 x"
    assert text.milliseconds_text(next(c for c in ordered if c.kind == "blocking_call")) == ""


def test_one_line_holds_no_character_that_steers() -> None:
    said = one_line("a\x1b[31m\nb\u202e\x00\u2028c", 100)
    assert said == "a\ufffd[31m b\ufffd\ufffd c"
    assert len(one_line("x" * 999, 20)) == 20


def test_a_cost_that_the_words_name_is_not_said_twice() -> None:
    reason = sample_comparison(hostile="x").explanations[1]
    assert text.cost_text(reason) == "+0.90 ms:"
    assert text.cost_text(replace(reason, text="blocked +0.90 ms a step")) == ""
    assert text.cost_text(replace(reason, ms=-0.9, text="blocked -0.90 ms a step")) == ""


def test_how_it_was_compared_names_captures_commits_and_what_is_missing() -> None:
    said = dict(text.method(sample_comparison(hostile="x")))
    assert said["Base"] == "3 captures of base x, 60 steps, commits db015ac012, db015ac012 + changes"
    assert said["step time, sensitivity"].startswith("a change of 1.6 %")
    assert said["Setting seed"] == "1"
    nowhere = replace(sample_comparison(), metrics=(replace(NOT_KNOWN, head=None),))
    assert dict(text.method(nowhere))["Not known on either side"] == "bus bandwidth"


@pytest.mark.parametrize(
    ("started_ns", "said"), [(None, "–"), (1 << 62, "2116-02-20 23:53 UTC"), (10**30, "–"), (0, "1970-01-01 00:00 UTC")]
)
def test_a_time_no_calendar_has_is_not_known(started_ns: int | None, said: str) -> None:
    assert text.started_text(started_ns) == said
