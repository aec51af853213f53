"""What a rank observes of itself, and that nothing of it reaches the training."""

import gc
import json
import linecache
import signal
import sys
import textwrap
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from traceops.capture.observing import step_clock
from traceops.capture.observing import step_clock as signs
from traceops.capture.observing.observer import Observer, Pace
from traceops.capture.observing.stacks import Stacks, without_gradients
from traceops.capture.short_way.ways import LongWay, short_way
from traceops.capture.threads import our_threads
from traceops.core.rank_files import EVENT, RECORD, RECORDED, SKIPPED, SPAN
from traceops.traces.observed import _read_lines, read_observed


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rank_0").mkdir()
    return tmp_path / "rank_0"


def read(folder):
    return read_observed(str(folder.parent), 0)[0]


def wait_for(done):
    while not done():
        time.sleep(0.002)


def slow_function(observer):
    """Until it was looked at."""
    count = observer.samples
    wait_for(lambda: observer.samples > count)


def test_every_step_is_timed_and_the_host_is_seen(folder):
    callbacks = list(gc.callbacks)
    observer = Observer(folder, 0)
    flags = [(False, False), (True, False), (True, False), (False, False), (False, True)]
    for recorded, skipped in flags:
        observer.step_ended(recorded=recorded, skipped=skipped)
        observer.step_begins(recorded=False)
        slow_function(observer)
    assert observer.close() and observer.trouble is None
    seen = read(folder)
    # The step after a window too: the ranks come together again in it.
    assert seen.steps["flags"].tolist() == [0, RECORDED, RECORDED, RECORDED, SKIPPED]
    assert (seen.steps["host_us"][1:] > 0).all() and (seen.steps["device_us"] == 0).all()
    functions = {seen.frames[n].function for stack in seen.stacks for n in stack}
    assert "slow_function" in functions
    own = next(f for f in seen.frames if f.function == "slow_function")
    assert own.text == "wait_for(lambda: observer.samples > count)"
    assert "traceops-observer" not in {thread.name for thread in our_threads()}
    assert gc.callbacks == callbacks


def test_nobody_looks_while_the_profiler_records(folder):
    observer = Observer(folder, 0)
    observer.step_ended(recorded=False)
    observer.step_begins(recorded=True)
    looks = observer.samples
    time.sleep(0.1)
    assert observer.samples == looks
    observer.close()


def test_the_collectors_time_is_that_of_its_step(folder):
    observer = Observer(folder, 0)
    gc.disable()  # it runs where it is told to
    try:
        for step in range(3):
            if step == 1:
                junk = [[] for _ in range(50_000)]
                gc.collect()
                del junk
            observer.step_ended(recorded=False)
            observer.step_begins(recorded=False)
    finally:
        gc.enable()
    observer.close()
    took = read(folder).steps["gc_us"].tolist()
    assert took[0] == took[2] == 0 < took[1]


def test_a_look_keeps_nothing_of_the_program_alive():
    stacks = Stacks(threading.get_ident())

    class Tensor:
        pass

    def holds():
        tensor = Tensor()
        reference.append(weakref.ref(tensor))
        stacks.sample(0, 1)

    reference = []
    holds()
    assert stacks.count == 1 and reference[0]() is None


def test_a_disk_that_takes_no_more_ends_the_observer_alone(folder, monkeypatch):
    observer = Observer(folder, 0)

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("traceops.capture.observing.observer._append", full)
    observer.step_ended(recorded=False)
    observer.close()
    assert "No space left" in observer.trouble
    observer.step_ended(recorded=False)
    observer.step_begins(recorded=False)


def test_what_a_signal_handler_of_the_script_raises_is_the_scripts(folder, monkeypatch):
    class OutOfTime(Exception):
        pass

    def alarm(number, frame):
        raise OutOfTime

    observer = Observer(folder, 0)
    before = signal.signal(signal.SIGUSR1, alarm)
    monkeypatch.setattr(observer._garbage, "take", lambda: signal.raise_signal(signal.SIGUSR1))
    try:
        with pytest.raises(OutOfTime):
            observer.step_ended(recorded=False)
    finally:
        signal.signal(signal.SIGUSR1, before)
        observer.close()
    assert observer.trouble is None


