"""Threads: the capture's own, which the program does not meet, and a safe look at the frames of all others.

The capture's threads take no signal of the program's.

Frames of other threads are read while Python collects no garbage. Python 3.11 makes frames when they are asked for, and
that may begin a collection, in which the program's own code runs and may let other threads go on. A thread that is
looked at then leaves a function whose frame is just being made: the frame is written over what that thread has there by
now. Until 3.11.12 `sys._current_frames` also holds the lock of the list of threads meanwhile: a thread that is being
started waits for it, and can deadlock (python/cpython#106883); a process that is forked then has it locked forever
(python/cpython#112275). Before 3.11 frames exist already; from 3.12 on collections wait.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, compress, repeat, takewhile, tee
from operator import is_not
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

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


_TASKS = Path("/proc/self/task")  # has an entry for each thread of this process
_native: set[Path] = set()
os.register_at_fork(after_in_child=_native.clear)


@contextmanager
def native_threads_are_ours() -> Iterator[None]:
    """Threads that a library starts inside the block are the capture's: Kineto's, which torch's profiler starts."""
    before = contained(_native_threads)
    yield
    if before is not None:
        _native.update((contained(_native_threads) or set()) - before)


def _native_threads() -> set[Path]:
    return set(_TASKS.iterdir())


_FORK_WARNING = "is multi-threaded, use of"


class _ForkWarning:
    """A filter's pattern that takes its filter away once it matched Python's warning of a fork with several threads."""

    def match(self, text: str) -> bool:
        """As a compiled pattern does."""
        found = _FORK_WARNING in text
        if found:
            _remove_fork_filter()
        return found


def _remove_fork_filter() -> None:
    filters: Any = warnings.filters
    filters[:] = [one for one in filters if not isinstance(one[1], _ForkWarning)]


def _silence_fork_warning() -> None:
    """Python warns of a fork where the process has several threads: not where it has one without ours. The filter is
    put in place by hand: `warnings.filterwarnings` makes Python forget which warnings it has shown."""
    threads = _native_threads()
    if len(threads) > 1 and len(threads - _native) - len(_running) <= 1:
        filters: Any = warnings.filters
        filters.insert(0, ("ignore", _ForkWarning(), DeprecationWarning, None, 0))


if sys.version_info >= (3, 12):
    os.register_at_fork(
        before=lambda: contained(_silence_fork_warning), after_in_child=lambda: contained(_remove_fork_filter)
    )


def daemon_thread(name: str, work: Callable[[], object], hears: Iterable[int] = ()) -> DaemonThread:
    """One that is not started yet; an error in `work` is nobody's. A program that blocks a signal in its threads, to
    wait for it (`signal.sigwait`), would be killed if one of ours took it. Threads that the program starts inherit what
    it has blocked, ours may be older. hears: signals that it takes all the same."""

    def run() -> None:
        contained(_block_all_but, {*hears})
        contained(work)

    return DaemonThread(name, run)


def _block_all_but(heard: set[int]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS - heard)


T = TypeVar("T")

if sys.version_info[:2] == (3, 11):
    from operator import call

    def _uncollected(work: Callable[[], T]) -> T:
        """What `work` returns, which is C as all of this is: no other thread runs until the collector is as it was."""
        was_on, is_to_be_on = tee(map(call, (gc.isenabled,)))
        parts: Any = compress((gc.disable, work, gc.enable), chain(was_on, (True,), is_to_be_on))
        try:
            found: list[Any] = list(map(call, parts))
        except BaseException:  # out of a hook of the program's (`sys.addaudithook`)
            if next(is_to_be_on, False):
                gc.enable()
            raise
        result: T = next(one for one in found if one is not None)
        return result

else:

    def _uncollected(work: Callable[[], T]) -> T:
        return work()


def all_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by its number."""
    return _uncollected(sys._current_frames)


def with_callers(frame: FrameType, most: int) -> list[FrameType]:
    """This frame and those that called it, innermost first."""
    names: Any = chain((frame,), repeat("f_back", most - 1))
    outwards = takewhile(partial(is_not, None), accumulate(names, getattr))
    return _uncollected(partial(list, outwards))
