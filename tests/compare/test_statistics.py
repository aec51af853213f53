"""Intervals, their calibration, Holm, pairing, outliers, and steps that count over the whole run."""

import math
from typing import Any

import numpy as np
import pytest
from comparison_reports import edited, made
from hypothesis import given
from hypothesis import strategies as st

from traceops.compare import CompareConfig, ComparedCapture, compare
from traceops.compare.judge import shows_from_pct
from traceops.compare.model import Comparison, metric_of
from traceops.compare.sentence import headline
from traceops.compare.statistics import (
    detectable_pct,
    drift,
    estimate,
    harmonic_mean,
    holm,
    quantile,
    step_error,
    taken_in_turn,
    two_sided_p,
)
from traceops.core.arrays import far_from_median


@pytest.mark.parametrize(
    ("df", "t"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (8, 2.30600), (30, 2.04227), (math.inf, 1.95996)]
)
def test_student_is_the_tables(df: float, t: float) -> None:
    assert quantile(0.975, df) == pytest.approx(t, rel=1e-5)
    assert two_sided_p(t, df) == pytest.approx(0.05, rel=1e-4)
    assert two_sided_p(-t, df) == two_sided_p(t, df)


def test_student_far_out() -> None:
    assert 0 < two_sided_p(30.0, 5) < 1e-6 and two_sided_p(math.inf, 3) == 0.0
    assert two_sided_p(40.0, math.inf) >= 0.0 and two_sided_p(0.0, 4) == pytest.approx(1.0)


def test_step_error_is_that_of_the_mean_for_independent_steps() -> None:
    series = np.random.default_rng(2).normal(50.0, 2.0, 400)
    assert step_error(series, np.mean) == pytest.approx(2.0 / 20, rel=0.25)


def test_step_error_grows_where_neighbours_are_alike() -> None:
    noise = np.random.default_rng(2).normal(0.0, 1.0, 300)
    alike = np.convolve(noise, np.ones(6) / math.sqrt(6), mode="valid")  # the same spread, but in runs
    assert step_error(50 + alike, np.mean) > 1.5 * step_error(50 + noise, np.mean)


def test_a_constant_series_has_no_error_and_one_step_neither() -> None:
    assert step_error(np.full(9, 7.0), np.median) == 0.0 == step_error(np.array([3.0]), np.median)


@pytest.mark.parametrize(("captures", "paired"), [(1, False), (2, False), (3, False), (5, False), (5, True)])
def test_false_alarms_stay_at_five_percent(captures: int, paired: bool) -> None:
    # The same configuration on both sides: launches differ by 2 %, steps within one by 3 %, pairs drift together.
    rng = np.random.default_rng(captures + 10 * paired)
    tries, alarms = 400, 0
    for _ in range(tries):
        drift = rng.normal(0.0, 3.0, captures) if paired else np.zeros(captures)
        sides = [[100 + drift[i] + rng.normal(0, 2) + rng.normal(0, 3, 8) for i in range(captures)] for _ in range(2)]
        known = estimate(*sides, np.median, 2.0, paired=paired)
        assert known is not None and known.noise_assumed == (captures <= 2)
        alarms += known.p < 0.05
    assert alarms / tries < 0.075  # 0.05 and what 400 tries leave open


def test_percentiles_of_a_bootstrap_over_three_captures_would_cry_wolf() -> None:
    # Why the interval is not that: see docs/metrics.md.
    rng, alarms = np.random.default_rng(3), 0
    for _ in range(300):
        base, head = rng.normal(100, 2, 3), rng.normal(100, 2, 3)
        draws = rng.integers(0, 3, (2, 500, 3))
        change = head[draws[1]].mean(axis=1) - base[draws[0]].mean(axis=1)
        low, high = np.percentile(change, [2.5, 97.5])
        alarms += not low <= 0 <= high
    assert alarms / 300 > 0.12


def test_a_real_change_is_found_and_measured() -> None:
    rng = np.random.default_rng(4)
    sides = [[level + rng.normal(0, 0.5) + rng.normal(0, 1, 10) for _ in range(5)] for level in (100, 105)]
    known = estimate(*sides, np.median, 0.0)
    assert known is not None and known.p < 0.001
    assert abs(known.change - 5.0) < 2 * known.half_width(0.95) and known.half_width(0.95) < 2.5
    assert known.half_width(0.95) < known.detectable(0.95, 0.9) < 2.5 * known.half_width(0.95)


