"""Our threads take no signal of the program's: one that it waits for would kill it."""

import signal
import threading
from pathlib import Path

import traceops.capture
from traceops.capture.observing.observer import Observer
from traceops.capture.responder import STACKS_SIGNAL
from traceops.capture.threads import daemon_thread


def blocked(hears=()):
    found = []
    thread = daemon_thread("mine", lambda: found.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])), hears)
    assert (thread.name, thread.daemon) == ("mine", True)
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


def test_an_error_in_one_is_nobodys(capsys):
    thread = daemon_thread("mine", lambda: 1 / 0)
    thread.start()
    thread.join()
    assert capsys.readouterr() == ("", "")


def test_the_capture_starts_no_other_threads(tmp_path, monkeypatch):
    folder = Path(traceops.capture.__path__[0])
    makers = {path.name for path in folder.rglob("*.py") if "threading.Thread(" in path.read_text()}
    assert makers == {"threads.py"}
    masks = []

    def look(observer):
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    monkeypatch.setattr(Observer, "_look", look)
    before = threading.active_count()
    observer = Observer(tmp_path, 0)
    observer.close()
    assert signal.SIGUSR1 in masks[0]
    assert threading.active_count() == before
