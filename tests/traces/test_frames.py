"""Python frames that last long are kept beside the activities, by either scanner alike."""

import numpy as np
import pytest
from trace_text import document, event

from traceops.traces.frames import LEAST_FRAME_NS

KERNEL = event()
LONG = event("train.py(12): collate", "python_function", "10.5", "500", "{}")
SHORT = event("train.py(30): step", "python_function", "11", "499.999", "{}")


@pytest.mark.usefixtures("either_scanner")
@pytest.mark.parametrize("chunk", [None, 100])
def test_long_frames_are_kept_and_no_activity_changes(load, chunk):
    later = event("nn.Module: Linear_0", "python_function", "600.001", "7500.25", "{}")
    trace = load(document([LONG, KERNEL, SHORT, later, LONG]), chunk)
    frames = trace.frames
    assert [frames.names[number] for number in frames.name] == [
        "train.py(12): collate", "nn.Module: Linear_0", "train.py(12): collate",
    ]  # fmt: skip
    assert frames.ts.tolist() == [10_500, 600_001, 10_500]
    assert frames.dur.tolist() == [LEAST_FRAME_NS, 7_500_250, LEAST_FRAME_NS]
    assert frames.tid.tolist() == [2, 2, 2]
    assert trace.meta.with_stack
    assert trace.events.names == ("k",)
    assert trace.events.index.tolist() == [1]  # counts events of all kinds


@pytest.mark.usefixtures("either_scanner")
def test_times_beyond_a_float_are_exact(load):
    frame = event("a.py(1): f", "python_function", "8796093022208.123", "600.5", "{}")
    trace = load(document([event(ts="8796093022208.123"), frame]))
    assert trace.frames.ts.tolist() == [8_796_093_022_208_123] == trace.events.ts.tolist()
    assert trace.frames.dur.tolist() == [600_500]


@pytest.mark.usefixtures("either_scanner")
@pytest.mark.parametrize(
    "frame",
    [
        SHORT,
        LONG.replace('"ph": "X"', '"ph": "B"'),
        LONG.replace('"ts": 10.5', '"ts": "later"'),
        LONG.replace('"dur": 500', '"dur": null'),
        LONG.replace('"dur": 500', '"dur": -500'),
        LONG.replace('"dur": 500', '"dur": 1e18'),
    ],
)
def test_what_is_short_or_has_no_time_is_left_out(load, frame):
    trace = load(document([KERNEL, frame]))
    assert len(trace.frames) == 0
    assert trace.meta.with_stack
    assert trace.damage == ()


def test_a_trace_without_stacks_has_none(load):
    trace = load(document([KERNEL]))
    assert len(trace.frames) == 0 == len(trace.frames.names)
    assert trace.frames.ts.dtype == np.int64
