"""Looks at the host fall where it is when they are due, and not where it happens to let other threads run."""

import ctypes
import functools
import gc
import operator
import os
import subprocess
import sys
import threading
import time

import pytest
from everywhere import PLACES, PLACES_OF_TORCH

from traceops.capture.observing import observer
from traceops.capture.observing.observer import Observer
from traceops.capture.observing.stacks import NoLooks, Stacks, is_begin, looks
from traceops.capture.short_way.ways import LongWay
from traceops.traces.observed import read_observed

native = pytest.importorskip("traceops.capture.observing._looks")
PENDING_CALLS = sys.version_info >= (3, 12)  # of other threads are noticed


def holds_the_lock(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_a_short_function_that_holds_the_interpreters_lock_is_seen(tmp_path):
    """Of 600 looks none fell into one of 2 ms, whatever part of the time it took."""
    folder = tmp_path / "rank_0"
    folder.mkdir()
    observer = Observer(folder, 0)
    for _ in range(500):
        holds_the_lock(0.002)
        time.sleep(0.002)
        observer.step_ended(recorded=False)
        observer.step_begins(recorded=False)
    observer.close()
    assert observer.trouble is None
    seen = read_observed(str(tmp_path), 0)[0]
    functions = [{seen.frames[n].function for n in seen.stacks[stack]} for _, stack, _ in seen.samples]
    there = sum("holds_the_lock" in names for names in functions)
    assert 0 < there < len(functions), "half of the time it is there"
    assert len(seen.since_begin) == len(seen.samples)
    step = seen.samples[:, 0]
    whole = step < len(seen.steps)
    assert (seen.since_begin[whole] <= seen.steps["host_us"][step[whole]] + 1).all()


def looked(made, seconds=0.001):
    """The looks of 40 waits, while this thread runs Python code all the time."""
    taken, over = [], threading.Event()

    def look():
        for _ in range(40):
            made.wait(seconds, True)
            taken.append(made.take())
        over.set()

    thread = threading.Thread(target=look)
    thread.start()
    while not over.is_set():
        holds_the_lock(0.001)
    thread.join()
    return taken


by_pending_calls = pytest.mark.skipif(
    not PENDING_CALLS, reason="Python 3.10 and 3.11 do not notice another thread's pending calls"
)


@by_pending_calls
def test_the_main_thread_looks_by_itself():
    way = LongWay()
    way.count, way.begun_ns = 7, 12
    since = time.perf_counter_ns()
    found = [one for one in looked(native.Looks(way)) if one is not None]
    assert found
    for at, begun, count, frames, thread, beside in found:
        assert (thread, beside) == (threading.get_ident(), [])
        assert since < at < time.perf_counter_ns() and (begun, count) == (12, 7)
        names = [code.co_name for code, _ in frames]
        assert "looked" in names and names[-1] != "looked"
        assert all(0 <= instruction < len(code.co_code) for code, instruction in frames)
    before = sys.getrefcount(looked.__code__)
    found = frames = None
    assert sys.getrefcount(looked.__code__) < before, "nothing else holds it"


@by_pending_calls
def test_beside_another_busy_thread_whoever_has_the_lock_looks():
    """In Python 3.12 that thread did for the call, and no look was made; in 3.13 the main thread came too late."""
    over = threading.Event()

    def spins():
        while not over.is_set():
            holds_the_lock(0.001)

    thread = threading.Thread(target=spins)
    thread.start()
    try:
        taken = looked(native.Looks(LongWay()))
    finally:
        over.set()
        thread.join()
    found = [one for one in taken if one is not None]
    assert {threading.get_ident(), thread.ident} <= {by for *_, by, _ in found}
    for *_, frames, by, beside in found:
        assert "looked" in {code.co_name for code, _ in frames}
        if by == threading.get_ident():
            assert not beside
        elif by == thread.ident:
            assert "spins" in {code.co_name for code, _ in beside}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not say where a function begins")
def test_a_function_that_is_only_called_has_not_had_the_time_before(tmp_path):
    """The collector calls who wants to know: 458 ms a step of a rank were told as such a function's `def` line."""

    def told(phase, info):
        pass

    def collects():
        gc.collect()

    kept = [[] for _ in range(200_000)]
    folder = tmp_path / "rank_0"
    folder.mkdir()
    observer = Observer(folder, 0)
    gc.callbacks.append(told)
    try:
        for _ in range(80):
            collects()
            observer.step_ended(recorded=False)
            observer.step_begins(recorded=False)
    finally:
        gc.callbacks.remove(told)
        observer.close()
    assert len(kept) and observer.trouble is None
    seen = read_observed(str(tmp_path), 0)[0]
    innermost = [seen.frames[seen.stacks[stack][-1]].function for _, stack, _ in seen.samples]
    # Python 3.11 may take the lock from a look that the system has stopped: one may find `told` behind it.
    assert len(innermost) > 3 and sum(name.endswith("told") for name in innermost) <= len(innermost) / 10
    assert sum(name.endswith("collects") for name in innermost) > len(innermost) / 2


def test_only_the_first_instruction_of_a_call_is_its_begin():
    def counts():
        yield 1

    code = counts.__code__
    begins = [at for at in range(0, len(code.co_code), 2) if is_begin(code, at)]
    assert len(begins) == (1 if sys.version_info >= (3, 11) else 0)
    assert not is_begin(code, -1)


def test_autograds_own_thread_that_looked_belongs_to_the_stack():
    """A hook of the program's runs there, while the main thread waits in the engine."""
    stacks, strange = Stacks(1), 2

    def _engine_run_backward():
        pass

    def hook():
        pass

    waits = [(_engine_run_backward.__code__, 2), (looked.__code__, 2)]
    for frames, by in [(waits, strange), (waits, threading.get_ident()), (waits[1:], strange)]:
        stacks.sample(0, 10, (0, 0, 0, frames, by, [(hook.__code__, 0)]))
    lines = stacks.take()
    names = [line[1].rpartition(".")[2] for line in lines if line[0] == "f"]
    told = [[names[n] for n in line[1]] for line in lines if line[0] == "s"]
    assert told == [["looked", "_engine_run_backward", "hook"], ["looked", "_engine_run_backward"], ["looked"]]


def test_a_look_leaves_the_switch_interval_as_it_was():
    before = sys.getswitchinterval()
    looked(native.Looks(LongWay()))
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("last", [lambda made: made.end(), lambda made: made.wait(0.0, True)], ids=["end", "wait"])
@pytest.mark.skipif(PENDING_CALLS, reason="looks do not touch it")
def test_a_switch_interval_that_a_program_saved_while_a_look_was_due_does_not_stay(last):
    """It may read ours: 1 % of all reads did, with a look each 10 ms."""
    made, before = native.Looks(LongWay()), sys.getswitchinterval()
    looked(made)
    try:
        sys.setswitchinterval(53e-6)
        last(made)
        assert sys.getswitchinterval() == before
    finally:
        sys.setswitchinterval(before)


def test_beside_long_calls_that_keep_the_lock_the_switch_interval_is_soon_as_it_was():
    """Who waits for the lock wakes up as often: beside such calls a look took 2.5 % of another core, and more."""
    made, before = native.Looks(LongWay()), sys.getswitchinterval()
    hold = functools.partial(ctypes.PyDLL(None).usleep, 990_000)  # and nobody gets the lock in between
    for _ in range(2):  # the first one is not known to be long
        waits = threading.Thread(target=made.wait, args=(0.02, True))
        waits.start()
        _, found = map(operator.methodcaller("__call__"), (hold, sys.getswitchinterval))
        waits.join()
    assert found == before


def test_what_was_not_asked_for_is_not_looked_at():
    made = native.Looks(LongWay())
    assert made.wait(0.0, False) is False and made.take() is None


@pytest.mark.parametrize("make", [lambda: native.Looks(LongWay()), NoLooks], ids=["compiled", "not"])
def test_ended_it_waits_no_more(make):
    made = make()
    threading.Timer(0.05, made.end).start()
    assert made.wait(3600, True) is True
    assert made.wait(3600, False) is True and made.take() is None


def test_no_other_thread_than_the_main_one_is_looked_at_so():
    made = []
    thread = threading.Thread(target=lambda: made.append(looks(LongWay())))
    thread.start()
    thread.join()
    assert isinstance(made[0], NoLooks)
    assert isinstance(looks(LongWay()), native.Looks)


def test_a_forked_process_neither_waits_nor_hangs():
    made = native.Looks(LongWay())
    waits = threading.Thread(target=made.wait, args=(3600, True))
    waits.start()
    child = os.fork()
    if child == 0:
        made.end()
        holds_the_lock(0.01)
        os._exit(0 if made.wait(3600, True) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    made.end()
    waits.join()


FORKS = """
import ctypes, functools, os, sys, threading
from traceops.capture.observing._looks import Looks
from traceops.capture.short_way.ways import LongWay

os.register_at_fork(before=functools.partial(ctypes.PyDLL(None).usleep, 200_000))  # it holds the interpreter's lock
waits = threading.Thread(target=Looks(LongWay()).wait, args=(0.05, True))
waits.start()
child = os.fork()
if child == 0:
    os._exit(0 if sys.getswitchinterval() == 0.005 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_what_is_forked_while_a_look_is_due_has_the_switch_interval_as_it_was():
    """The fork has no thread that would put it back."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("make, late", [(native.Looks, False), (lambda way: NoLooks(), True)])
def test_an_observer_knows_whether_its_looks_come_late(tmp_path, monkeypatch, make, late):
    monkeypatch.setattr(observer, "looks", make)
    own = Observer(tmp_path, 0)
    own.close()
    assert own.late is late


MOST_ROUNDS, LOOKS = 10_000, 30


def looked_at(place, true):
    made, stacks = native.Looks(LongWay()), Stacks(threading.get_ident())

    def look():
        while not made.wait(0.0001, True):
            stacks.sample(0, 1, made.take())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(MOST_ROUNDS):
            assert place() == true
            if stacks.count >= LOOKS:
                break
    finally:
        made.end()
        thread.join()
    assert stacks.count  # on a busy machine 10,000 rounds had 26


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_it_does_the_same(place):
    looked_at(place, place())


@pytest.mark.torch
@pytest.mark.parametrize("place", PLACES_OF_TORCH, ids=lambda place: place.__name__)
def test_it_does_the_same_in_numpy_and_torch(place):
    looked_at(place, place())
