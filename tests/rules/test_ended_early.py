"""A rank without a trace because its program ended before the window, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from traceops.rules.validity import judge_missing

SCHEDULE = {"skip_first": 10, "unprofiled": 4, "warmup": 1, "active": 3, "repeat": 1}


def told(**rank: Any) -> tuple[str, str | None, str]:
    ended = {"rank": 1, "status": "finished", "traces": [], "steps": 12, **rank}
    manifest = {"schedule": SCHEDULE, "ranks": [{"rank": 0, "traces": ["a"], "steps": 60}, ended]}
    [found] = judge_missing(2, [0], single_file=False, manifest=manifest).findings
    return found.message, found.cause, found.advice


def test_a_program_that_ended_before_the_window() -> None:
    message, cause, advice = told()
    assert message == ("1 of 2 ranks has no trace: 1. Its program ended after 12 steps, and the schedule needs 18.")
    assert cause == "ended_early" and "Collect" not in advice and "--skip-first" in advice


@pytest.mark.parametrize("rank", [{"status": "failed"}, {"traces": ["rank_1/x.json"]}, {"steps": None}, {"steps": 60}])
def test_another_rank_without_a_trace(rank: dict[str, Any]) -> None:
    message, cause, advice = told(**rank)
    assert (message, cause) == ("1 of 2 ranks has no trace: 1.", None) and advice.startswith("Collect")


def test_several_ranks_of_which_one_ended_early() -> None:
    manifest = {
        "schedule": SCHEDULE,
        "ranks": [{"rank": 1, "status": "finished", "traces": [], "steps": 12}, {"rank": 2, "traces": ["b"]}],
    }
    [found] = judge_missing(3, [0], single_file=False, manifest=manifest).findings
    assert "The program of rank 1 ended after 12 steps" in found.message and found.cause is None


@pytest.mark.parametrize(
    ("ended", "said"),
    [((1, 1), "after 1 step, and"), ((1, 4), "after 1 to 4 steps, and"), ((4, 4), "after 4 steps, and")],
)
def test_one_step_is_no_steps(ended: tuple[int, int], said: str) -> None:
    ranks = [{"rank": n + 1, "status": "finished", "traces": [], "steps": own} for n, own in enumerate(ended)]
    manifest = {"schedule": SCHEDULE, "ranks": ranks}
    [found] = judge_missing(3, [0], single_file=False, manifest=manifest).findings
    assert said in found.message and found.cause == "ended_early"
