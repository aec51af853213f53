"""What a step would take with input in time leaves its host the time that it needs itself."""

from types import SimpleNamespace

import pytest

from traceops.rules.idle_time import idle_of, waits_for_input

# ResNet-50 on an H200 whose two workers deliver at the same time, ms: as recorded, and the mean step of the run.
RECORDED = {"idle_input": 202.34, "idle_host": 44.84, "compute": 16.2, "memory": 6.74}
STEP_MS, PLAIN_MS, BUSY_MS = 270.86, 193.41, 22.94
TIDY_MS = 38.0  # the same program with a loader that keeps up


def claimed(in_time_ms, whole=True):
    times = SimpleNamespace(
        mean_ms=lambda name: RECORDED.get(name, 0.0), step_ms=STEP_MS, summary=SimpleNamespace(on_gpu=True, rank=0)
    )
    idle = [idle_of(times, "idle_input", PLAIN_MS, None, 0.2)]
    [one] = waits_for_input(idle, SimpleNamespace(in_time_ms=in_time_ms) if whole else None)
    return one


def test_steps_in_which_input_is_in_time_tell_what_is_left():
    """22.9 ms were promised, those of the device alone."""
    one = claimed(47.57)
    assert one.step_ms - one.ms == pytest.approx(47.57) and one.in_time_ms == 47.57
    assert one.step_ms - one.ms >= TIDY_MS


@pytest.mark.parametrize("whole", [True, False])
def test_without_such_steps_the_device_bounds_it(whole):
    one = claimed(None, whole)
    assert one.step_ms - one.ms == pytest.approx(BUSY_MS) and one.in_time_ms is None
    assert claimed(10.0).ms == one.ms, "no shorter than the device works for"