class Event:
    """One of torch's on a device that has finished `done` ms of its work."""

    now = 0.0
    done = 0.0

    def __init__(self, enable_timing):
        self.at = None

    def record(self):
        self.at = Event.now

    def query(self):
        return self.at <= Event.done

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.fixture
def cuda(monkeypatch):
    made = SimpleNamespace(capturing=False, Event=Event)
    made.is_current_stream_capturing = lambda: made.capturing
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=made))
    monkeypatch.setattr(step_clock, "uses_gpu", lambda: True)
    monkeypatch.setattr(step_clock, "_TAKE_NS", 0)
    monkeypatch.setattr(step_clock, "_EVENTS_COST", 1e12)
    Event.now = Event.done = 0.0
    return made


@pytest.fixture(params=["compiled", "python"])
def clock(request, monkeypatch):
    """A function that makes one, and what it has handed out so far."""
    way = LongWay() if request.param == "python" else short_way()
    if request.param == "compiled" and type(way) is LongWay:
        pytest.skip("nothing is compiled here")
    made, taken = step_clock.StepClock(way), bytearray()

    def records():
        taken.extend(way.take())
        return list(RECORD.iter_unpack(taken))

    made.records = records
    return made


def device_us(clock):
    return [record[1] for record in clock.records()]


def test_events_are_looked_at_now_and_then_and_at_the_end(clock, cuda, monkeypatch):
    monkeypatch.setattr(step_clock, "_TAKE_NS", 10**18)
    for _ in range(5):
        Event.now += 10.0
        Event.done = Event.now
        clock.ended(0, 0, 0, 0)
        clock.resumed()
    assert 10_000 not in device_us(clock)
    clock.finish()
    assert device_us(clock) == [0, 10_000, 10_000, 10_000, 10_000]


def test_the_devices_time_comes_when_the_device_has_it(clock, cuda):
    for _ in range(4):
        Event.now += 20.0
        clock.ended(0, 0, 0, 0)
        clock.resumed()
    assert device_us(clock) == [0], "only the first step, whose begin has no event, is known"
    Event.done = 60.0
    clock.resumed()
    assert device_us(clock) == [0, 20_000, 20_000]
    clock.finish()
    assert device_us(clock) == [0, 20_000, 20_000, 0], "the device never got there"


def test_nothing_is_put_into_a_graph_that_is_captured(clock, cuda):
    Event.done = 1e9
    for step in range(6):
        cuda.capturing = step == 3
        Event.now += 10.0
        clock.ended(0, 0, 0, 0)
        clock.resumed()
    assert device_us(clock) == [0, 10_000, 10_000, 0, 0, 10_000]


def test_steps_that_end_within_each_other_are_all_kept(clock):
    """Of two threads, or in a signal handler of the script's: the later ones would all be a number too low."""
    for flags in (1, 2):
        clock.ended(0, 0, 0, flags)
    for _ in range(2):
        clock.resumed()
    clock.finish()
    assert [record[-1] for record in clock.records()] == [1, 2]


def test_a_step_that_ends_within_anothers_end_keeps_that_ones_events(clock, cuda):
    Event.done = 1e9
    for now in (10.0, 20.0, 50.0):
        Event.now = now
        clock.ended(0, 0, 0, 0)
    clock.resumed()
    clock.finish()
    assert device_us(clock) == [0, 10_000, 30_000]


