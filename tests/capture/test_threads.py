"""Our threads take no signal of the program's: one that it waits for would kill it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import traceops.capture
from traceops.capture.observing.observer import Observer
from traceops.capture.responder import STACKS_SIGNAL, Responder
from traceops.capture.signals import Saver, saving_on_sigterm
from traceops.capture.threads import all_frames, daemon_thread, our_threads, with_callers


def blocked(hears=()):
    found = []
    thread = daemon_thread("mine", lambda: found.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])), hears)
    thread.start()
    thread.join()
    return found[0]


def test_what_a_program_may_wait_for_is_blocked_and_faults_are_not():
    mask = blocked()
    assert {signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD} <= mask
    assert not mask & {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
    if STACKS_SIGNAL is not None:
        assert STACKS_SIGNAL in mask
        assert STACKS_SIGNAL not in blocked([STACKS_SIGNAL])
    assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])  # nothing changes for others


def test_a_program_does_not_meet_them():
    """One waited for all that `threading.enumerate` returned, and never ended; another one counted its threads."""
    before, traced = threading.enumerate(), []
    begun, over = threading.Event(), threading.Event()
    threading.setprofile(lambda *given: traced.append(given))
    try:
        thread = daemon_thread("mine", lambda: (begun.set(), over.wait()))
        assert not thread.is_alive()
        thread.start()
        begun.wait()
    finally:
        threading.setprofile(None)
    assert thread.is_alive() and thread in our_threads()
    assert threading.enumerate() == before and not traced
    thread.join(0.001)
    assert thread.is_alive()
    over.set()
    thread.join()
    assert not thread.is_alive()


def test_a_forked_process_does_not_wait_for_one():
    begun, over = threading.Event(), threading.Event()
    thread = daemon_thread("mine", lambda: (begun.set(), over.wait()))
    thread.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        thread.join()
        os._exit(int(thread.is_alive() or bool(our_threads())))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    over.set()
    thread.join()


FORKS = """
import os, sys, threading, time, warnings
from traceops.capture import threads

text = "This process (pid=1) is multi-threaded, use of fork() may lead to deadlocks in the child."

def fork():
    if sys.version_info < (3, 12):  # does not warn
        threads._silence_fork_warning()
        if len(os.listdir("/proc/self/task")) > 1: warnings.warn(text, DeprecationWarning)
    child = os.fork()
    if not child: os._exit(len(warnings.filters) - before)
    assert os.waitpid(child, 0)[1] == 0

before = len(warnings.filters)
fork()
threads.daemon_thread("ours", lambda: time.sleep(60)).start()
with threads.native_threads_are_ours():
    threads.start_new_thread(time.sleep, (60,))
    time.sleep(0.1)
with warnings.catch_warnings(record=True) as heard:
    before = len(warnings.filters)
    fork()
    fork()
    assert heard == [] and len(warnings.filters) == before
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    before = len(warnings.filters)
    fork()
    assert len(heard) == 1 and "multi-threaded" in str(heard[0].message)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Python counts threads there")
def test_python_warns_of_a_fork_only_where_it_would_without_our_threads():
    subprocess.run([sys.executable, "-W", "error", "-c", FORKS], check=True)


def test_an_error_in_one_is_nobodys(capsys):
    thread = daemon_thread("mine", lambda: 1 / 0)
    thread.start()
    thread.join()
    assert capsys.readouterr() == ("", "")


def test_the_capture_starts_no_other_threads(tmp_path, monkeypatch):
    folder = Path(traceops.capture.__path__[0])
    makers = {
        path.name
        for path in folder.rglob("*.py")
        if "Thread(run)" in path.read_text() or "start_new_thread" in path.read_text()
    }
    assert makers == {"threads.py"}
    masks = []

    def look(observer):
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    monkeypatch.setattr(Observer, "_look", look)
    before = our_threads()
    observer = Observer(tmp_path, 0)
    observer.close()
    assert signal.SIGUSR1 in masks[0]
    assert our_threads() == before


def test_a_signal_that_had_to_wait_saves_once_and_ends_the_process(monkeypatch):
    saved, killed = [], []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    saver = Saver(lambda: saved.append(1))

    with saver.held():
        saver(signal.SIGTERM, None)
        saver(signal.SIGTERM, None)
        assert not saved

    assert saved == [1]
    assert killed == [(os.getpid(), signal.SIGTERM)]


def test_a_forked_child_dies_of_sigterm_as_it_would_without_us():
    with saving_on_sigterm(lambda: None) as saver:
        assert signal.getsignal(signal.SIGTERM) is saver
        pid = os.fork()
        if not pid:
            os._exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
        assert os.waitpid(pid, 0)[1] == 0
        assert signal.getsignal(signal.SIGTERM) is saver


