"""Our threads take no signal of the program's: one that it waits for would kill it."""

import os
import signal
import threading
from pathlib import Path

import traceops.capture
from traceops.capture.observing.observer import Observer
from traceops.capture.responder import STACKS_SIGNAL
from traceops.capture.threads import daemon_thread, our_threads


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
