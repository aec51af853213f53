"""Histories: replicates count as one, changes carry a commit, and only like is compared with like."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from sample_captures import capture, commit_of, with_level

from traceops.baseline.history import MAX_P, KeyHistory, change_points, histories, least_values, samples_of
from traceops.baseline.store import Problem, save, scan
from traceops.core.errors import InputError
from traceops.render.history.text import change_text, history_verdict, sparse_text


def history_of(folder: Path, reports: list[dict], **saved: str) -> KeyHistory:
    """The one history of these captures."""
    for report in reports:
        save(str(folder), report, **saved)
    problems: list[Problem] = []
    (found,) = histories(samples_of(scan(str(folder), None, problems), problems))
    assert problems == []
    return found


def test_a_change_is_named_by_its_commit(tmp_path: Path) -> None:
    found = history_of(tmp_path, with_level([50.0] * 20 + [55.0] * 10))
    trends = {trend.metric: trend for trend in found.trends}
    assert set(trends) == {
        "step_time", "throughput", "profiled_step_time", "exposed_comm", "idle", "peak_memory",
    }  # fmt: skip
    (change,) = trends["step_time"].changes
    assert (change.since.commit, change.last.commit) == (commit_of(20), commit_of(19))
    assert (change.verdict, change.position) == ("worse", 20)
    assert change.change_pct == pytest.approx(10.0, abs=1.0)
    assert change_text(trends["step_time"], change) == (
        f"step time +{change.change_pct:.1f} % since commit {commit_of(20)[:7]} (2026-10-11)"
    )
    (slower,) = trends["throughput"].changes
    assert slower.verdict == "worse" and slower.change_pct == pytest.approx(-9.1, abs=1.0)
    assert not trends["idle"].changes and not trends["peak_memory"].changes
    assert trends["peak_memory"].values[0] == 30 * 10**9 + 3
    said = history_verdict([found])
    assert said.level == "error" and said.sentence.startswith("Step time +")


def test_captures_of_a_commit_are_one_value_at_its_first_place(tmp_path: Path) -> None:
    first, second = commit_of(1), commit_of(2)
    reports = [
        capture(0, 50.0, commit=first),
        capture(1, 60.0, commit=second),
        capture(2, 52.0, commit=first),
        capture(3, 90.0, commit=first),
    ]
    found = history_of(tmp_path, reports)
    assert [(commit.commit, len(commit.samples)) for commit in found.commits] == [(first, 3), (second, 1)]
    assert found.commits[0].value("step_time") == 52.0
    assert [sample.entry.commit for sample in found.samples] == [first, second, first, first]


def test_changed_or_unknown_code_is_no_replicate(tmp_path: Path) -> None:
    changed = {"commit": commit_of(1), "branch": "main", "dirty": True}
    reports = [capture(day, git=changed) for day in (0, 1)]
    reports += [capture(2, commit=commit_of(1))]
    reports += [capture(day, git={"branch": "main"}) for day in (3, 4)]
    found = history_of(tmp_path, reports)
    assert [commit.label for commit in found.commits] == [
        "0000001+", "0000001+", "0000001", "unknown", "unknown",
    ]  # fmt: skip


def test_steps_with_and_without_profiler_are_not_mixed(tmp_path: Path) -> None:
    found = history_of(tmp_path, [capture(day, 50.0, unprofiled=8 * (day < 12)) for day in range(24)])
    trends = {trend.metric: trend for trend in found.trends}
    assert trends["step_time"].values == (50.0,) * 12 + (None,) * 12
    assert trends["profiled_step_time"].values == pytest.approx([55.0] * 24)
    assert all(not trend.changes for trend in found.trends)
    assert history_verdict([found]).level == "clear"


def test_a_change_counts_commits_that_know_the_metric(tmp_path: Path) -> None:
    reports = with_level([50.0] * 12 + [60.0] * 12)
    for report in reports[::2]:
        report["unprofiled_steps"] = []
    (change,) = history_of(tmp_path, reports).trends[0].changes
    assert (change.since.commit, change.last.commit, change.position) == (commit_of(13), commit_of(11), 13)


def test_it_says_when_there_is_too_little_to_compare(tmp_path: Path) -> None:
    assert "no other to compare it with yet" in sparse_text(history_of(tmp_path, [capture()]))
    few = history_of(tmp_path, [capture(day) for day in range(1, 5)])
    assert "5 commits so far" in sparse_text(few) and "5 more are there" in sparse_text(few)
    assert history_verdict([few]).level == "info"
    assert not sparse_text(history_of(tmp_path, [capture(day) for day in range(5, 11)]))


def test_a_report_that_is_none_is_named_and_hides_no_other(tmp_path: Path) -> None:
    damaged = Path(save(str(tmp_path), capture(0)).url)
    held = json.loads(gzip.decompress(damaged.read_bytes()))
    damaged.write_bytes(gzip.compress(json.dumps({**held, "report": {**capture(0), "steps": "none"}}).encode()))
    save(str(tmp_path), capture(1))
    problems: list[Problem] = []
    (found,) = histories(samples_of(scan(str(tmp_path), None, problems), problems))
    assert len(found.samples) == 1
    assert len(problems) == 1 and problems[0].what.startswith("is no report.json of traceops")


def test_what_is_no_report_is_not_saved(tmp_path: Path) -> None:
    for wrong in ({**capture(0), "steps": "none"}, [], {"run": {}}):
        with pytest.raises(InputError, match=r"profile/x is no report\.json of traceops"):
            save(str(tmp_path), wrong, source="profile/x")
    assert list(tmp_path.iterdir()) == []


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
