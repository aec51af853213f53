"""A loader's workers keep their own pace: a host that recording makes late waits less for them, and is not late."""

from types import SimpleNamespace

import pytest

from traceops.measure.host_places import CodePlace, FunctionTime
from traceops.rules.idle_input import seen_waiting_ms, waits_for_input
from traceops.rules.idle_time import idle_of

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
            on_gpu=True,
            rank=0,
            host=SimpleNamespace(input_ms=4 * input_ms),
            meta=SimpleNamespace(with_stack=False),
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
