"""A loader's workers keep their own pace: a host that recording makes late waits less for them, and is not late."""

from types import SimpleNamespace

import pytest

from traceops.measure.host_places import CodePlace, FunctionTime
from traceops.rules.idle_time import idle_of, seen_waiting_ms, waits_for_input

# A GPT on an H200 whose only worker cuts text into tokens, ms: as recorded, and a step that is not; 37 looks of 188 saw
# the host in its loader. The same program without that takes 11.2 ms.
RECORDED = {"idle_input": 17.88, "idle_host": 13.99, "compute": 10.67, "memory": 0.06}
STEP_MS, PLAIN_MS, SEEN_MS, TIDY_MS = 42.78, 36.24, 26.49, 11.2


def times(input_ms=17.90):
    return SimpleNamespace(
        mean_ms=lambda name: RECORDED.get(name, 0.0),
        step_ms=STEP_MS,
        duration=[1.0] * 4,
        recorded_events=0.0,
        summary=SimpleNamespace(
            on_gpu=True, rank=0, host=SimpleNamespace(input_ms=4 * input_ms), meta=SimpleNamespace(with_stack=False)
        ),
    )


def whole(looks=37, does="input"):
    place = CodePlace("main", "train.py", 72, "batch = next(batches)")
    return SimpleNamespace(in_time_ms=None, host={0: (FunctionTime(place, SEEN_MS, looks, False, does),)})


def judged(bucket, of_run):
    own = times()
    return idle_of(own, bucket, PLAIN_MS, None, 0.4, seen_waiting_ms(own, of_run))


def test_a_host_that_waits_for_its_loader_is_not_late():
    """21 % of each step was told as late launches, with a warning."""
    assert judged("idle_host", None).ms == pytest.approx(7.63)
    assert judged("idle_host", whole()).ms == 0.0


def test_input_takes_what_looks_see_and_the_step_has_room_for():
    [one] = waits_for_input([judged("idle_input", whole())], whole())
    assert one.by_looks and one.bounded
    assert one.step_ms - one.ms == pytest.approx(TIDY_MS, abs=0.6)
    [trace] = waits_for_input([judged("idle_input", None)], None)
    assert not trace.by_looks and trace.ms == pytest.approx(RECORDED["idle_input"])


def test_few_looks_or_looks_elsewhere_tell_nothing():
    assert seen_waiting_ms(times(), whole(looks=5)) == 0.0
    assert seen_waiting_ms(times(), whole(does=None)) == 0.0


def test_loading_behind_the_devices_work_is_no_waiting():
    """Four fifths of the time in the loader the device works: so much of what looks see does not count."""
    assert seen_waiting_ms(times(input_ms=5 * 17.88), whole()) == pytest.approx(SEEN_MS / 5)


def test_a_light_window_bounds_what_looks_see():
    """It is idle for 24.9 of 35.5 ms: input has what looks see of that, not the 17.9 of the recorded steps."""
    own = SimpleNamespace(idle_ms=24.86, wait_ms=0.0)
    light = SimpleNamespace(step_ms=35.53, of=lambda rank: own)
    seen = seen_waiting_ms(times(), whole())
    [one] = waits_for_input([idle_of(times(), "idle_input", PLAIN_MS, light, 0.4, seen)], whole())
    assert one.by_looks and one.ms == pytest.approx(24.8, abs=0.1)
    assert one.step_ms - one.ms == pytest.approx(TIDY_MS, abs=0.6)
    assert idle_of(times(), "idle_host", PLAIN_MS, light, 0.4, seen).ms == 0.0