CLOSES_ALL = """
import os, signal, socket
from traceops.capture.signals import saving_on_sigterm

first = os.dup(0)
os.close(first)
with saving_on_sigterm(lambda: None):
    os.closerange(first, first + 100)
    theirs, other = socket.socketpair()
    theirs.setblocking(False)
    other.setblocking(False)
    assert {theirs.fileno(), other.fileno()} == {first, first + 1}
for one in (theirs, other):
    try:
        raise SystemExit(one.recv(1))
    except BlockingIOError:
        pass
theirs.send(b"x")
assert other.recv(1) == b"x"
assert signal.set_wakeup_fd(-1) == -1
"""


def test_what_the_script_opens_under_our_numbers_is_neither_closed_nor_written():
    """As a program does that becomes a daemon: its first two files were closed where the capture ended."""
    ended = subprocess.run([sys.executable, "-c", CLOSES_ALL], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_responder_reads_nothing_that_the_script_opened_under_its_number(tmp_path):
    responder = Responder.__new__(Responder)
    responder._requests, write = os.pipe()
    responder._fifo = tmp_path.stat()
    os.write(write, b"x")
    responder._answer_all()
    assert os.read(responder._requests, 1) == b"x"
    os.close(write)
    os.close(responder._requests)


FORKED_IN_A_COLLECTION = """
import gc, os, signal, threading, time
from traceops.capture.observing.stacks import Stacks
from traceops.capture.responder import pulse

def forked(phase, info):
    if phase == "start":
        child = os.fork()
        if child == 0:
            os._exit(0)
        until = time.monotonic() + 20
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.write(1, b"hung")
                os._exit(1)
            time.sleep(0.001)

stacks = Stacks(threading.get_ident())
gc.callbacks.append(forked)
gc.set_threshold(1)
stacks.sample(0, 1)
pulse()
gc.set_threshold(0)
print(stacks.count)
"""


def test_what_is_forked_in_a_collection_meanwhile_does_not_hang():
    done = subprocess.run(
        [sys.executable, "-c", FORKED_IN_A_COLLECTION], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.fixture(params=[True, False])
def collecting(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


class Frame:
    """One of three, which says whether the collector was on when the one outside of it was asked for."""

    def __init__(self, number, told):
        self.number = number
        self.told = told

    @property
    def f_back(self):
        self.told.append(gc.isenabled())
        return Frame(self.number + 1, self.told) if self.number < 2 else None


def test_the_collector_stays_as_it_was(collecting):
    found = all_frames()
    assert gc.isenabled() is collecting
    assert found.keys() == sys._current_frames().keys()
    own = with_callers(found[threading.get_ident()], 1000)
    assert gc.isenabled() is collecting
    assert sys._getframe() in own and own[-1].f_back is None
    assert with_callers(sys._getframe(), 1) == [sys._getframe()]


def test_it_is_off_while_frames_are_made(collecting):
    """Else what it runs could have the thread leave a frame that is just being made."""
    told = []
    assert [one.number for one in with_callers(Frame(0, told), 100)] == [0, 1, 2]
    assert told == 3 * [collecting and sys.version_info[:2] != (3, 11)]


HOOK = """
import gc, sys
from traceops.capture.threads import all_frames

def hook(event, arguments):
    if event == "sys._current_frames":
        raise PermissionError

sys.addaudithook(hook)
for collecting in (True, False):
    (gc.enable if collecting else gc.disable)()
    try:
        all_frames()
    except PermissionError:
        print(gc.isenabled())
"""


def test_so_it_does_where_the_program_forbids_the_look():
    """A hook of this kind stays until the process ends."""
    done = subprocess.run([sys.executable, "-c", HOOK], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr


PROGRAM = """
import atexit, ctypes, os, sys, traceops, torch
from traceops.capture.schedule import Schedule

parameter = torch.nn.Parameter(torch.ones(2))
with traceops.capture(sys.argv[1], schedule=Schedule(skip_first=0, unprofiled=0, warmup=1, active=2)) as capture:
    for _ in range(6):
        parameter.sum().backward()
        capture.step()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).printf(b"of C\\n")  # stays in C's buffer until the exit
        atexit.register(print, "at exit")
        print("of Python")
        sys.exit(int(sys.argv[2]))
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("status", [0, 7])
def test_a_process_forked_behind_a_window_ends(tmp_path: Path, status: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, tmp_path / "run", str(status)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"child {status}" in done.stdout.splitlines()
    assert {"of Python", "at exit", "of C"} <= set(done.stdout.splitlines())


INTERRUPTED = """
import ctypes, signal, torch
from traceops.capture.recorder import _ExitInC

exit_in_c, libc = _ExitInC(), ctypes.CDLL(None)
exit_in_c.open(lambda: print("stopped"))
send = ctypes.cast(getattr(libc, "raise"), ctypes.c_void_p)
libc.__cxa_atexit(send, ctypes.c_void_p(signal.SIGINT), exit_in_c._handle)  # called first, as it came last
try:
    exit_in_c.close()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_while_a_window_closes_is_the_programs() -> None:
    """An error out of what C calls goes nowhere: a training went on for ever."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
