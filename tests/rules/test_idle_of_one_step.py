"""Idle time of two causes in one undisturbed step."""

from types import SimpleNamespace

import pytest

from traceops.rules.idle_time import idle_of

# Of a Hugging Face Trainer whose collator tokenizes in Python, on an H200, ms: as recorded, and by the light window.
RECORDED = {"idle_input": 103.59, "idle_host": 47.69, "idle_sync": 0.51, "idle_dependency": 0.26, "idle_gap": 0.03}
STEP_MS, IDLE_MS = 137.2, 117.1


def idle(bucket, recorded):
    times = SimpleNamespace(
        mean_ms=lambda name: recorded.get(name, 0.0), step_ms=172.2, summary=SimpleNamespace(on_gpu=True, rank=0)
    )
    own = SimpleNamespace(idle_ms=IDLE_MS, wait_ms=0.0)
    light = SimpleNamespace(step_ms=STEP_MS, of=lambda rank: own)
    share = recorded["idle_host"] / sum(recorded.values())
    return idle_of(times, bucket, None, light, share).ms


def test_input_and_launches_claim_no_more_than_the_device_is_idle():
    """Both together claimed 140 ms of the 117: without its collator the program's launches leave 14 ms idle."""
    assert idle("idle_input", RECORDED) == pytest.approx(103.59)
    assert idle("idle_host", RECORDED) == pytest.approx(IDLE_MS - 103.59)
    assert idle("idle_host", {**RECORDED, "idle_input": 130.0}) == 0.0


def test_without_input_the_host_has_its_recorded_part():
    recorded = {**RECORDED, "idle_input": 0.0}
    assert idle("idle_host", recorded) == pytest.approx(IDLE_MS * 47.69 / (47.69 + 0.51 + 0.26 + 0.03))
