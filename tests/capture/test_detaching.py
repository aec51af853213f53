"""Having CUPTI leave behind our last window: what is done, what is put back, and when nothing is done at all."""

import _thread
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from traceops.capture import detaching, session, steps, timing
from traceops.capture.detaching import INJECTED, MARKER, OFF, VARIABLE, Detaching
from traceops.capture.guard import Guard
from traceops.capture.light.window import Cupti, LightWindow
from traceops.capture.recorder import Recorder
from traceops.capture.schedule import Schedule
from traceops.capture.session import Capture
from traceops.capture.settings import CaptureSettings
from traceops.capture.steps import on_training_step


@pytest.fixture
def gpu(monkeypatch):
    """A machine with CUDA, whose calls are counted."""
    calls = []
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        is_current_stream_capturing=lambda: False,
        synchronize=lambda: calls.append("synchronize"),
    )
    torch = SimpleNamespace(version=SimpleNamespace(hip=None, cuda="13.0"), cuda=cuda, calls=calls)
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name in (*INJECTED, VARIABLE, MARKER):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    return torch


class Unnamed:
    """A thread that Python's `threading` does not know of, as C++ starts them, which waits for `gone`."""

    def __init__(self, gone, then=lambda: None, name=None):
        self.ended = threading.Event()
        begun = threading.Event()

        def run():
            if name is not None:
                Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
            begun.set()
            gone.wait()
            then()
            self.ended.set()

        _thread.start_new_thread(run, ())
        begun.wait()


def test_the_variable_is_set_while_it_stops_and_until_its_thread_is_gone(gpu):
    one = Detaching()
    assert os.environ[VARIABLE] == OFF
    seen, gone = [], threading.Event()

    gpu.cuda.synchronize = gone.set
    with one.around_stop():
        seen.append(os.environ[VARIABLE])
        # Kineto's thread waits for a call to CUDA, then looks at the variable again.
        thread = Unnamed(gone, lambda: seen.append(os.environ[VARIABLE]))
    assert thread.ended.wait(60)
    assert seen == ["1", "1"]
    assert (os.environ[VARIABLE], one.done) == (OFF, True)


def test_a_second_capture_of_the_process_detaches_too(gpu):
    for one in (Detaching(), Detaching()):
        with one.around_stop():
            assert os.environ[VARIABLE] == "1"
        assert (os.environ[VARIABLE], one.done) == (OFF, True)


def test_a_thread_that_stays_is_not_waited_for(gpu, monkeypatch):
    monkeypatch.setattr(detaching, "_MOST_S", 0.0)
    one, gone = Detaching(), threading.Event()
    with one.around_stop():
        thread = Unnamed(gone)
    gone.set()
    assert thread.ended.wait(60)
    assert (os.environ[VARIABLE], one.record) == (OFF, {"done": False, "why_not": "Kineto's thread did not end"})


def test_threads_that_cannot_be_kinetos_are_not_waited_for(gpu):
    """Each cost a second, and run.json said that CUPTI was still there."""
    one, gone, later = Detaching(), threading.Event(), []
    gpu.cuda.synchronize = lambda: later or later.append(Unnamed(gone))
    with one.around_stop():
        pythons = threading.Thread(target=gone.wait)
        pythons.start()
        named = Unnamed(gone, name="pt_elastic")
    gone.set()
    pythons.join()
    assert named.ended.wait(60) and later[0].ended.wait(60)
    assert one.record == {"done": True, "why_not": None}


CAPTURES = """
import json, os, sys, types
from traceops.capture import detaching
cuda = types.SimpleNamespace(
    is_initialized=lambda: True, is_current_stream_capturing=lambda: False, synchronize=lambda: None
)
version = types.SimpleNamespace(hip=None, cuda="13.0")
sys.modules["torch"] = types.SimpleNamespace(version=version, cuda=cuda)
exec(sys.argv[1])
one = detaching.Detaching()
with one.around_stop():
    inside = os.environ[detaching.VARIABLE]
print(json.dumps([inside, os.environ[detaching.VARIABLE], one.record["why_not"]]))
"""


