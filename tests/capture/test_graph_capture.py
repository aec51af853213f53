"""Steps that end while a CUDA graph is captured: what is launched then is put into the graph, and not done."""

import sys
from types import SimpleNamespace

import pytest

from traceops.capture import steps, timing
from traceops.capture.guard import Guard
from traceops.capture.steps import on_training_step


class Event:
    """Of a GPU that does at once what it is told; one that is put into a graph has no time."""

    def __init__(self, cuda):
        self.cuda = cuda

    def record(self):
        self.captured = self.cuda.capturing
        self.cuda.now += 1
        self.at = self.cuda.now

    def query(self):
        if self.captured:
            raise RuntimeError("CUDA error: invalid argument")
        return True

    def elapsed_time(self, end):
        if self.captured or end.captured:
            raise RuntimeError("CUDA error: invalid argument")
        return end.at - self.at


@pytest.fixture
def cuda(monkeypatch):
    cuda = SimpleNamespace(
        capturing=False, now=0, is_initialized=lambda: True,
        is_current_stream_capturing=lambda: cuda.capturing,
        Event=lambda enable_timing: Event(cuda),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return cuda


@pytest.mark.parametrize(("captured", "left"), [({2}, 4), ({0, 1}, 3), ({5}, 5), (set(), 6)])
def test_steps_round_the_capture_of_a_graph_are_not_timed_and_the_others_are(cuda, captured, left):
    """The first event that was a part of the graph ended the capture."""
    timer = timing.StepTimer()
    for step in range(6):
        cuda.capturing = step in captured
        timer.mark()
    took = timer.durations()
    assert len(took.host_ms) == left and len(took.host_ms) == len(took.device_ms)


@pytest.mark.torch
@pytest.mark.parametrize("step_on", ["optimizer", "forward"])
def test_a_step_that_ends_while_a_graph_is_captured_is_told_of_before_the_next_one(monkeypatch, step_on):
    """A profiler that was stopped in it broke the program's graph, and then the program: SIGSEGV on an H200."""
    torch = pytest.importorskip("torch")
    capturing, told, errors = [False], [], []
    monkeypatch.setattr(steps, "captures_graph", lambda: capturing[0])
    boundary = on_training_step(
        lambda: told.append(capturing[0]), Guard(lambda *what: errors.append(what)), step_on=step_on
    )
    try:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = optimizer.step if step_on == "optimizer" else lambda: model(torch.ones(1, 2))
        step()
        capturing[0] = True
        step()
        assert told == [False]
        capturing[0] = False
        step()
        step()
    finally:
        boundary.remove()
    assert told == [False] * 4 and not errors
