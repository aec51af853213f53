"""The capture's own threads, which take no signal of the program's."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable

from traceops.capture.guard import contained

# What a thread itself does wrong has to reach it: the program's faulthandler tells of these.
_FAULTS = {
    signal.SIGSEGV,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    getattr(signal, "SIGBUS", signal.SIGSEGV),
}


def daemon_thread(name: str, work: Callable[[], object], hears: Iterable[int] = ()) -> threading.Thread:
    """One that is not started yet; an error in `work` is nobody's.

    A program that blocks a signal in its threads, to wait for it (`signal.sigwait`), would be killed if one of ours
    took it. Threads that the program starts inherit what it has blocked, ours may be older.

    hears: signals that it takes all the same.
    """

    def run() -> None:
        contained(_block_all_but, {*hears})
        contained(work)

    return threading.Thread(target=run, name=name, daemon=True)


def _block_all_but(heard: set[int]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS - heard)
