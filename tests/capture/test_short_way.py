"""The short way of a step's end does what the long one does, also in idle steps, and says when something is due."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import traceops
from traceops.capture import progress as heartbeat
from traceops.capture import schedule as later_windows
from traceops.capture import session
from traceops.capture.guard import Guard
from traceops.capture.light.window import LightWindow
from traceops.capture.manifest import readable_ranks
from traceops.capture.observing import step_clock
from traceops.capture.observing import step_clock as signs
from traceops.capture.observing.observer import Observer
from traceops.capture.progress import ProgressWriter, read_progress
from traceops.capture.schedule import NEVER, LaterWindow, Schedule, ask
from traceops.capture.short_way.ways import LongWay, short_way
from traceops.core.rank_files import MAGIC, RECORD, RECORDED, SKIPPED

native = pytest.importorskip("traceops.capture.short_way._short_way")
NONE = Schedule(skip_first=1000)
NAMES = ("first", "second")


def armed(until=NEVER, due_ns=NEVER, filed_ns=0, modules=None, compiled=None, seen=0):
    way = native.ShortWay()
    way.append(bytes(RECORD.size), False)  # makes room, as any long way does
    way.take()
    way.usual_ns, way.count = 1e6, step_clock.FIRST
    way.arm(until, due_ns, filed_ns, sys.modules if modules is None else modules, compiled, NAMES, seen)
    return way


@contextlib.contextmanager
def by_hand():
    """The collector runs where it is told to."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def program():
    """When steps end and the next ones begin, by the two clocks, and what the collector took: odd ones too."""
    now = 5_000_000
    for number in range(300):
        now += 1_000_000 + 7919 * (number % 11) + (5_000_000_000_000 if number == 77 else 0)
        own = 1_500_000 if number % 50 == 49 else 999 * (number % 7)
        yield now, now + own, 10**18 + number, 12_345 * (number % 5)
        now += own


def test_records_are_those_of_the_long_way_to_the_byte(monkeypatch):
    short, plain = armed(), LongWay()
    clock = step_clock.StepClock(plain)
    for way in (short, plain):
        way.usual_ns, way.count, way.begun_ns = 1e6, step_clock.FIRST, 4_000_000
    for ended, resumed, unix, collected in program():
        short.gc_ns = plain.gc_ns = collected
        assert short.passed_at(ended, resumed, unix)
        times = iter([ended, resumed])
        with monkeypatch.context() as still:
            still.setattr(step_clock, "time", SimpleNamespace(perf_counter_ns=lambda times=times: next(times)))
            still.setattr(step_clock, "uses_gpu", lambda: False)
            clock.ended(plain.take_collected(), 0, 0, 0)
            clock.resumed()
        plain.step += 1
        for name in ("step", "count", "begun_ns", "usual_ns", "gc_ns"):
            assert getattr(short, name) == getattr(plain, name), name
    records = short.take()
    assert records == plain.take() and len(records) == 300 * RECORD.size
    assert {record[4] > 1000 for record in RECORD.iter_unpack(records)} == {True, False}
    assert max(record[0] for record in RECORD.iter_unpack(records)) == (1 << 32) - 1


def told(memory):
    """Both records, and what is behind them."""
    return [heartbeat._MEMORY.unpack_from(memory, at) for at in heartbeat._SLOTS], memory[heartbeat._TAKEN :]


def test_the_heartbeat_is_that_of_the_long_way(tmp_path, monkeypatch):
    writer, other = bytearray(heartbeat._LAST + 1), bytearray(heartbeat._LAST + 1)
    plain = ProgressWriter(tmp_path, 0)
    plain._memory, plain._phase, plain._filed_ns = (
        (heartbeat.ctypes.c_char * len(other)).from_buffer(other),
        "done",
        10**18,
    )
    writer[heartbeat._TAKEN] = other[heartbeat._TAKEN] = 1
    way = armed(filed_ns=10**18)
    way.publish_to(writer)
    way.arm(NEVER, NEVER, 10**18, sys.modules, None, NAMES, 0)
    samples = None
    for number, (ended, resumed, unix, _) in enumerate(program()):
        if number == 20:
            way.samples = samples = 64
        monkeypatch.setattr(heartbeat.time, "time_ns", lambda unix=unix: unix)
        assert way.passed_at(ended, resumed, unix)
        assert not plain.write("done", number + 1, samples)
        assert told(writer) == told(other)
    assert told(writer)[0][writer[heartbeat._LAST]][0] == 300


