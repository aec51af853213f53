"""What the profiler cost in one of several windows, by the steps right before it."""

from types import SimpleNamespace

import pytest
from observed_run import Step, usual, write_rank

from traceops.across.plain_step import steps_before
from traceops.across.whole_run import whole_run
from traceops.pipeline.assemble_tables import unprofiled_steps
from traceops.pipeline.run_info import of_own_window
from traceops.traces.observed import read_observed

FIRST, LATER = range(10, 14), range(60, 64)


def run_of(root, steps):
    write_rank(root, 0, steps)
    return whole_run([read_observed(str(root), 0)[0]])


@pytest.fixture
def run(tmp_path):
    """Steps of 50 ms, of 40 from step 40 on; both windows make them 1.2 times as long."""
    steps = [usual(50 if number < 40 else 40) for number in range(100)]
    for number in (*range(8, 15), *range(58, 65)):
        steps[number] = Step(1.2 * steps[number].ms, recorded=True)
    steps[56] = Step(400)  # an evaluation is no step to hold others to
    return run_of(tmp_path, steps)


def test_the_steps_right_before_a_window_are_its_own(run):
    assert steps_before(run, FIRST).tolist() == [2, 3, 4, 5, 6, 7]
    assert steps_before(run, LATER).tolist() == [51, 52, 53, 54, 55, 57]
    assert [len(steps_before(run, window)) for window in ([200], [], range(3, 6))] == [0, 0, 0], "too few"


def test_steps_before_an_earlier_window_are_not(tmp_path):
    steps = [Step(60, recorded=number in (*range(8, 14), *range(16, 30))) for number in range(60)]
    assert not len(steps_before(run_of(tmp_path, steps), range(18, 29))), "two lie between"


def manifest(**more):
    windows = [{"index": 0, "steps": list(FIRST)}, {"index": 1, "steps": list(LATER)}]
    rank = {
        "rank": 0, "windows": windows, "profiled_steps": [*FIRST, *LATER],
        "profiled_step_ms": [60.0] * 4 + [48.0] * 4, "unprofiled_step_ms": [50.0] * 6,
    }  # fmt: skip
    whole = {"profiled_steps": [*FIRST, *LATER], "profiled_step_ms": 54.0, "unprofiled_step_ms": 50.0}
    schedule = {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 1}
    return {"ranks": [rank | more], "schedule": schedule, **whole}


def test_each_window_is_held_to_its_own_steps(run):
    """A later window's 48 ms were held to the 50 of the program's beginning: 'the profiler costs nothing'."""
    told = of_own_window(manifest(), set(LATER), run, on_gpu=True)
    assert told["profiled_step_ms"] / told["unprofiled_step_ms"] == pytest.approx(1.2)
    assert told["profiled_steps"] == list(LATER)
    assert told["ranks"][0]["unprofiled_step_ms"] == pytest.approx([40.0] * 6), "compare takes these"
    told = of_own_window(manifest(), set(FIRST), run, on_gpu=True)
    assert told["profiled_step_ms"] / told["unprofiled_step_ms"] == pytest.approx(1.2)
    assert told["ranks"] == manifest()["ranks"]
    told = of_own_window(manifest(), set(LATER), None, on_gpu=False)
    assert told["unprofiled_step_ms"] is None and told["ranks"][0]["unprofiled_step_ms"] == [], "nothing tells"


def test_the_schedules_windows_count_together():
    """With the steps that it times before each of them, where nothing else was observed too."""
    schedule = {"skip_first": 2, "unprofiled": 44, "warmup": 2, "active": 4, "repeat": 2}
    repeated = manifest() | {"schedule": schedule}
    assert of_own_window(repeated, set(LATER), None, on_gpu=False) == repeated


def test_on_gpus_steps_between_the_schedules_windows_are_none_without_the_profiler():
    """It stays in the process there: the median of all said that it costs little."""
    schedule = {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 6}
    repeated = manifest(unprofiled_step_ms=[50.0] * 6 + [57.0] * 30) | {"schedule": schedule}
    repeated["unprofiled_step_ms"] = 57.0
    assert of_own_window(repeated, set(LATER), None, on_gpu=True) == repeated | {"unprofiled_step_ms": 50.0}
    assert of_own_window(repeated, set(LATER), None, on_gpu=False) == repeated, "on a CPU nothing stays"


def test_a_run_with_one_window_is_as_run_json_says(run):
    only = manifest(windows=[{"index": 0, "steps": list(FIRST)}])
    assert of_own_window(only, set(FIRST), run, on_gpu=True) is only
    assert (
        of_own_window({}, set(FIRST), run, on_gpu=True) == {}
        and of_own_window(manifest(), set(), run, on_gpu=True) == manifest()
    )


@pytest.mark.parametrize(
    ("window", "on_gpu", "ended", "behind"),
    [
        (FIRST, True, False, [False] * 6 + [True] * 2),
        (FIRST, False, False, [False] * 8),
        (LATER, True, False, [True] * 8),
        (LATER, True, True, [False] * 8),
    ],
)
def test_steps_that_torchs_profiler_was_left_in_are_told(window, on_gpu, ended, behind):
    """`compare` leaves them out: where CUPTI was ended on one side only, that side was called faster."""
    told = manifest(unprofiled_step_ms=[50.0] * 8, detached={"done": ended})
    ranks = [SimpleNamespace(on_gpu=on_gpu, numbered_steps=set(window))]
    rows = unprofiled_steps(SimpleNamespace(manifest=told), ranks)
    assert [row.behind_window for row in rows] == behind
