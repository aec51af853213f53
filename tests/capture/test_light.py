"""The light window: CUPTI by itself against a library that plays it, and what becomes of it where CUPTI refuses."""

import ctypes
import gzip
import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from traceops.capture import detaching
from traceops.capture.light import window as sources
from traceops.capture.light import window as window_module
from traceops.capture.light.window import STEPS, Cupti, LightWindow, activities_of, loaded_library
from traceops.capture.schedule import NEVER
from traceops.core.rank_files import KERNEL, LIGHT_FILE, LIGHT_LOG_MAGIC, MEMCPY, MEMSET, ROW

native = pytest.importorskip("traceops.capture.light._cupti")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    source = Path(__file__).with_name("fake_cupti.c")
    target = tmp_path_factory.mktemp("cupti") / "libcupti.so.99"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    return ctypes.CDLL(str(target))


class Device:
    """A GPU whose CUPTI is the fake."""

    def __init__(self, library):
        self.library, self.path, self._names, self.correlation = library, library._name, {}, 0

    def value(self, name, kind=ctypes.c_uint32):
        return kind.in_dll(self.library, name)

    def ran(self, kind, start, end, name="", stream=7, size=1):
        text = self._names.setdefault(name, ctypes.create_string_buffer(name.encode()))
        self.correlation += 1
        ran = self.library.fake_ran
        ran.argtypes = (ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32,
                        ctypes.c_uint32, ctypes.c_uint64)  # fmt: skip
        ran(kind, start, end, ctypes.addressof(text), stream, self.correlation, size)


@pytest.fixture
def device(library, monkeypatch):
    for name in ("fake_refused_kind", "fake_refusal", "fake_enabled", "fake_register", "fake_flush"):
        ctypes.c_uint32.in_dll(library, name).value = 0
    ctypes.c_uint32.in_dll(library, "fake_version").value = 130001
    for variable in (*detaching.INJECTED, "TEARDOWN_CUPTI"):
        monkeypatch.delenv(variable, raising=False)
    yield Device(library)
    native.stop()
    native.take()


def rows_of(found):
    return list(ROW.iter_unpack(found.rows))


def test_kernels_copies_and_memsets_become_rows(device):
    source = Cupti(device.path)
    assert source.start() is None
    now = time.time_ns()
    device.ran(10, now + 100, now + 900, "gemm", stream=7, size=64)
    device.ran(10, now + 950, now + 990, "ncclDevKernel_AllReduce", stream=20)
    device.ran(10, now + 1000, now + 1100, "gemm", stream=7, size=64)
    device.ran(1, now + 1200, now + 1300, stream=13, size=5105)
    device.ran(2, now + 1400, now + 1410, stream=13, size=256)
    found = source.stop()
    assert found.names == ("gemm", "ncclDevKernel_AllReduce")
    assert [(row[6], row[3], row[4], row[2], row[0] - now, row[1] - now) for row in rows_of(found)] == [
        (KERNEL, 0, 7, 64, 100, 900), (KERNEL, 1, 20, 1, 950, 990), (KERNEL, 0, 7, 64, 1000, 1100),
        (MEMCPY, 0xFFFFFFFF, 13, 5105, 1200, 1300), (MEMSET, 0xFFFFFFFF, 13, 256, 1400, 1410),
    ]  # fmt: skip
    assert [row[5] for row in rows_of(found)] == [1, 2, 3, 4, 5] and {row[8] for row in rows_of(found)} == {1}
    assert rows_of(found)[3][7] == 8 and found.discarded == 0
    assert len(found.clocks) == 2 and abs(found.clocks[0][0] - now) < 60e9


def test_nothing_stays_enabled_and_no_buffer_out(device):
    source = Cupti(device.path)
    assert source.start() is None
    assert device.value("fake_enabled").value == (1 << 10) | (1 << 1) | (1 << 2)
    for _ in range(40_000):  # several buffers of 4 MB
        device.ran(10, 5, 6, "k")
    assert len(rows_of(source.stop())) == 40_000
    assert device.value("fake_enabled").value == 0 and device.value("fake_buffers_out").value == 0
    assert native.take() == (b"", [], 0, 0)


def test_a_second_window_has_its_own_rows_only(device):
    for name in ("first", "second"):
        source = Cupti(device.path)
        assert source.start() is None
        device.ran(10, 5, 6, name)
        assert source.stop().names == (name,)


def test_records_without_times_are_counted_and_left_out(device):
    source = Cupti(device.path)
    source.start()
    device.ran(10, 0, 0, "unfinished")
    device.ran(10, 9, 5, "backwards")
    device.ran(10, 5, 9, "whole")
    found = source.stop()
    assert len(rows_of(found)) == 1 and found.discarded == 2


