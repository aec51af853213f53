"""Looks at the host's stack: when the next one is due, and where the main thread was then.

The compiled `Looks` (native/looks.c) has the thread look that has the interpreter's lock, between two instructions. A
thread that waits for the lock sees the main thread where that gives it up: functions of some ms that hold it were told
as what follows them. Where nobody has the lock, whoever waits for the look gets it and looks by itself.
"""

from __future__ import annotations

import sys
import threading
from types import CodeType
from typing import Protocol

from traceops.capture.short_way.ways import LongWay

# When it was made (`time.perf_counter_ns`), when the step began that went on and how many had ended (`LongWay.begun_ns`
# and `count`), the main thread's frames with their instructions, innermost first, the thread that looked, and its
# frames where it is another.
Frames = list[tuple[CodeType, int]]
Look = tuple[int, int, int, Frames, int, Frames]


class Looks(Protocol):
    """Waits for the next look."""

    def wait(self, seconds: float, look: bool, /) -> bool:
        """Wait so long, and then, with `look`, until somebody has looked, or we can. True where it was ended."""
        ...

    def take(self) -> Look | None:
        """The look that the latest `wait` brought."""
        ...

    def end(self) -> None:
        """Have `wait` return, now and from now on."""
        ...


class NoLooks:
    """The same where nothing is compiled: whoever waits has to look by itself."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def wait(self, seconds: float, look: bool, /) -> bool:
        """See `Looks`."""
        return self._ended.wait(seconds)

    def take(self) -> Look | None:
        """None."""
        return None

    def end(self) -> None:
        """See `Looks`."""
        self._ended.set()


def looks(way: LongWay) -> Looks:
    """The compiled one where it could be built, and where this is the main thread: it looks at no other."""
    is_main = threading.get_ident() == threading.main_thread().ident
    if is_main and getattr(sys, "_is_gil_enabled", lambda: True)():
        try:
            from traceops.capture.observing import _looks as native
        except ImportError:
            return NoLooks()
        made: Looks = native.Looks(way)
        return made
    return NoLooks()