def test_a_record_that_waits_for_its_device_keeps_those_behind_it():
    for way in (native.ShortWay(), LongWay()):
        numbers = [way.append(bytes([number] * RECORD.size), number == 2) for number in range(4)]
        assert numbers == [0, 1, 2, 3] and way.held == 2
        assert [record[7] for record in RECORD.iter_unpack(way.take())] == [0, 1]
        way.on_device(2, 77)
        way.on_device(0, 78)  # gone
        assert way.take() == b""
        way.held = NEVER
        assert [record[1] for record in RECORD.iter_unpack(way.take())] == [77, 0x03030303]
        assert way.append(bytes(RECORD.size), False) == 4


def test_what_is_no_record_is_refused():
    with pytest.raises(ValueError, match="no record"):
        native.ShortWay().append(b"1", False)
    with pytest.raises(ValueError, match="too small"):
        native.ShortWay().publish_to(bytearray(8))


def test_it_says_no_until_it_is_armed_and_changes_nothing():
    way = native.ShortWay()
    assert not way.passed() and (way.step, way.count, way.take()) == (0, 0, b"")


def test_steps_pass_until_one_at_whose_end_something_is_due():
    way = armed(until=3)
    assert [way.passed() for _ in range(5)] == [True, True, True, False, False]
    assert way.step == 3 and len(way.take()) == 3 * RECORD.size
    way = armed(due_ns=1_000_000)
    assert way.passed_at(999_999, 999_999, 0) and not way.passed_at(1_000_000, 1_000_000, 0)
    way = armed()
    way.rest()
    assert not way.passed()


def test_where_there_is_no_room_it_says_no_and_the_long_way_makes_some():
    way = armed()
    passed = 0
    while way.passed():
        passed += 1
    way.append(bytes(RECORD.size), False)
    way.arm(NEVER, NEVER, 0, sys.modules, None, NAMES, 0)
    assert passed > 1000 and way.passed()
    assert len(way.take()) == (passed + 2) * RECORD.size


@pytest.mark.parametrize(
    ("times", "seen", "more"),
    [
        ({}, 0, lambda times: times.update(first=[0.1])),
        ({"second": []}, 0, lambda times: times["second"].append(0.1)),
        ({"other": [1, 2], "second": [1, 2]}, 2, lambda times: times["second"].append(0.1)),
        ({"second": [1, 2]}, 2, lambda times: times.clear()),
        ({"second": [1, 2]}, 2, lambda times: times.update(first=[1])),
        ({"second": [1, 2]}, 2, lambda times: times.update(second=())),
    ],
)
def test_a_compilation_is_due(times, seen, more):
    way = armed(compiled=times, seen=seen)
    assert way.passed() and way.passed()
    more(times)
    assert not way.passed()


def test_a_module_that_is_loaded_may_be_the_compiler():
    modules = {"one": 1}
    way = armed(modules=modules)
    assert way.passed()
    modules["two"] = 2
    assert not way.passed()


def test_samples_are_added_up_or_left_to_the_long_way():
    way = armed()
    assert way.passed(8) and way.passed() and way.passed(4) and way.samples == 12
    for odd in (-1, 1 << 80, 1.5, True, "8"):
        assert not way.passed(odd)
        way.arm(NEVER, NEVER, 0, sys.modules, None, NAMES, 0)
    assert way.samples == 12 and way.step == 3


def test_another_thread_and_a_forked_process_are_not_its_own():
    way, told = armed(), []
    other = threading.Thread(target=lambda: told.append(way.passed()))
    other.start()
    other.join()
    assert told == [False] and not way.passed()
    way = armed()
    child = os.fork()
    if not child:
        os._exit(int(way.passed()))
    assert os.waitpid(child, 0)[1] == 0 and way.passed()


def test_the_collectors_time_is_that_of_the_step_in_which_it_ran():
    way = armed()
    gc.callbacks.append(way.collected)
    with by_hand(), contextlib.ExitStack() as after:
        after.callback(gc.callbacks.remove, way.collected)
        for step in range(3):
            if step == 1:
                junk = [[] for _ in range(50_000)]
                gc.collect()
                del junk
            assert way.passed()
    took = [record[2] for record in RECORD.iter_unpack(way.take())]
    assert took[0] == took[2] == 0 < took[1]


def test_it_lets_go_of_what_it_holds():
    memory, modules = bytearray(heartbeat._LAST + 1), {}
    before = sys.getrefcount(memory), sys.getrefcount(modules)
    for _ in range(3):
        way = armed(modules=modules, compiled=modules)
        way.publish_to(memory)
        way.publish_to(None)
        way.publish_to(memory)
    del way
    assert (sys.getrefcount(memory), sys.getrefcount(modules)) == before


