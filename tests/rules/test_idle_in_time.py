"""What the undisturbed step gains with all launches in time, by the replay of the recorded one."""

from types import SimpleNamespace

import pytest

from traceops.rules.idle_time import in_time_ms


def gained(busy_ms, recorded_busy_ms, saved_ms, recorded_ms=100.0):
    """Of an undisturbed step of 60 ms, in which each device is idle or waits whenever it does not work."""
    ranks = [SimpleNamespace(busy_ms=ms) for ms in busy_ms]
    times = [
        SimpleNamespace(mean_ms=lambda bucket, ms=ms: ms if bucket == "compute" else 0.0) for ms in recorded_busy_ms
    ]
    idle = [SimpleNamespace(ms=60.0 - ms, wait_ms=0.0) for ms in busy_ms]
    run = SimpleNamespace(step_ms=recorded_ms, ranks=times)
    return in_time_ms(idle, run, SimpleNamespace(step_ms=60.0, ranks=ranks), saved_ms)


def test_what_the_replay_leaves_is_of_the_recorded_step_and_no_part_of_the_undisturbed():
    """It left 30 ms of the recorded step, more than the undisturbed has besides the work: nothing was to gain."""
    assert gained((40, 30), (40, 30), 30.0) == pytest.approx(20 * 30 / 60)
    assert gained((40, 30), (40, 30), 60.0) == pytest.approx(20)
    assert gained((40, 30), (40, 30), 75.0) == pytest.approx(20), "no device works for less"
    assert gained((40, 30), (40, 30), 0.0) == 0


def test_a_device_that_works_all_the_time_leaves_nothing_to_gain():
    assert gained((60, 30), (60, 30), 30.0) == 0


def test_where_the_recorded_step_has_no_such_time_nothing_is_known():
    assert gained((40, 30), (101, 30), 0.0) is None