def test_pairs_remove_what_both_members_share() -> None:
    rng = np.random.default_rng(5)
    drift = np.linspace(0, 20, 6)
    sides = [[level + drift[i] + rng.normal(0, 0.3, 8) for i in range(6)] for level in (100, 103)]
    together, apart = (estimate(*sides, np.median, 0.0, paired=paired) for paired in (True, False))
    assert together is not None and apart is not None
    assert together.p < 0.01 < 0.3 < apart.p


def test_one_capture_a_side_never_claims_what_launches_alone_can_do() -> None:
    steps = [np.full(50, 100.0), np.full(50, 104.0)]
    known = estimate([steps[0]], [steps[1]], np.median, 2.0)
    assert known is not None and known.p > 0.05 and known.df == math.inf
    assert known.half_width(0.95) == pytest.approx(1.96 * 2 * math.sqrt(2), rel=1e-3)


@pytest.mark.parametrize(("base", "head"), [(2, 1), (2, 2), (3, 1)])
def test_few_captures_and_nothing_assumed_of_launches_cry_no_wolf(base: int, head: int) -> None:
    rng, alarms = np.random.default_rng(base * 10 + head), 0
    for _ in range(400):
        sides = [[100 + rng.normal(0, 5) + rng.normal(0, 1, 8) for _ in range(k)] for k in (base, head)]
        known = estimate(*sides, np.median, None)
        assert known is not None and not known.noise_assumed
        alarms += known.p < 0.05
    assert alarms / 400 < 0.075


def test_nothing_to_compare() -> None:
    assert estimate([], [np.ones(3)], np.median, 1.0) is None
    assert estimate([np.empty(0)], [np.ones(3)], np.median, 1.0) is None


def test_harmonic_mean_is_all_samples_over_all_time() -> None:
    seconds = np.array([1.0, 1.0, 2.0])
    assert harmonic_mean(8 / seconds) == pytest.approx(24 / 4)


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({}) == {}


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=8))
def test_holm_only_ever_raises_and_keeps_the_order(p: dict[str, float]) -> None:
    corrected = holm(p)
    assert all(1.0 >= corrected[name] >= p[name] for name in p)
    ordered = sorted(p, key=lambda name: p[name])
    assert [corrected[name] for name in ordered] == sorted(corrected.values())


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        ([1, 4, 5], [2, 3, 6], True),  # base head, head base, base head
        ([1, 3, 5], [2, 4, 6], True),
        ([1, 2, 3], [4, 5, 6], False),
        ([1], [2], False),
        ([1, 3], [2, None], False),
        ([1, 3], [2, 4, 5], False),
        ([1, 1], [1, 1], False),
    ],
)
def test_taken_in_turn(base: list[int | None], head: list[int | None], expected: bool) -> None:
    assert taken_in_turn(base, head) is expected


def test_outliers_are_far_above_the_median_and_worth_a_tenth() -> None:
    series = np.array([100.0, 101, 99, 100, 180, 100, 101])
    assert far_from_median(series).tolist() == [4]
    assert not len(far_from_median(np.array([100.0, 100, 100, 100, 105])))  # far from noise, but small
    assert not len(far_from_median(np.array([1.0, 50.0])))


def test_the_same_draws_are_made_once_for_all_metrics_of_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    generator = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: (made.append(seed), generator(seed))[1])
    series = [100.0 + generator(number).normal(0, 3, 37) for number in range(6)]
    alone = [step_error(one, np.median) for one in series]
    assert len(made) <= 3  # one for each length of blocks
    assert [step_error(one, np.median) for one in reversed(series)] == alone[::-1] and len(set(alone)) == 6


def trained(
    level: float,
    spread_pct: float,
    at: float,
    *,
    device: str = "cpu",
    steps: int = 117,
    turns: tuple[float, ...] = (1.0,),
    **rows: Any,
) -> ComparedCapture:
    """A capture of four profiled steps, whose whole run has `steps` more."""
    took = level * (1 + spread_pct / 100 * np.random.default_rng(int(at)).normal(size=steps)) * np.resize(turns, steps)
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
    [(91.0, 5.0, True), (12.0, 1.0, True), (0.0, 1.0, False), (-12.0, 1.0, True), (4.0, 12.0, False)],
)
def test_two_captures_on_a_cpu_decide_what_steps_differ_less_than(
    change_pct: float, spread_pct: float, decided: bool
) -> None:
    """Two captures with 117 such steps each and +91 % were 'inconclusive: 4 steps a side, 6 needed'."""
    result = compare([trained(20.0, spread_pct, 1)], [trained(20.0 * (1 + change_pct / 100), spread_pct, 2)])
    way = "regression" if change_pct > 0 else "improvement"
    assert (verdict(result) == (way, way)) is decided
    assert result.base.captures[0].unprofiled_steps == 109


