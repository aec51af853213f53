"""SIGTERM while a step is being counted: saved once, then the process dies of it."""

import os
import signal

from traceops.capture.signals import Saver, saving_on_sigterm


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
