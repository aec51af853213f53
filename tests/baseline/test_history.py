"""Histories: replicates count as one, changes carry a commit, and only like is compared with like."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from sample_captures import capture, commit_of, with_level

from traceops.baseline.history import KeyHistory, histories, samples_of
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
    assert "nothing to compare it with yet" in sparse_text(history_of(tmp_path, [capture()]))
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
