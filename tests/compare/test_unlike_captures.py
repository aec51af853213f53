"""Steps that are not of one kind: the gate neither fails nor passes by them, and says why and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from comparison_reports import edited, kernel, made

from traceops.compare import CompareConfig, ComparedCapture, compare
from traceops.compare.model import Comparison, MetricChange
from traceops.render.comparison.text import effect_text

Edit = Callable[[dict[str, Any]], None]
EARLY = {"before_ms": 41.5, "later_ms": 12.0, "settled": 17}


def early_window(report: dict[str, Any]) -> None:
    report["whole_run"] = {"steps": 60, "typical_steps": 50, "typical_ms": 12.0, "early_window": EARLY}


def found_by(kind: str) -> Edit:
    return lambda report: report["summary"].update(steps_found_by=kind)


def recorded(**options: bool) -> Edit:
    return lambda report: report["run"].update(options=options)


def holding(operators: int) -> Edit:
    used = {"name": "aten::mm", "count_per_step": 1, "host_ms_per_step": 0.1}
    inventory = {"kernels": [kernel("gemm", 1, 9.0)], "operators": [used] * operators}
    return lambda report: report.update(inventory=inventory)


def torch(version: str) -> Edit:
    return lambda report: report["run"].update(torch_version=version)


def sides(
    before: Edit, now: Edit, *, unprofiled: int = 0, works_ms: float = 10.0
) -> tuple[list[ComparedCapture], list[ComparedCapture]]:
    """Five captures a side, head far slower and with twice the kernels; its devices work for works_ms a step."""
    idle = {"idle_host": 41.5 - works_ms}
    base = [edited(made([12.0 + n / 100] * unprofiled, [12.0 + n / 100] * 4, at=2 * n), before) for n in range(5)]
    head = [
        edited(
            made(
                [41.5 + n / 100] * unprofiled,
                [41.5 + n / 100] * 4,
                at=2 * n + 1,
                buckets=idle,
                counts={"kernels": 1000},
            ),
            now,
        )
        for n in range(5)
    ]
    return base, head


def of(result: Comparison, name: str) -> MetricChange:
    return next(row for row in result.metrics if row.metric == name)


def nothing(report: dict[str, Any]) -> None:
    pass


@pytest.mark.parametrize(
    ("before", "now", "why", "cure"),
    [
        (nothing, early_window, "head's recorded steps may not be like its later ones in 5 of 5", "--skip-first, 17"),
        (found_by("profiler"), found_by("window"), "nothing tells where the steps of head begin", "mark the steps"),
        (found_by("window"), found_by("window"), "the steps of base and head begin", "mark the steps"),
        (found_by("optimizer"), found_by("repetition"), "(base optimizer, head repetition)", "mark the steps"),
    ],
)
def test_other_steps_decide_nothing(before: Edit, now: Edit, why: str, cure: str) -> None:
    """Each was a regression, of time or of kernels: a window of more iterations has more of both."""
    base, head = sides(before, now)
    result = compare(base, head)
    assert result.verdict == "inconclusive" and not result.findings and not result.explanations
    assert why in result.sentence and cure in result.sentence and "41.5" in result.sentence
    [told] = result.not_judged
    assert why in told.why and "kernels" in told.metrics
    for name in ("step_time", "kernels"):
        row = of(result, name)
        assert (row.outcome, row.p, row.low_pct) == ("inconclusive", None, None) and row.reason in why + told.why
    assert {row.outcome for row in result.metrics} <= {"inconclusive", "informative"}
    assert all(row.mde_pct is None for row in result.metrics)  # nor what 'would have been found'
    assert any(told.why in said for said in result.warnings)
    assert [check.status for check in result.checks] == ["not_evaluated"]
    forced = compare(base, head, force=True)
    assert forced.verdict == "regression" and not forced.not_judged and forced.warnings


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (recorded(), recorded(with_stack=True), "recorded different things (base nothing more, head with_stack)"),
        (holding(1), holding(0), "of base the profiler recorded operators too"),
        (torch("2.8.0"), torch("2.9.0"), "torch 2.9.0's profiler may not cost what 2.8.0's does"),
    ],
)
def test_what_the_profiler_costs_is_no_regression(before: Edit, now: Edit, why: str) -> None:
    """Recorded steps of 12 ms and, with stacks, of 41.5 were a regression. Counts are the same with each profiler."""
    result = compare(*sides(before, now))
    assert [why in one.why for one in result.not_judged] == [True]
    assert of(result, "step_time").outcome == "inconclusive"
    assert of(result, "kernels").outcome == "regression"
    assert "The step time itself is open: the profiler's own cost is not the same" in result.sentence


@pytest.mark.parametrize(("before", "now"), [(torch("2.8.0"), torch("2.9.0")), (recorded(), recorded(with_stack=True))])
def test_what_no_profiler_explains_is_judged(before: Edit, now: Edit) -> None:
    """A slowdown of ten times was left open where torch differed, though head's devices worked for all of it."""
    result = compare(*sides(before, now, works_ms=40.0))
    step = of(result, "step_time")
    assert (result.verdict, step.outcome, step.change_pct, step.p) == ("regression", "regression", None, None)
    assert step.low_pct == pytest.approx(100 * (40.0 / 12.04 - 1), rel=1e-3)
    assert "step time 12.02 ms → 41.52 ms as recorded (at least 232.2 % slower)" in result.sentence
    assert "head's devices work for 40 ms a step, and no recorded step of base takes more than" in result.sentence
    assert result.findings[0].rule == "TO-R001" and effect_text(step) == "at least +232 %"
    back = compare(*reversed(sides(before, now, works_ms=40.0)))
    assert of(back, "step_time").outcome == "improvement" and "% faster)" in back.sentence


