"""SIGTERM while a step is being counted: saved once, then the process dies of it."""

import os
import signal
import subprocess
import sys

from traceops.capture.responder import Responder
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
