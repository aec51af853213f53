"""Changes are found where they were planted, and noise has none."""

from __future__ import annotations

import numpy as np
import pytest

from traceops.baseline.history import MAX_P, change_points, least_values


def noisy(*levels: tuple[int, float], seed: int, noise: float = 1.0) -> np.ndarray:
    """Values around each level in turn, so many each."""
    made = np.concatenate([np.full(count, level) for count, level in levels])
    return made + np.random.default_rng(seed).normal(0.0, noise, len(made))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "outliers"])
def test_noise_has_no_change_points(kind: str) -> None:
    rng = np.random.default_rng(5)
    drawn = {
        "normal": lambda: rng.normal(100.0, 1.0, 30),
        "heavy tails": lambda: 100.0 + rng.lognormal(0.0, 1.0, 30),
        "outliers": lambda: rng.normal(100.0, 1.0, 30) + 20.0 * (rng.random(30) < 0.07),
    }[kind]
    false_alarms = sum(bool(change_points(drawn())) for _ in range(200))
    assert false_alarms <= 10


@pytest.mark.parametrize("before", [15, 27])
def test_a_step_of_5_in_noise_of_1_is_found_where_it_is(before: int) -> None:
    for seed in range(20):
        found = change_points(noisy((before, 100.0), (30 - before, 105.0), seed=seed))
        near = [point for point in found if abs(point.index - before) <= 1]
        assert len(near) == 1 and near[0].p <= MAX_P
        assert near[0].after / near[0].before == pytest.approx(1.05, abs=0.025)


@pytest.mark.parametrize("levels", [(100.0, 105.0, 110.0), (100.0, 105.0, 100.0)], ids=["up, up", "up, down"])
def test_two_changes_are_found(levels: tuple[float, float, float]) -> None:
    right = 0
    for seed in range(20):
        found = change_points(noisy(*((10, level) for level in levels), seed=seed))
        right += len(found) == 2 and all(abs(point.index - at) <= 1 for point, at in zip(found, (10, 20), strict=True))
        assert all(point.p <= MAX_P for point in found)
    assert right >= 18


def test_the_levels_are_those_up_to_the_neighbouring_changes() -> None:
    first, second = change_points([1.0] * 10 + [3.0] * 10 + [2.0] * 10)
    assert (first.index, first.before, first.after) == (10, 1.0, 3.0)
    assert (second.index, second.before, second.after) == (20, 3.0, 2.0)


def test_the_answer_depends_on_values_only() -> None:
    values = noisy((12, 100.0), (8, 101.5), seed=1)
    assert change_points(values) == change_points(values.tolist())
    assert [p.index for p in change_points(values * 1e-9)] == [p.index for p in change_points(values)]


def test_few_or_equal_values_have_none_and_a_single_outlier_is_no_level() -> None:
    assert all(change_points([1.0, *[50.0] * n][: n + 1]) == () for n in range(20))
    assert change_points([]) == () and change_points([7.0] * 50) == ()
    assert change_points([*[50.0] * 20, 90.0]) == ()


def test_how_many_values_it_takes_for_any_change() -> None:
    least = least_values()
    assert all(change_points([1.0] * (n // 2) + [2.0] * (n - n // 2)) == () for n in range(least))
    n = least + 1
    assert [p.index for p in change_points([1.0] * (n // 2) + [2.0] * (n - n // 2))] == [n // 2]