def test_steps_that_only_alternate_do_not_widen_what_launches_may_differ_by() -> None:
    """Two workers that deliver in pairs: 35.7 to 16.5 ms was inconclusive, with 118 steps a side."""
    noise = np.random.default_rng(3).normal(size=120)
    level, slow = 20.0 + 0.2 * noise, 20.0 + np.repeat(noise[::8], 8)
    pairs = level * np.tile([0.05, 1.95], 60)
    assert drift(level) < 0.5 * np.std(level)  # unrelated steps: a stretch of them averages out
    assert drift(slow) > 0.5 * np.std(slow)  # neighbours are alike: it does not
    assert drift(pairs) < 0.1 * np.std(pairs)
    result = compare([trained(36.0, 1.0, 1)], [trained(16.5, 1.0, 2, turns=(0.05, 1.95))])
    assert verdict(result) == ("improvement", "improvement")


def test_a_pace_that_drifts_hides_what_a_steady_one_shows() -> None:
    """Eight stretches of each run that differ by a fifth among each other: launches may too."""
    drifting = tuple(np.repeat([0.8, 1.1, 0.9, 1.2, 0.8, 1.2, 0.9, 1.1], 15))
    base, head = trained(20.0, 1.0, 1, turns=drifting), trained(26.0, 1.0, 2, turns=drifting[::-1])
    result = compare([base], [head])
    assert verdict(result)[1] == "inconclusive" and "can show changes from" in result.sentence
    assert verdict(compare([trained(20.0, 1.0, 1)], [trained(26.0, 1.0, 2)]))[1] == "regression"


def test_the_slower_sides_noise_counts_as_a_share_of_its_step() -> None:
    """12 to 24 ms stayed open in each of three pairs, as head's drift was taken as a share of base's step."""
    drifting = tuple(np.repeat([0.8, 1.2, 0.85, 1.3, 0.7, 1.2, 0.85, 1.2], 15))
    base, head = trained(20.0, 20.0, 1, turns=drifting), trained(70.0, 20.0, 2, turns=drifting[::-1])
    for result in (compare([base], [head]), compare([head], [base])):
        step = metric_of(result.metrics, "step_time")
        assert step is not None and step.outcome in ("regression", "improvement")
        assert step.low_pct is not None and step.high_pct is not None and step.change_pct is not None
        assert -100.0 < step.low_pct < step.change_pct < step.high_pct and step.low_pct * step.high_pct > 0


def test_what_two_captures_show_is_known_before_the_second() -> None:
    steps = 20.0 + np.random.default_rng(1).normal(size=200)
    quiet, slow = (
        shows_from_pct(steps, "cpu", 0.0, CompareConfig()),
        shows_from_pct(steps, "cpu", 40.0, CompareConfig()),
    )
    assert quiet is not None and slow is not None and 8.0 < quiet < 15.0 < 150.0 < slow
    assert shows_from_pct(steps[:10], "cpu", 0.0, CompareConfig()) is None
    assert (found := shows_from_pct(steps[:10], "cuda", 0.0, CompareConfig())) is not None and found < 15.0


def test_a_loaded_machine_is_no_regression() -> None:
    """Head meets other work: its steps take three times as long, and differ by as much among each other."""
    waits = {"machine": [{"rank": 0, "host": "a", "waited_pct": 66.0}]}
    result = compare([trained(15.0, 2.0, 1)], [trained(43.0, 35.0, 2, **waits)])
    assert verdict(result)[1] == "inconclusive"


def test_a_run_that_waits_for_cores_decides_nothing_alone() -> None:
    """Equal launches on a machine with 24 processes for two cores: 28.7 and 71.9 ms, 67 and 86 % of it waiting."""
    waits = [{"machine": [{"rank": 0, "host": "a", "waited_pct": pct}]} for pct in (67.0, 86.0)]
    busy, quiet = ([trained(28.7, 9.0, 1, **row), trained(71.9, 9.0, 2, **row)] for row in (waits[1], {}))
    assert verdict(compare([busy[0]], [busy[1]]))[1] == "inconclusive"
    assert verdict(compare([quiet[0]], [quiet[1]]))[1] == "regression"


@pytest.mark.parametrize("change_pct", [0.0, 3.0, 40.0, -40.0])
def test_a_headline_has_at_most_90_characters(change_pct: float) -> None:
    short, details = headline(compare([trained(20.0, 1.0, 1)], [trained(20.0 * (1 + change_pct / 100), 1.0, 2)]))
    assert len(short) <= 90 and "%" in short and details


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