def child_that_captures(script=""):
    done = subprocess.run([sys.executable, "-c", CAPTURES, script], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("script", ["", f"del os.environ['{VARIABLE}']"])
def test_what_a_process_inherits_from_a_capture_is_not_its_scripts_own(gpu, script):
    """Its capture said that TEARDOWN_CUPTI is set, and left CUPTI in the process."""
    one = Detaching()
    assert child_that_captures(script) == ["1", OFF, None]
    with one.around_stop():
        assert child_that_captures(script) == ["1", OFF, None]


def test_what_the_script_of_such_a_process_sets_is_its_own(gpu):
    Detaching()
    assert child_that_captures(f"os.environ['{VARIABLE}'] = '1'") == ["1", "1", f"{VARIABLE} is set"]


def test_an_error_of_the_stop_goes_on_and_the_variable_is_put_back(gpu):
    one = Detaching()
    with pytest.raises(ValueError, match="torch"), one.around_stop():
        raise ValueError("torch")
    assert os.environ[VARIABLE] == OFF and not gpu.calls


def test_without_proc_the_profiler_stops_as_ever(gpu, monkeypatch, tmp_path):
    """It raised before the stop, and the window was lost."""
    monkeypatch.setattr(detaching, "_TASKS", tmp_path / "none")
    one, stopped = Detaching(), []
    with one.around_stop():
        stopped.append(os.environ[VARIABLE])
    assert stopped == [OFF] and "/proc" in str(one.why_not) and not gpu.calls


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_scripts_own_setting_stands(gpu, monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    one = Detaching()
    with one.around_stop():
        assert os.environ[VARIABLE] == value
    assert os.environ[VARIABLE] == value
    assert one.why_not == f"{VARIABLE} is set" and not gpu.calls


def other_tool(gpu):
    os.environ[INJECTED[0]] = "/opt/tool.so"


def capturing(gpu):
    gpu.cuda.is_current_stream_capturing = lambda: True


@pytest.mark.parametrize(
    "change",
    [
        other_tool,
        capturing,
        lambda gpu: setattr(gpu.version, "cuda", "12.4"),
        lambda gpu: setattr(gpu.version, "hip", "6.2"),
        lambda gpu: setattr(gpu.version, "cuda", None),
        lambda gpu: setattr(gpu.cuda, "is_initialized", lambda: False),
    ],
)
def test_nothing_is_done_where_it_is_not_safe(gpu, monkeypatch, change):
    monkeypatch.setenv(INJECTED[0], "")
    one = Detaching()
    change(gpu)
    with one.around_stop():
        assert os.environ[VARIABLE] == OFF
    assert one.in_the_way() is not None and not one.done and not gpu.calls
    no_gpu = not gpu.cuda.is_initialized() or gpu.version.hip or not gpu.version.cuda
    assert (one.record is None) == bool(no_gpu)


@pytest.mark.parametrize(("asked", "done"), [(False, False), (True, True)])
def test_a_cuda_on_which_nobody_tried_it_has_to_be_asked_for(gpu, asked, done):
    gpu.version.cuda = "12.8"
    one = Detaching(asked=asked)
    with one.around_stop():
        pass
    assert one.record == {"done": done, "why_not": None if done else "it was not tried with CUDA 12.8"}


def test_only_the_last_window_detaches(tmp_path):
    schedule = Schedule(skip_first=0, unprofiled=0, warmup=1, active=1, repeat=2)
    ended = []

    class Told:
        def around_stop(self):
            ended.append(recorder._profile.step_num)
            return detaching.contextmanager(lambda: iter([None]))()

    recorder = Recorder(tmp_path, 0, schedule, {}, lambda operation: None, Told())
    for step in range(4):
        if step % 2 == 0:
            recorder.open(step, lambda: None)
        recorder.step()
    assert ended == [3]


DETACH = """
import ctypes, json, sys
from traceops.capture.light import _cupti as native
from traceops.capture.detaching import Detaching
from traceops.capture.light.window import Cupti
class Alone(Detaching):
    in_the_way = lambda self: None
library = ctypes.CDLL(sys.argv[1])
for taken in (0, 1):
    value = lambda name: ctypes.c_uint32.in_dll(library, name)
    value("fake_subscribers").value = taken
    source = Cupti(sys.argv[1], detaching=Alone())
    assert source.start() is None
    run = library.fake_ran
    run.argtypes = [ctypes.c_uint32, *2 * [ctypes.c_uint64], ctypes.c_void_p, *2 * [ctypes.c_uint32], ctypes.c_uint64]
    run(10, 100, 900, ctypes.c_char_p(b"gemm"), 7, 1, 1)
    found = source.stop()
    ended = [value(f"fake_{name}").value for name in ("finalized", "enabled")]
    print(json.dumps([found.names, source.calls[-4:], *ended, source._detaching.record]))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_light_window_ends_cupti_where_nobody_else_subscribes(tmp_path):
    """In a process of its own: its library goes by the driver's name."""
    native = pytest.importorskip("traceops.capture.light._cupti")
    if not hasattr(native, "detach"):
        pytest.skip("the compiled part is older than this test")
    library = tmp_path / "libcupti.so.99"
    source = Path(__file__).with_name("fake_cupti.c")
    named = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    subprocess.run(["cc", "-O1", *named, str(source), "-o", str(library)], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in (*INJECTED, VARIABLE, MARKER)}
    done = subprocess.run(
        [sys.executable, "-c", DETACH, library], check=True, capture_output=True, text=True, env=environment
    )
    alone, other = map(json.loads, done.stdout.splitlines())
    calls = [["cuptiSubscribe", 0, 0], ["cuptiEnableCallback", 2, 0], ["cuptiUnsubscribe", 0, 0]]
    assert alone == [["gemm"], [*calls, ["cuptiFinalize", 0, 0]], 1, 0, {"done": True, "why_not": None}]
    assert other[0] == ["gemm"] and other[1][-1] == ["cuptiSubscribe", 0, 39] and other[2] == 1
    assert other[-1] == {"done": False, "why_not": "cuptiSubscribe gave 39"}


@pytest.mark.parametrize(
    ("shows_gpu", "wish", "set_to"),
    [(True, None, OFF), (True, True, OFF), (True, False, None), (False, None, None), (False, True, None)],
)
def test_the_environment_stays_as_it_is_without_a_gpu(tmp_path, monkeypatch, shows_gpu, wish, set_to):
    for name in (VARIABLE, MARKER):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(session, "may_have_gpu", lambda: shows_gpu)
    settings = CaptureSettings(out=str(tmp_path / "run"), observe=False, detach=wish)
    with Capture(settings):
        assert os.environ.get(VARIABLE) == set_to


def test_a_light_window_that_gives_way_leaves_cupti_in_the_process(gpu, monkeypatch):
    """The window before it had ended CUPTI, and that stood in run.json."""
    native = SimpleNamespace(
        start=lambda *_: (True, []), clocks=lambda: (0, 0), stop=list, take=lambda: (b"", [], 0, 0)
    )
    monkeypatch.setitem(sys.modules, "traceops.capture.light._cupti", native)
    monkeypatch.setattr("traceops.capture.light._cupti", native, raising=False)
    one = Detaching()
    one.ended(None)
    source = Cupti("libcupti.so", detaching=one)
    assert source.start() is None
    source.abandon()
    assert one.record == {"done": False, "why_not": "the light window did not end it"}


def test_a_light_window_that_ends_with_the_capture_takes_back_nothing(gpu, tmp_path, monkeypatch):
    """A program of 1,028 steps ended in its third one: all of its steps then counted as slowed by the profiler."""
    native = SimpleNamespace(
        start=lambda *_: (True, []), clocks=lambda: (0, 0), stop=list, take=lambda: (b"", [], 0, 0)
    )
    monkeypatch.setitem(sys.modules, "traceops.capture.light._cupti", native)
    monkeypatch.setattr("traceops.capture.light._cupti", native, raising=False)
    for why_not in (None, "CUDA 12.4 is too old"):
        one = Detaching()
        one.ended(why_not)
        window = LightWindow(tmp_path, 0, 5, lambda *_: nullcontext(), detaching=one)
        window._source = Cupti("libcupti.so", detaching=one)
        assert window._source.start() is None
        window.close()
        assert not window.is_open and one.record == {"done": why_not is None, "why_not": why_not}
        window.close()
        one.ended("another")
        window.close()
        assert one.record["why_not"] == "another", "of what ended since it stands"


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