@pytest.mark.parametrize(("step_ms", "single"), [(1, 1 / 60), (10, 1 / 7), (20, 1 / 4), (31, 1), (200, 1)])
def test_events_take_a_thousandth_of_the_time(clock, cuda, monkeypatch, step_ms, single):
    """An event of 30 µs fits into each step from 30 ms on; of shorter steps some have one at each end."""
    now, events = [10**9], []

    class Dear(Event):
        def record(self):
            super().record()
            now[0] += 30_000
            events.append(now[0])

    cuda.Event = Dear
    monkeypatch.setattr(step_clock, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    monkeypatch.setattr(step_clock, "_EVENTS_COST", 0.001)
    clock._way.begun_ns = clock._ended = clock._taken_ns = began = now[0]
    clock._free_ns = 0
    for _ in range(600):
        now[0] += step_ms * 1_000_000 - 30_000
        Event.now = Event.done = now[0] / 1e6
        clock.ended(0, 0, 0, 0)
        clock.resumed()
    clock.finish()
    records = clock.records()
    own = [record[1] for record in records if record[1] and not record[7] & SPAN]
    assert len(records) == 600 and abs(len(own) / 600 - single) < 0.01
    assert all(abs(us - 1000 * step_ms) <= 31 for us in own)
    spans = [number for number, record in enumerate(records) if record[7] & SPAN]
    marks = [number for number, record in enumerate(records) if record[7] & EVENT]
    for number in spans:
        count = number - max(mark for mark in marks if mark < number)
        assert count > 1 and records[number][1] == pytest.approx(count * 1000 * step_ms, abs=31 * count)
    assert bool(spans) == (single < 1)
    assert 30_000 * len(events) <= 0.00101 * (now[0] - began) + 60_000
    assert len({id(event) for event in clock._spare}) == len(clock._spare) <= 2 + 200 // step_ms


@pytest.mark.parametrize(("step_ms", "known"), [(10, 1.0), (4, 0.1)])
def test_each_step_of_a_short_training_has_events(clock, cuda, monkeypatch, step_ms, known):
    """60 steps of 10 ms, where the budget of 0.1 % is one event; steps of 4 ms would be longer by it."""
    now = [10**9]

    class Dear(Event):
        def record(self):
            super().record()
            now[0] += 100_000

    cuda.Event = Dear
    monkeypatch.setattr(step_clock, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    monkeypatch.setattr(step_clock, "_EVENTS_COST", 0.001)
    clock._way.begun_ns = clock._ended = clock._taken_ns = now[0]
    for _ in range(60):
        now[0] += step_ms * 1_000_000
        Event.now = Event.done = now[0] / 1e6
        clock.ended(0, 0, 0, 0)
        clock.resumed()
    clock.finish()
    singles = [record[1] for record in clock.records()[1:] if record[1] and not record[7] & SPAN]
    assert len(singles) == 59 if known == 1.0 else 0 < len(singles) <= known * 60


def test_a_span_ends_where_the_capture_itself_was_at_work(clock, cuda, monkeypatch):
    """A window that is written makes the device idle, and the steps beside it are as long as the others."""
    now = [10**9]
    monkeypatch.setattr(step_clock, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    clock._way.begun_ns = clock._ended = clock._taken_ns = now[0]
    Event.done = 1e9
    for step in range(9):
        clock._event_due_ns = 0 if step in (1, 6) else 10**18
        now[0] += 10_000_000
        Event.now = now[0] / 1e6
        clock.ended(0, 0, 0, 0)
        now[0] += 5_000_000 if step == 4 else 0
        Event.now = now[0] / 1e6
        clock.resumed()
    clock.finish()
    assert device_us(clock) == [0, 0, 10_000, 0, 0, 0, 0, 10_000, 0]
    assert [record[7] for record in clock.records()] == [0, EVENT, EVENT, 0, 0, 0, EVENT, EVENT, 0]


def test_the_want_of_a_core_is_looked_at_in_recorded_steps_only(clock, monkeypatch):
    waited = iter([10_000_000, 12_550_000, None, 5_000_000, 3_600_000_000_000])
    monkeypatch.setattr(step_clock, "_waited_for_cores_ns", lambda: next(waited))
    for next_is_recorded in (True, False, True, True, False):
        clock.ended(0, 0, 0, 0)
        clock.resumed(recorded=next_is_recorded)
    clock.finish()
    told = [record[5] for record in clock.records()]
    assert told == [0, 25, 0, 0, 65_535], "2.55 ms; not recorded; not told by the system; more than fits"


def test_compilations_are_read_where_torch_keeps_them(monkeypatch):
    utils = SimpleNamespace(compilation_time_metrics={}, _compilation_metrics=[])
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    compilations = signs.Compilations()
    assert compilations.take(0) == (0, 0)
    utils.compilation_time_metrics["_compile.compile_inner"] = [0.5, 0.25]
    utils._compilation_metrics.append(
        SimpleNamespace(
            start_time_us=5, duration_us=750_000, co_name="forward", co_filename="/m.py", co_firstlineno=9,
            recompile_reason="tensor 'x' size mismatch",
        )
    )  # fmt: skip
    assert compilations.take(7) == (750_000_000, 2)
    assert compilations.take(8) == (0, 0)
    assert compilations.notes == [["c", 7, 750_000, "forward", "/m.py", 9, "tensor 'x' size mismatch"]]
    utils.compilation_time_metrics.clear()  # torch._dynamo.reset()
    assert compilations.take(9) == (0, 0)
    utils.compilation_time_metrics["_compile.compile_inner"] = [0.5]
    assert compilations.take(10) == (500_000_000, 1)
    assert json.dumps(compilations.notes)


def test_looks_at_slow_steps_have_a_budget(tmp_path):
    observer = Observer(tmp_path, 0)
    observer.close()
    way = observer._way
    way.usual_ns, now = 1e6, way.begun_ns + int(1e9)
    assert observer._slow(now, way.begun_ns)
    while observer._pace.has_left(now):
        observer._pace.looked(30_000, early=True)
    assert not observer._slow(now, way.begun_ns)
    assert observer._slow(now + int(1e9), way.begun_ns), "time brings more"


def test_looks_become_rare_when_the_free_ones_are_over():
    pace, cost = Pace(0), 200_000
    assert pace.cost_ns == cost, "what the thread that trains pays, not the 30 µs that a look takes"
    assert pace.pause_ns(0) == pytest.approx(cost / 0.005)
    free = 0
    while pace.pause_ns(free) < cost / 0.001:
        pace.looked(30_000, early=False)
        free += 1
    assert free == pytest.approx(50e6 / cost, abs=1) and pace.pause_ns(free) == pytest.approx(cost / 0.0005)


def test_waking_up_to_find_slow_steps_leaves_half_for_looking_at_them():
    pace = Pace(0)
    while pace.has_left(0, to_find=True):
        pace.woken()
    looks = 0
    while pace.has_left(0):
        pace.looked(30_000, early=True)
        looks += 1
    assert looks == pytest.approx(7.5e6 / 200_000, abs=2)
    assert pace.has_left(int(60e9)) and pace.has_left(int(60e9), to_find=True), "time brings more"


SCRIPT = """
for batch in loader:  # trains
    loss = model(batch)  # trains
    if step % 10 == 0:
        with torch.no_grad():  # header
            # a comment
            for batch in test:
                total += model(  # without
                    batch,  # without
                )

                with torch.enable_grad():
                    probe(model)  # trains
        model.train()  # trains
    with open("log") as file, torch.inference_mode():
        model(batch)  # without
    with torch.inference_mode(mode=False):
        model(batch)  # trains
    with torch.set_grad_enabled(False):
        model(batch)  # without
    with torch.set_grad_enabled(training):
        model(batch)  # trains

with no_grad():
    model(batch)  # without

    def later():
        model(batch)  # trains

class Net:
    def forward(self):
        with no_grad(): teacher(x)
        return x  # trains
"""


def test_each_line_of_a_script():
    lines = SCRIPT.splitlines(keepends=True)
    for number, text in enumerate(lines, 1):
        for said, expected in (("# without", True), ("# trains", False), ("# header", False)):
            if text.rstrip().endswith(said):
                assert without_gradients(lines, number) == expected, text


@pytest.mark.parametrize("line", [-1, 0, 10_000])
def test_a_line_that_is_not_there(line):
    assert not without_gradients(SCRIPT.splitlines(), line)
    assert not without_gradients([], line)


def test_tabs_are_as_wide_as_python_has_them():
    assert without_gradients(["with torch.no_grad():", "\tx = 1", "        model(x)"], 3)


def test_a_look_tells_of_the_line_that_it_fell_on(tmp_path):
    """The reader joins what is told to the frames, whichever batch of lines they came in."""
    path = tmp_path / "train.py"
    source = textwrap.dedent(
        """\
        class no_grad:
            def __enter__(self): pass
            def __exit__(self, *error): pass
        look()
        with no_grad():
            look()
        """
    )
    path.write_text(source)
    linecache.clearcache()
    stacks, told = Stacks(threading.get_ident()), []

    def look():
        stacks.sample(0, 10)
        told.extend(stacks.take())

    exec(compile(source, str(path), "exec"), {"look": look})
    read = _read_lines("\n".join(json.dumps(line) for line in told).encode())
    own = [(frame.line, frame.no_grad) for frame in read["frames"] if frame.file == str(path)]
    assert own == [(4, False), (6, True)]
    assert sum(frame.no_grad for frame in read["frames"]) == 1
