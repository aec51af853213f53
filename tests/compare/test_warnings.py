"""What a comparison says of its own footing: odd captures, damaged traces, launches on CPUs, how many it would take."""

from typing import Any

import numpy as np
import pytest
from comparison_reports import collective, edited, kernel, made

from traceops.compare import CompareConfig, ComparedCapture, compare
from traceops.compare.model import Comparison, MetricChange
from traceops.core.errors import InputError, UsageError


def step_time(result: Comparison) -> MetricChange:
    return next(row for row in result.metrics if row.metric == "step_time")


def noisy(level: float, spread: float, captures: int, first: int, seed: int, **more: Any) -> list[ComparedCapture]:
    rng = np.random.default_rng(seed)
    return [
        made([float(x) for x in rng.normal(level + rng.normal(0, spread), 0.2, 8)], at=10 * k + first, **more)
        for k in range(captures)
    ]


def test_a_capture_that_was_held_up_is_named_and_stays_in() -> None:
    base = noisy(37, 0.5, 4, 0, 1)
    base.insert(1, made([295.0] * 8, at=5, name="base_2"))
    result = compare(base, noisy(40, 0.5, 5, 7, 2))
    (named,) = [warning for warning in result.warnings if "held it up" in warning]
    assert "base: a step of base_2 took 295 ms, of the other captures 3" in named
    low = step_time(result).low_pct
    assert low is not None and low >= -100.0  # a step cannot be more than 100 % faster
    assert len(result.base.captures) == 5


def test_damaged_traces_are_left_out_and_nothing_is_made_of_what_they_lack() -> None:
    known = {"kernels": [kernel("gemm", 10, 50.0)], "collectives": [collective(10, 1000)]}
    base = made([100.0] * 8, inventory=known)
    head = made([100.0] * 8, at=1, inventory={"kernels": [kernel("gemm", 7, 35.0)]})

    def damage(report: dict[str, Any]) -> None:
        report["ranks"][1]["damage"] = "cut off"
        for row in report["steps"]:
            if row["rank"] == 1:
                row["kernels"] = 200

    result = compare([base], [edited(head, damage)])
    assert not result.changes and not result.explanations
    assert any("the trace of rank 1 is damaged; it is left out" in warning for warning in result.warnings)
    assert next(row for row in result.metrics if row.metric == "kernels").reason == "the same"


def test_a_rank_whose_gpu_was_not_recorded_is_left_out() -> None:
    """Where rank 1 was recorded again, 'bytes communicated a step 201 MB → 403 MB' was a regression."""
    lost = {"rule": "TO-V008", "title": "", "severity": "warning", "confidence": "high", "message": "", "ranks": [1],
            "evidence": [{"metric": "ranks without GPU activity", "value": 1}], "advice": ""}  # fmt: skip
    inventory = {"collectives": [collective(5, 500)]}
    base = made([100.0] * 8, inventory=inventory, findings=[lost])
    head = made([100.0] * 8, at=1, inventory={"collectives": [collective(10, 1000)]})
    result = compare([base], [head])
    assert result.verdict != "regression" and not result.explanations
    assert any("the trace of rank 1 holds no GPU activity; it is left out" in said for said in result.warnings)

    both = made([100.0] * 8, findings=[{**lost, "ranks": [0, 1]}], device_type="cpu")
    with pytest.raises(UsageError, match="activity of the GPUs: base not recorded, head recorded"):
        compare([both], [head])


def test_one_capture_a_side_proves_nothing_on_a_cpu_unless_the_user_says_how_launches_differ() -> None:
    pair = [made([level] * 8, at=n, device="cpu", device_type="cpu") for n, level in enumerate((100.0, 180.0))]
    result = compare(pair[:1], pair[1:])
    assert result.verdict == "inconclusive" and "20 timed steps per capture are needed" in result.sentence
    assert step_time(result).low_pct is None
    assert compare(pair[:1], pair[1:], CompareConfig(launch_noise_pct=3.0)).verdict == "regression"


def test_a_verdict_that_rests_on_an_assumption_says_so() -> None:
    single = compare([made([100.0] * 8)], [made([110.0] * 8, at=1)])
    assert "if launches differ by 1.5 % as assumed" in single.sentence
    several = compare(noisy(100, 0.3, 4, 0, 3), noisy(110, 0.3, 4, 5, 4))
    assert several.verdict == "regression" and "assumed" not in several.sentence


def test_how_many_captures_it_would_take() -> None:
    open_ = compare(noisy(100, 3.0, 4, 0, 5), noisy(101, 3.0, 4, 5, 6))
    assert open_.verdict == "inconclusive" and "captures a side would settle it" in open_.sentence
    hopeless = compare(noisy(100, 25.0, 4, 0, 7), noisy(101, 25.0, 4, 5, 8))
    assert "too noisy for a limit of 5 %" in hopeless.sentence


def test_what_noise_could_have_done_is_given_no_reason() -> None:
    result = compare(
        noisy(100, 12.0, 4, 0, 9), noisy(109, 12.0, 4, 5, 11, profiled=[109.0] * 8, buckets={"idle_input": 9.0})
    )
    assert result.verdict == "inconclusive" and "It looks like" in result.sentence
    assert result.explanations and result.explanations[0].text not in result.sentence


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0, -1.0, 10**400])
def test_durations_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(InputError, match=r"can be compared: .*unprofiled_steps.0..duration_ms"):
        made([wrong, 100.0])
