"""What a step would take with input in time leaves its host the time that it needs itself."""

from types import SimpleNamespace

import pytest

from traceops.rules import idle_input
from traceops.rules.idle_input import waits_for_input
from traceops.rules.idle_time import idle_of

# ResNet-50 on an H200 whose two workers deliver at the same time, ms: as recorded, and the mean step of the run.
RECORDED = {"idle_input": 202.34, "idle_host": 44.84, "compute": 16.2, "memory": 6.74}
STEP_MS, PLAIN_MS, BUSY_MS = 270.86, 193.41, 22.94
OTHER_MS = 0.74  # idle for other causes
TIDY_MS = 38.0  # the same program with a loader that keeps up


def claimed(monkeypatch, recording_ms, in_time_ms=None, plain_ms=PLAIN_MS, **more):
    monkeypatch.setattr(idle_input, "recording_ms", lambda times: recording_ms)
    recorded = {**RECORDED, **more}
    times = SimpleNamespace(
        mean_ms=lambda name: recorded.get(name, 0.0),
        step_ms=STEP_MS,
        summary=SimpleNamespace(on_gpu=True, rank=0),
    )
    [one] = waits_for_input(
        [idle_of(times, "idle_input", plain_ms, None, 0.2)], SimpleNamespace(in_time_ms=in_time_ms)
    )
    return one


def test_steps_in_which_input_is_in_time_tell_what_is_left(monkeypatch):
    """22.9 ms were promised, those of the device alone."""
    one = claimed(monkeypatch, 37.4, in_time_ms=47.57)
    assert one.step_ms - one.ms == pytest.approx(47.57) and one.in_time_ms == 47.57
    assert one.step_ms - one.ms >= TIDY_MS


def test_recording_explains_no_more_of_a_host_than_it_costs(monkeypatch):
    """The recorded steps are 77 ms longer than others: 37 may be recording, and 40 are input."""
    one = claimed(monkeypatch, 37.4)
    assert one.step_ms - one.ms == pytest.approx(BUSY_MS + RECORDED["idle_host"] - 37.4 + OTHER_MS)
    unsure = claimed(monkeypatch, 90.0)
    assert unsure.step_ms - unsure.ms == pytest.approx(BUSY_MS + OTHER_MS, abs=0.02), (
        "all of it may be recording"
    )


def test_longer_recorded_steps_that_recording_explains_change_nothing(monkeypatch):
    one = claimed(monkeypatch, 37.4, plain_ms=STEP_MS - 30.0)
    assert one.ms == pytest.approx(RECORDED["idle_input"])
    waits = claimed(monkeypatch, 0.0, plain_ms=STEP_MS - 30.0, comm_wait=30.0)
    assert waits.ms == pytest.approx(RECORDED["idle_input"]), "another rank's host may have been slowed"
    assert claimed(monkeypatch, 0.0, plain_ms=STEP_MS + 5).ms == pytest.approx(RECORDED["idle_input"])