def test_abandoned_nothing_is_enabled_nor_kept(device):
    source = Cupti(device.path)
    source.start()
    device.ran(10, 5, 9, "k")
    source.abandon()
    assert device.value("fake_enabled").value == 0 and native.take()[0] == b""
    assert source.stop() == "it did not record"


@pytest.mark.parametrize("kind", [10, 1, 2])
def test_a_refusal_leaves_no_kind_enabled(device, kind):
    device.value("fake_refused_kind").value, device.value("fake_refusal").value = kind, 39
    source = Cupti(device.path)
    assert source.start() == f"CUPTI refuses: cuptiActivityEnable({kind}) gave 39"
    assert device.value("fake_enabled").value == 0


def test_what_fails_later_is_told_with_the_call(device):
    device.value("fake_register").value = 1
    assert Cupti(device.path).start() == "CUPTI refuses: cuptiActivityRegisterCallbacks(0) gave 1"
    device.value("fake_register").value, device.value("fake_flush").value = 0, 999
    source = Cupti(device.path)
    assert source.start() is None
    device.ran(10, 5, 9, "k")
    assert source.stop() == "CUPTI failed: cuptiActivityFlushAll gave 999"
    assert device.value("fake_enabled").value == 0 and native.take()[0] == b""


@pytest.mark.parametrize("version", [17, 140000])
def test_a_cupti_whose_records_nobody_looked_at_is_left_alone(device, version):
    before = device.value("fake_registrations").value
    device.value("fake_version").value = version
    assert Cupti(device.path).start() == f"CUPTI refuses: cuptiGetVersion({version}) gave 0"
    assert device.value("fake_registrations").value == before


def test_a_library_that_is_not_loaded_is_not_loaded(device, tmp_path):
    other = shutil.copy(device.path, tmp_path / "libcupti.so.13")
    assert "dlopen" in str(Cupti(str(other)).start())
    assert str(other) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("variable", ["CUDA_INJECTION64_PATH", "KINETO_USE_DAEMON"])
