"""The capture's own threads, which take no signal of the program's, and which the program does not meet."""

from __future__ import annotations

import os
import signal
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable, Iterable

from traceops.capture.guard import contained

# What a thread itself does wrong has to reach it: the program's faulthandler tells of these.
_FAULTS = {signal.SIGSEGV, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, getattr(signal, "SIGBUS", signal.SIGSEGV)}


class DaemonThread:
    """One that `threading` does not know. Programs wait for all that `threading.enumerate` returns, or count them."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self.name = name
        self.ident: int | None = None
        self._work = work
        self._over = allocate_lock()
        self._process = 0

    def start(self) -> None:
        """Run, once."""
        self._over.acquire()
        self._process = os.getpid()
        _running.add(self)
        try:
            start_new_thread(self._run, ())
        except BaseException:
            self._ended()
            raise

    def join(self, timeout_s: float = -1) -> None:
        """Wait for its end, so long at most."""
        if self._process == os.getpid() and self._over.acquire(timeout=timeout_s):
            self._over.release()

    def is_alive(self) -> bool:
        """Whether it was started here and has not ended."""
        return self._process == os.getpid() and self._over.locked()

    def _run(self) -> None:
        self.ident = get_ident()
        try:
            self._work()
        finally:
            self._ended()

    def _ended(self) -> None:
        _running.discard(self)
        self._over.release()


_running: set[DaemonThread] = set()
os.register_at_fork(after_in_child=_running.clear)


def our_threads() -> list[DaemonThread]:
    """Those of this process that have not ended."""
    return list(_running)


def daemon_thread(name: str, work: Callable[[], object], hears: Iterable[int] = ()) -> DaemonThread:
    """One that is not started yet; an error in `work` is nobody's.

    A program that blocks a signal in its threads, to wait for it (`signal.sigwait`), would be killed if one of ours
    took it. Threads that the program starts inherit what it has blocked, ours may be older.

    hears: signals that it takes all the same.
    """

    def run() -> None:
        contained(_block_all_but, {*hears})
        contained(work)

    return DaemonThread(name, run)


def _block_all_but(heard: set[int]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS - heard)
