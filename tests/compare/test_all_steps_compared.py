"""Steps that nothing recorded count over the whole run, and what two captures decide by them."""

from typing import Any

import numpy as np
import pytest
from comparison_reports import edited, made

from traceops.compare import CompareConfig, ComparedCapture, compare
from traceops.compare.model import Comparison, metric_of
from traceops.compare.statistics import detectable_pct


def trained(
    level: float, spread_pct: float, at: float, *, device: str = "cpu", steps: int = 117, **rows: Any
) -> ComparedCapture:
    """A capture of four profiled steps, whose whole run has `steps` more."""
    took = level * (1 + spread_pct / 100 * np.random.default_rng(int(at)).normal(size=steps))
    timeline = [
        {
            "rank": rank, "first": number, "last": number, "median_ms": float(ms), "most_ms": float(ms),
            "recorded": number < 8,
        }
        for rank in (0, 1)
        for number, ms in enumerate(took)
    ]  # fmt: skip
    whole = {"steps": steps, "typical_steps": steps, "typical_ms": level, "timeline": timeline, **rows}
    bare = made(profiled=[2 * level] * 4, at=at, device_type=device, device=device)
    return edited(bare, lambda report: report.update(whole_run=whole))


def verdict(result: Comparison) -> tuple[str, str]:
    step = metric_of(result.metrics, "step_time")
    assert step is not None
    return result.verdict, step.outcome


@pytest.mark.parametrize(
    ("change_pct", "spread_pct", "decided"),
    [(91.0, 5.0, True), (12.0, 1.0, True), (0.0, 1.0, False), (-12.0, 1.0, True), (12.0, 12.0, False)],
)
def test_two_captures_on_a_cpu_decide_what_steps_differ_less_than(
    change_pct: float, spread_pct: float, decided: bool
) -> None:
    """Two captures with 117 such steps each and +91 % were 'inconclusive: 4 steps a side, 6 needed'."""
    result = compare([trained(20.0, spread_pct, 1)], [trained(20.0 * (1 + change_pct / 100), spread_pct, 2)])
    way = "regression" if change_pct > 0 else "improvement"
    assert (verdict(result) == (way, way)) is decided
    assert result.base.captures[0].unprofiled_steps == 109


def test_a_loaded_machine_is_no_regression() -> None:
    """Head meets other work: its steps take three times as long, and differ by as much among each other."""
    result = compare([trained(15.0, 2.0, 1)], [trained(43.0, 35.0, 2)])
    assert verdict(result)[1] == "inconclusive"


def test_two_captures_a_side_are_no_less_certain_than_one() -> None:
    """--repeat 2 gave '+41.4 %, -100.0 to +193.6'."""
    sides = [[trained(level, 4.0, 2 * n + at) for n in range(2)] for at, level in enumerate((20.0, 28.3))]
    assert verdict(compare(*sides)) == ("regression", "regression")


def test_steps_behind_a_window_that_take_longer_on_a_gpu_do_not_count() -> None:
    assert trained(20.0, 1.0, 1, device="cuda").info.unprofiled_steps == 109
    assert trained(20.0, 1.0, 1, device="cuda", behind_ms=22.0, before_ms=20.0).info.unprofiled_steps == 0
    assert trained(20.0, 1.0, 1, behind_ms=22.0, before_ms=20.0).info.unprofiled_steps == 109


def test_start_steps_do_not_count() -> None:
    assert trained(20.0, 1.0, 1, start_steps=20).info.unprofiled_steps == 96


def test_every_step_beyond_the_other_sides_decides_where_noise_would_leave_it_open() -> None:
    base, head = trained(20.0, 8.0, 1), trained(40.0, 8.0, 2)
    result = compare([base], [head], CompareConfig(launch_noise_pct=60.0))
    assert verdict(result)[1] == "regression" and "at least" in result.sentence
    assert verdict(compare([base], [trained(24.0, 8.0, 2)], CompareConfig(launch_noise_pct=60.0)))[1] == "inconclusive"


def test_what_a_plan_can_detect_shrinks_with_its_captures() -> None:
    found = [detectable_pct(count, 1.5) for count in (1, 2, 5)]
    assert found == sorted(found, reverse=True) and 5.0 < found[0] < 8.0 and found[2] > 2.0


@pytest.mark.parametrize(("settled", "outcome"), [(19, "improvement"), (90, "inconclusive")])
def test_an_early_window_spoils_what_it_recorded_not_the_steps_after_it(settled: int, outcome: str) -> None:
    """Head's first steps took 160 ms, and its window was among them: 58 to 22 ms over 114 steps was not judged."""
    early = {"before_ms": 160.0, "later_ms": 22.0, "settled": settled}
    result = compare([trained(58.0, 2.0, 1)], [trained(22.0, 2.0, 2, early_window=early)])
    assert verdict(result)[1] == outcome
    kernels = metric_of(result.metrics, "kernels")
    assert kernels is not None and kernels.outcome in ("informative", "inconclusive")