def test_less_than_the_threshold_is_certain_of_nothing() -> None:
    result = compare(*sides(torch("2.8.0"), torch("2.9.0"), works_ms=12.3))
    assert of(result, "step_time").outcome == "inconclusive"


def test_steps_of_other_kinds_have_no_bound() -> None:
    """Devices that work for longer in what need not be the same steps say nothing of them."""
    result = compare(*sides(found_by("profiler"), found_by("window"), works_ms=40.0))
    assert result.verdict == "inconclusive"


def test_what_the_profiler_would_have_to_cost_is_said() -> None:
    def same_kernels(report: dict[str, Any]) -> None:
        report["run"].update(torch_version="2.9.0")
        for row in report["steps"]:
            row["kernels"] = 500

    result = compare(*sides(torch("2.8.0"), same_kernels))
    assert result.verdict == "inconclusive"
    assert "unless its profiler takes 29.5 of its 41.52 ms or more" in result.sentence


def test_steps_without_the_profiler_are_compared_whatever_the_profiler_cost() -> None:
    base, head = sides(recorded(), recorded(with_stack=True), unprofiled=8)
    result = compare(base, head, CompareConfig(thresholds={"idle_input": 2.0}))
    assert result.verdict == "regression" and of(result, "step_time").outcome == "regression"
    assert of(result, "idle_input").outcome == "inconclusive"
    assert not compare(*sides(torch("2.8.0"), torch("2.9.0"), unprofiled=8)).not_judged


@pytest.mark.parametrize(("before", "now", "judged"), [(0, 1, True), (2, 3, True), (0, 3, False), (1, 5, False)])
def test_a_capture_or_two_more_with_an_early_window_are_told_and_judged(before: int, now: int, judged: bool) -> None:
    """Of five captures a side of one program three and two had one: nothing at all was judged, not even kernels."""
    sides_ = sides(nothing, nothing)
    base, head = (
        [edited(one, early_window) if at < count else one for at, one in enumerate(side)]
        for side, count in zip(sides_, (before, now), strict=True)
    )
    result = compare(base, head)
    assert any("head's recorded steps may not be like" in one for one in result.warnings)
    assert (result.verdict == "regression") == judged == (not result.not_judged)


def test_steps_of_one_kind_are_judged() -> None:
    for edit in (nothing, early_window, found_by("profiler"), recorded(with_stack=True), holding(1), torch("2.9.0")):
        result = compare(*sides(edit, edit))
        assert result.verdict == "regression" and not result.not_judged


def test_gpus_that_are_not_set_alike_are_named() -> None:
    def limited(watts: float) -> Edit:
        row = {"rank": 0, "host": "a", "limit_w": watts, "most_mhz": 1980.0}
        whole = {"steps": 60, "typical_steps": 50, "typical_ms": 12.0, "machine": [row]}
        return lambda report: report.update(whole_run=whole)

    assert "power limit of the GPUs: base 700 W, head 450 W" in compare(*sides(limited(700), limited(450))).warnings