def test_another_tool_at_cupti_is_left_alone(device, variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    assert variable in str(Cupti(device.path).start())
    assert device.value("fake_enabled").value == 0


def test_the_library_is_the_one_that_the_process_has():
    line = "7f0 r-xp 0000 08:01 42   {}"
    assert (
        loaded_library([line.format("/a b/libcupti.so.13")] * 3 + [line.format("/libc.so.6")]) == "/a b/libcupti.so.13"
    )
    assert loaded_library([line.format("/a/libcupti.so.13"), line.format("/b/libcupti.so.12")]) is None
    assert loaded_library([]) is None


class Event:
    """An event of kineto's."""

    def __init__(self, name, device="DeviceType.CUDA", annotation=False):
        self._name, self._device, self._annotation = name, device, annotation

    def name(self):
        return self._name

    def device_type(self):
        return self._device

    def is_user_annotation(self):
        return self._annotation

    def start_ns(self):
        return 100

    def duration_ns(self):
        return 20

    def nbytes(self):
        return 512

    def device_resource_id(self):
        return 7

    def correlation_id(self):
        return 3

    def device_index(self):
        return 1


def test_torchs_own_recording_has_the_same_rows():
    others = [Event("aten::mm", "DeviceType.CPU"), Event("ProfilerStep#3", annotation=True)]
    events = [Event("gemm"), Event("Memcpy DtoD (Device -> Device)"), Event("gemm"), *others]
    found = activities_of(events)
    assert found.names == ("gemm",)
    assert [(row[6], row[2], row[3]) for row in rows_of(found)] == [
        (KERNEL, 0, 0),
        (MEMCPY, 512, 0xFFFFFFFF),
        (KERNEL, 0, 0),
    ]
    assert "nothing on the device" in activities_of(others)


class Tensor:
    """The copies by which a window marks steps, as the device runs them."""

    def __init__(self, gpu):
        self._gpu = gpu

    def __getitem__(self, _):
        return self

    def copy_(self, _):
        self._gpu.copied()


class Gpu:
    """Just as much of torch as a window needs, with a device whose clock is the host's."""

    def __init__(self, device):
        self.device, self.version, self.uint8 = device, SimpleNamespace(hip=None), None
        self.cuda = SimpleNamespace(is_current_stream_capturing=lambda: False, synchronize=lambda: None)
        enabled = SimpleNamespace(_profiler_enabled=lambda: False)
        self._C = SimpleNamespace(_autograd=enabled)

    def empty(self, *_, **__):
        return Tensor(self)

    def copied(self):
        now = time.time_ns()
        self.device.ran(1, now, now + 1, size=window_module._MARK_BYTES)


class Timer:
    """Steps of ten milliseconds."""

    def __init__(self):
        self.count = 0

    def mark(self):
        self.count += 1

    def durations(self):
        return SimpleNamespace(step_ms=[10.0] * self.count)


@pytest.fixture
def gpu(device, monkeypatch):
    fake = Gpu(device)
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(window_module, "uses_gpu", lambda: True)
    monkeypatch.setattr(window_module, "StepTimer", Timer)
    monkeypatch.setattr(sources, "loaded_library", lambda: device.path)

    @contextmanager
    def plain(_):
        yield

    monkeypatch.setattr(window_module, "_plain", plain)
    return fake


@contextmanager
def alone(own, give_way):
    """No other profiler starts."""
    yield


def train_one(window, gpu, step, at=lambda step: None, others=-1):
    window.step_begins(step, others)
    at(step)
    now = time.time_ns()
    gpu.device.ran(10, now, now + 5, "gemm")
    window.step_ended(step)


def train(window, gpu, steps, at=lambda step: None):
    for step in range(steps):
        train_one(window, gpu, step, at)


def read(folder, file=LIGHT_FILE):
    raw = gzip.decompress((folder / file).read_bytes())
    assert raw.startswith(LIGHT_LOG_MAGIC)
    header, _, rows = raw[len(LIGHT_LOG_MAGIC) :].partition(b"\n")
    return json.loads(header), list(ROW.iter_unpack(rows))


def test_a_window_of_whole_steps_is_written(gpu, tmp_path):
    window = LightWindow(tmp_path, 3, 5, alone)
    train(window, gpu, 30)
    header, rows = read(tmp_path)
    steps = list(range(6, 6 + STEPS))
    assert header["rank"] == 3 and header["source"] == "cupti" and header["steps"] == steps
    assert header["step_ms"] == [10.0] * STEPS and header["mark_bytes"] == window_module._MARK_BYTES
    assert sum(row[2] == window_module._MARK_BYTES for row in rows) == STEPS + 1
    assert sum(row[6] == KERNEL for row in rows) == STEPS + 1  # the first step, in which it began, is not measured
    assert window.record["source"] == "cupti" and window.record["file"] == f"{tmp_path.name}/{LIGHT_FILE}"
    assert window.record["why"] == {} and all(result == 0 for _, _, result in window.record["calls"])
    assert gpu.device.value("fake_enabled").value == 0 and not window.is_open


def test_a_script_that_ends_before_has_none(gpu, tmp_path):
    window = LightWindow(tmp_path, 0, 5, alone)
    train(window, gpu, 8)
    window.give_way("capture_ended")
    assert list(tmp_path.iterdir()) == [] and window.record["why"] == {"window": "the capture ended"}
    assert gpu.device.value("fake_enabled").value == 0


def test_another_one_behind_a_later_window_takes_its_place(gpu, tmp_path):
    window = LightWindow(tmp_path, 3, 5, alone)
    train(window, gpu, 30)
    assert window.idle_until(30) == NEVER
    window.again(40)
    assert window.idle_until(30) == 40, "it looks out for other profilers from there on"
    for step in range(30, 60):
        train_one(window, gpu, step)
    header, rows = read(tmp_path)
    assert header["steps"] == window.record["steps"] == list(range(43, 43 + STEPS))
    assert sum(row[6] == KERNEL for row in rows) == STEPS + 1 and window.idle_until(60) == NEVER
    assert window.record["source"] == "cupti" and gpu.device.value("fake_enabled").value == 0


class Ended:
    """CUPTI's end behind a window, as on a machine that allows it, or not."""

    def __init__(self, why_not=None):
        self.why_not, self.done = why_not, None

    def attached(self):
        self.done = False

    def in_the_way(self):
        return self.why_not

    def ended(self, why_not):
        self.done = why_not is None


def test_more_windows_follow_at_growing_distances(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr("traceops.capture.light._cupti.detach", list)
    window = LightWindow(tmp_path, 3, 5, alone, detaching=Ended())
    assert window.idle_until(0) == 5 - window_module.AFTER
    train(window, gpu, 30)
    assert window.record["later"] == [] and window.idle_until(30) == 40 - window_module.AFTER
    for step in range(30, 400):
        train_one(window, gpu, step)
    files = [f"light.{number}.bin.gz" for number in (2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([LIGHT_FILE, *files])
    for file, begin in zip(files, (40, 320), strict=True):
        header, rows = read(tmp_path, file)
        assert header["steps"] == list(range(begin + 1, begin + 1 + STEPS))
        assert sum(row[6] == KERNEL for row in rows) == STEPS + 1
    told = window.record["later"]
    assert [one["file"] for one in told] == [f"{tmp_path.name}/{file}" for file in files]
    assert [one["steps"][0] for one in told] == [41, 321] and told[0]["step_ms"] == [10.0] * STEPS
    assert window.record["steps"] == list(range(6, 6 + STEPS)), "the first one is what it was"
    window.give_way("capture_ended")
    assert len(window.record["later"]) == 2 and gpu.device.value("fake_enabled").value == 0


@pytest.mark.parametrize("last", [20, 37])
def test_a_profiler_of_the_scripts_own_since_the_last_one_keeps_the_next_out(gpu, tmp_path, monkeypatch, last):
    """One that warms up is at CUPTI already: its trace lost all kernels, as the light window took its buffers."""
    monkeypatch.setattr("traceops.capture.light._cupti.detach", list)
    window = LightWindow(tmp_path, 3, 5, alone, detaching=Ended())
    train(window, gpu, 13)
    before = gpu.device.value("fake_registrations").value
    for step in range(13, 60):
        train_one(window, gpu, step, others=min(step - 1, last) if step > 20 else -1)
    assert gpu.device.value("fake_registrations").value == before
    assert window.record["later"] == [] and window.idle_until(60) == NEVER


def test_one_before_the_windows_keeps_none_out(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr("traceops.capture.light._cupti.detach", list)
    window = LightWindow(tmp_path, 3, 5, alone, detaching=Ended())
    for step in range(60):
        train_one(window, gpu, step, others=2 if step > 2 else -1)
    assert len(window.record["later"]) == 1


def test_a_later_one_is_cuptis_or_none(gpu, tmp_path, monkeypatch):
    """Torch's profiler disturbs more, leaves CUPTI behind, and is no window of the first one's kind."""
    monkeypatch.setattr("traceops.capture.light._cupti.detach", list)
    started = []
    profiler = SimpleNamespace(ProfilerActivity=SimpleNamespace(CUDA=1), profile=lambda **_: started.append(1))
    monkeypatch.setitem(sys.modules, "torch.profiler", profiler)
    window = LightWindow(tmp_path, 3, 5, alone, detaching=Ended())
    train(window, gpu, 30)
    gpu.device.value("fake_refused_kind").value, gpu.device.value("fake_refusal").value = 10, 39
    for step in range(30, 60):
        train_one(window, gpu, step)
    assert started == [] and window.record["source"] == "cupti" and window.record["later"] == []


def test_no_more_follow_where_cupti_stays(gpu, tmp_path):
    window = LightWindow(tmp_path, 3, 5, alone, detaching=Ended("CUDA 12.1 is too old"))
    train(window, gpu, 60)
    assert window.record["later"] == [] and window.idle_until(60) == NEVER


def test_those_of_an_earlier_beginning_go_with_it(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr("traceops.capture.light._cupti.detach", list)
    window = LightWindow(tmp_path, 3, 5, alone, detaching=Ended())
    train(window, gpu, 60)
    assert (tmp_path / "light.2.bin.gz").exists()
    window.again(70)
    for step in range(60, 90):
        train_one(window, gpu, step)
    assert [path.name for path in tmp_path.iterdir()] == [LIGHT_FILE] and window.record["later"] == []
    assert read(tmp_path)[0]["steps"] == list(range(73, 73 + STEPS))
    assert window.idle_until(90) == 72 * window_module.SPREAD - window_module.AFTER


def test_what_was_recorded_stays_where_another_one_does_not_come_to_its_end(gpu, tmp_path):
    window = LightWindow(tmp_path, 3, 5, alone)
    train(window, gpu, 30)
    before, written = dict(window.record), (tmp_path / LIGHT_FILE).read_bytes()
    window.again(40)
    for step in range(30, 45):
        train_one(window, gpu, step)
    assert window.is_open and window.record == before
    window.give_way("capture_ended")
    assert window.record == before and (tmp_path / LIGHT_FILE).read_bytes() == written
    assert gpu.device.value("fake_enabled").value == 0


def test_one_that_is_due_and_never_came_does_not_keep_the_next_one_out(gpu, tmp_path):
    """A window was asked for that takes the steps of the first one."""
    window = LightWindow(tmp_path, 3, 5, alone)
    window.again(12)
    assert window.idle_until(0) == 5 - window_module.AFTER
    for step in range(12, 40):
        train_one(window, gpu, step)
    assert read(tmp_path)[0]["steps"] == list(range(15, 15 + STEPS))


def test_a_profiler_that_is_at_work_is_left_alone(gpu, tmp_path):
    gpu._C._autograd._profiler_enabled = lambda: True
    before = gpu.device.value("fake_registrations").value
    window = LightWindow(tmp_path, 0, 5, alone)
    train(window, gpu, 30)
    assert gpu.device.value("fake_registrations").value == before and list(tmp_path.iterdir()) == []
    assert "own torch.profiler" in window.record["why"]["window"]


@pytest.mark.parametrize("starts", [3, 4, 7])
def test_a_profiler_of_the_scripts_own_ends_it(gpu, tmp_path, starts):
    others = []

    @contextmanager
    def before_others(own, give_way):
        assert own is None
        others.append(give_way)
        yield

    window = LightWindow(tmp_path, 0, 5, before_others)
    seen = []

    def at(step):
        if step == starts:
            others[-1]()
            seen.append(gpu.device.value("fake_enabled").value)

    before = gpu.device.value("fake_registrations").value
    train(window, gpu, 30, at)
    assert seen == [0] and list(tmp_path.iterdir()) == []
    assert gpu.device.value("fake_registrations").value - before == (starts >= 5), "its buffers are left alone"
    assert window.record["source"] is None and "own torch.profiler" in window.record["why"]["window"]


def test_where_cupti_refuses_torchs_recording_of_the_device_is_taken(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("KINETO_USE_DAEMON", "1")
    state = []

    class Session:
        profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: [Event("gemm")]))

        def start(self):
            state.append("on")

        def stop(self):
            state.append("off")

    gpu._C = SimpleNamespace(_autograd=SimpleNamespace(_profiler_enabled=lambda: False))
    profiler = SimpleNamespace(ProfilerActivity=SimpleNamespace(CUDA=1), profile=lambda activities: Session())
    monkeypatch.setitem(sys.modules, "torch.profiler", profiler)
    window = LightWindow(tmp_path, 0, 5, alone)
    train(window, gpu, 30)
    header, rows = read(tmp_path)
    assert header["source"] == "torch" and header["clocks"] == [] and len(rows) == 1 and state == ["on", "off"]
    assert list(window.record["why"]) == ["cupti"] and window.record["source"] == "torch"


def test_where_nothing_can_record_it_says_why_of_each(gpu, tmp_path, monkeypatch):
    def refused(activities):
        raise RuntimeError("no")

    profiler = SimpleNamespace(ProfilerActivity=SimpleNamespace(CUDA=1), profile=refused)
    monkeypatch.setitem(sys.modules, "torch.profiler", profiler)
    gpu.device.value("fake_refused_kind").value, gpu.device.value("fake_refusal").value = 1, 35
    window = LightWindow(tmp_path, 0, 5, alone)
    train(window, gpu, 30)
    assert window.record["source"] is None and list(tmp_path.iterdir()) == []
    assert window.record["why"] == {
        "cupti": "CUPTI refuses: cuptiActivityEnable(1) gave 35", "torch": "RuntimeError: no",
    }  # fmt: skip


@pytest.mark.parametrize("at", [5, 9, 11])
def test_while_a_graph_is_captured_nothing_waits_for_the_device(gpu, tmp_path, at):
    waited = []
    step = [0]
    gpu.cuda.synchronize = lambda: waited.append(step[0])
    gpu.cuda.is_current_stream_capturing = lambda: step[0] == at
    window = LightWindow(tmp_path, 0, 5, alone)
    train(window, gpu, 30, lambda now: step.__setitem__(0, now + 1 if now == at - 1 and at == 5 else now))
    assert waited == [] and list(tmp_path.iterdir()) == []
    assert window.record["why"] == {"window": "a CUDA graph is being captured where a step ends"}
    assert gpu.device.value("fake_enabled").value == 0


@pytest.mark.parametrize("broken", ["synchronize", "is_current_stream_capturing"])
def test_its_errors_end_it_alone(gpu, tmp_path, broken):
    def fails():
        raise RuntimeError("driver")

    setattr(gpu.cuda, broken, fails)
    window = LightWindow(tmp_path, 0, 5, alone)
    train(window, gpu, 30)
    assert window.record["why"] == {"window": "RuntimeError: driver"} and list(tmp_path.iterdir()) == []
    assert gpu.device.value("fake_enabled").value == 0