def test_memory_that_it_is_told_to_leave_or_cannot_have_stays_as_it_was():
    """It wrote to memory that it had released, which may be anything's by then."""
    memory = bytearray(heartbeat._LAST + 1)
    way = native.ShortWay()
    way.append(bytes(RECORD.size), False)
    way.publish_to(memory)
    with pytest.raises(BufferError):
        way.publish_to(bytes(200))
    way.arm(NEVER, NEVER, 5, sys.modules, None, NAMES, 0)
    assert way.passed() and any(memory), "it has the old one"
    memory[:] = bytes(len(memory))
    way.publish_to(None)
    way.arm(NEVER, NEVER, 5, sys.modules, None, NAMES, 0)
    assert way.passed() and not any(memory)


# In a capture.


@pytest.fixture(params=["compiled", "python"])
def way(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(session, "short_way", LongWay)
    return request.param


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TRACEOPS_CAPTURE", raising=False)
    (tmp_path / "progress").mkdir()
    return tmp_path


def capture(folder, schedule=NONE, **options):
    return traceops.capture(
        folder / "run", schedule=schedule, progress=str(folder / "progress"), launched=True, **options
    )


def records(folder):
    content = (folder / "run" / "rank_0" / "steps.bin").read_bytes()[len(MAGIC) :].split(b"\n", 1)[1]
    return list(RECORD.iter_unpack(content))


def long_ways(running, monkeypatch):
    """The steps that go it, from now on."""
    found, before = [], running._watch_end

    def heard(samples, *, recorded):
        found.append(running.steps)
        return before(samples, recorded=recorded)

    monkeypatch.setattr(running, "_watch_end", heard)
    return found


@pytest.mark.torch
def test_a_program_is_told_alike_by_both_ways(folder, monkeypatch, way):
    """With a window, the collector, a compilation and a skipped step, each in its own step."""
    utils = SimpleNamespace(compilation_time_metrics={}, _compilation_metrics=[])
    steps, times = 60, []
    with by_hand(), capture(folder, Schedule(skip_first=20, unprofiled=2, warmup=1, active=2)) as running:
        going = long_ways(running, monkeypatch)
        for step in range(steps):
            if step == 30:
                monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
                running._way.rest()  # where another one was there before
            if step == 40:
                junk = [[] for _ in range(50_000)]
                gc.collect()
                del junk
            if step == 45:
                utils.compilation_time_metrics[signs.COMPILED[0]] = [0.25]
            if step == 50:
                running.skipped()
            began = time.perf_counter_ns()
            running.step(samples=3)
            times.append((began, time.perf_counter_ns()))
            (told,) = read_progress(folder / "progress")
            assert (told.step, told.samples) == (step + 1, 3 * (step + 1))
    found = records(folder)
    assert len(found) == steps
    for step in range(1, steps):  # each is as long as from its own end to the last one's, but for the capture itself
        least, most = times[step][0] - times[step - 1][1], times[step][1] - times[step - 1][0]
        assert least // 1000 - 1 <= found[step][0] <= most // 1000 + 1, step
    assert [step for step in range(30, steps) if found[step][2]] == [40]
    compiled = [step for step in range(1, steps) if found[step][6]]  # the first has what this process did before
    assert compiled == [45] and found[45][3] == 250_000
    assert [step for step in range(steps) if found[step][7] & SKIPPED] == [50]
    # The window's, and the one behind it.
    assert [step for step in range(steps) if found[step][7] & RECORDED] == [22, 23, 24, 25]
    if way == "compiled":
        assert {45, 50} < set(going) and len(going) < steps, "some go the short way"


@pytest.mark.torch
@pytest.mark.parametrize("begins", ["profile", "emit_itt", "public"])
def test_a_profiler_of_the_scripts_own_is_seen_at_once(folder, begins):
    import torch

    made = {
        "profile": lambda: torch.autograd.profiler.profile(),
        "emit_itt": lambda: torch.autograd.profiler.emit_itt(),
        "public": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    }[begins]
    with capture(folder) as running:
        for _ in range(10):
            running.step()
            read_progress(folder / "progress")
        assert running._way.armed
        with made():
            running.step()
            assert not running._way.armed
            running.step()
        for _ in range(4):
            running.step()
        assert running._way.armed, "again, once it is over"
    assert [step for step, record in enumerate(records(folder)) if record[-1] & RECORDED] == [10, 11, 12, 13]


@pytest.mark.torch
@pytest.mark.parametrize("ends", ["close", "error", "observer"])
def test_nothing_goes_the_short_way_after_an_end(folder, monkeypatch, ends):
    with capture(folder) as running:
        for _ in range(10):
            running.step()
            read_progress(folder / "progress")
        assert running._way.armed
        if ends == "close":
            running.close()
        elif ends == "error":
            running.guard.run(None, lambda: 1 / 0)
        else:
            running._watchers.observer._give_up(OSError("full"))
        assert not running._way.armed
        running.step()
        assert not running._way.armed
        assert running.steps == 10 + (ends != "close")


@pytest.mark.torch
def test_each_step_goes_the_long_way_until_the_launcher_has_the_memory(folder, monkeypatch):
    with capture(folder) as running:
        going = long_ways(running, monkeypatch)
        for _ in range(10):
            running.step()
        assert going == list(range(10))
        read_progress(folder / "progress")
        running.step()  # arms it
        assert running._way.armed


@pytest.mark.torch
def test_a_handler_that_ends_steps_does_not_lose_one(folder, monkeypatch):
    """Python runs it between two lines of the long way."""
    with capture(folder) as running:
        before = signal.signal(signal.SIGUSR1, lambda number, frame: running.step())
        try:
            for _ in range(10):
                running.step()
                read_progress(folder / "progress")
            with monkeypatch.context() as raising:
                take = running._watchers.observer._compilations.take
                raising.setattr(session, "_LONG_WAY_NS", 0)
                raising.setattr(
                    running._watchers.observer._compilations, "take",
                    lambda step: (raising.undo(), signal.raise_signal(signal.SIGUSR1), take(step))[2],
                )  # fmt: skip
                running._way.rest()
                running.step()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert len(records(folder)) == 12


KILLED = """
import os, signal, sys
import traceops
from traceops.capture.schedule import Schedule
out, progress = sys.argv[1:]
running = traceops.capture(
    out, schedule=Schedule(skip_first=10**6), progress=progress, launched=True, observe=True
).__enter__()
for _ in range(8):
    running.step(samples=2)
print("there", flush=True)
sys.stdin.readline()
while running.steps < 300:
    running.step(samples=2)
    running._idle_until = 1 << 60
print(running._way.armed, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_rank_that_was_killed_on_the_short_way_has_told_its_last_step(folder):
    arguments = [sys.executable, "-c", KILLED, str(folder / "run"), str(folder / "progress")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout.readline() == "there\n"
        assert read_progress(folder / "progress")[0].step == 8
        printed, _ = rank.communicate("\n")
    assert rank.returncode == -signal.SIGKILL and printed == "1\n"
    (told,) = read_progress(folder / "progress")
    assert (told.step, told.samples) == (300, 600)


def test_an_observer_without_a_capture_has_a_way_of_its_own(tmp_path):
    observer = Observer(tmp_path, 0)
    assert type(observer._way) is type(short_way())
    observer.close()


IDLE = Schedule(skip_first=1000)


@pytest.fixture(params=["compiled", "python"])
def either_way(request, monkeypatch):
    """Idle steps go the short way where that is compiled: both ways are to be noticed alike."""
    if request.param == "python":
        monkeypatch.setattr(session, "short_way", LongWay)
    elif type(short_way()) is LongWay:
        pytest.skip("nothing is compiled here")
    return request.param


@pytest.fixture
def progress(tmp_path, monkeypatch):
    monkeypatch.setattr(later_windows, "_LOOK_EVERY_S", 0.0)
    monkeypatch.delenv("TRACEOPS_CAPTURE", raising=False)
    folder = tmp_path / "progress"
    folder.mkdir()
    return folder


def open_capture(folder, schedule, progress):
    return traceops.capture(folder / "run", schedule=schedule, progress=str(progress), launched=True)


def busy(running, monkeypatch):
    """The numbers of the steps at whose end more is due than watching, from now on."""
    found, before = [], running._stepped

    def heard(samples):
        found.append(running.steps)
        before(samples)

    monkeypatch.setattr(running, "_stepped", heard)
    return found


def flags(folder):
    content = (folder / "run" / "rank_0" / "steps.bin").read_bytes()[len(MAGIC) :].split(b"\n", 1)[1]
    return [record[-1] for record in RECORD.iter_unpack(content)]


@pytest.mark.torch
@pytest.mark.usefixtures("either_way")
def test_steps_around_windows_are_not_idle_and_all_are_written(tmp_path, progress, monkeypatch):
    schedule = Schedule(skip_first=3, unprofiled=1, warmup=1, active=1)  # steps 3 to 5
    with open_capture(tmp_path, schedule, progress) as running:
        found = busy(running, monkeypatch)
        for step in range(14):
            running.step(samples=4)
            assert read_progress(progress)[0].step == step + 1
        assert read_progress(progress)[0].samples == 56
    assert found == [0, *range(2, 9)], "from step 5 on the light window is waited for"
    assert len(flags(tmp_path)) == 14


@pytest.mark.torch
@pytest.mark.usefixtures("either_way")
def test_a_window_that_is_asked_for_in_an_idle_step_may_begin_with_the_next(tmp_path, progress, monkeypatch):
    monkeypatch.setattr(session, "_LONG_WAY_NS", 0)  # look each time
    schedule = Schedule(skip_first=0, unprofiled=0, warmup=1, active=1)
    with open_capture(tmp_path, schedule, progress) as running:
        found = busy(running, monkeypatch)
        for step in range(18):
            if step == 12:
                ask(progress, LaterWindow(1, 13, 1, 2))
            running.step()
    assert 12 not in found and {13, 14, 15} <= set(found)
    (rank,), problems = readable_ranks(tmp_path / "run")
    assert [window.steps for window in rank.windows] == [[1], [14, 15]] and not problems
    assert [bool(flag & RECORDED) for flag in flags(tmp_path)][11:] == [False] * 2 + [True] * 4 + [False]


@pytest.mark.torch
@pytest.mark.usefixtures("either_way")
def test_an_idle_step_in_another_thread_is_noticed(tmp_path, progress, monkeypatch, either_way):
    with open_capture(tmp_path, IDLE, progress) as running:
        found = busy(running, monkeypatch)
        for _ in range(8):
            running.step()
            read_progress(progress)  # as the launcher does
        assert bool(running._way.armed) == (either_way == "compiled")
        other = threading.Thread(target=running.step)
        other.start()
        other.join()
        running.step()
        for _ in range(2):
            running.step()
    assert found == [0, 8, 9, 10]
    assert len(flags(tmp_path)) == 12


@pytest.mark.torch
@pytest.mark.usefixtures("either_way")
def test_a_forked_process_is_no_rank_in_idle_steps_either(tmp_path, progress):
    with open_capture(tmp_path, IDLE, progress) as running:
        for _ in range(8):
            running.step()
            read_progress(progress)
        child = os.fork()
        if not child:
            running.step()
            running.step()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert read_progress(progress)[0].step == running.steps == 8
        running.step()
        assert read_progress(progress)[0].step == 9
    assert len(flags(tmp_path)) == 9


@pytest.mark.torch
@pytest.mark.usefixtures("either_way")
def test_after_a_failure_no_step_is_idle(tmp_path, progress, monkeypatch):
    monkeypatch.setattr(session, "_LONG_WAY_NS", 0)  # the short way has nothing that could fail
    with open_capture(tmp_path, IDLE, progress) as running:
        found = busy(running, monkeypatch)
        running.step()
        with monkeypatch.context() as broken:
            broken.setattr(running._others, "step_ended", None)
            running.step()
        assert running.failure is not None and found == [0]
        running.step()
        assert found == [0, 2] and read_progress(progress)[0].phase == "done"


@pytest.mark.torch
@pytest.mark.usefixtures("either_way")
def test_a_guard_asks_for_the_process_unless_it_is_known(monkeypatch):
    guard = Guard(lambda operation, error: None)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert guard.run(None, int) is None and guard.run_here(None, int) == 0


@pytest.mark.torch
@pytest.mark.usefixtures("either_way")
def test_the_light_window_hears_of_a_profiler_that_only_warms_up(tmp_path, progress, monkeypatch):
    """Nothing but its preparation tells of it: torch says that none is enabled."""
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler import schedule as cycle

    heard = {}
    monkeypatch.setattr(LightWindow, "step_begins", lambda self, step, others=-1: heard.update({step: others}))
    monkeypatch.setattr(LightWindow, "idle_until", lambda self, step: step)
    short = Schedule(skip_first=0, unprofiled=0, warmup=1, active=1)
    with open_capture(tmp_path, short, progress) as running:
        for _ in range(5):
            running.step()
        with profile(activities=[ProfilerActivity.CPU], schedule=cycle(wait=0, warmup=9, active=1)) as own:
            for _ in range(3):
                running.step()
                own.step()
        for _ in range(3):
            running.step()
    assert [heard[step] for step in range(2, 12)] == [-1, -1, -1, -1, 5, 6, 7, 8, 8, 8]
