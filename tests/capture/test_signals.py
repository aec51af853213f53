"""SIGTERM while a step is being counted: saved once, then the process dies of it."""

import os
import signal

from traceops.capture.signals import Saver


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
