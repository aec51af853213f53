"""The end of a step in which nothing is due: what most steps of a training are.

A step leaves the caches to its own code, so that a step's end costs by what it touches. The compiled `ShortWay`
(native/short_way.c) touches little. It times the step into a record (core/rank_files.py), with what Python's garbage
collector took, and tells the heartbeat's memory. `Capture.step` asks it first and goes the long way where it says no:

- it is not armed. The long way arms it at its end (`Capture._shorten`), where nothing but watching is due in the
  next steps, the observer is well, no profiler is at work, and the launcher reads the heartbeat's memory;
- `rest` was called since: a scaler skipped the optimizer, a profiler of the script's began, something failed or ends;
- the step is the last before a window, a light window, or a memory snapshot (`until`);
- something is due by the clock (`due_ns`): an event on the GPU, or all that is looked at every 500 ms (the heartbeat's
  file, windows that were asked for, what tensors hold, profilers that nothing told of);
- torch has compiled something, or has loaded its compiler;
- the step ended in another thread, or in a forked process; or the samples are no plain number.

A signal's handler runs before it or after it, never within, and nothing in it can raise.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from itertools import count
from typing import Any


class LongWay:
    """The same state where nothing is compiled: it never says that a step has passed. step: steps that ended. samples:
    of them, -1 where nobody said. count, begun_ns, usual_ns: `StepClock`'s. gc_ns: of Python's garbage collector, not
    taken yet. held: records from this number on are not to be taken yet."""

    def __init__(self) -> None:
        self.step = self.count = self.begun_ns = 0
        self.samples = -1
        self.usual_ns = 0.0
        self.held = sys.maxsize
        self.armed = False
        self.gc_ns = self._gc_began_ns = 0
        self._numbers = count()
        self._records: deque[tuple[int, bytearray]] = deque()  # another thread takes them

    def passed(self, samples: int | None = None, /) -> bool:
        """A step ended, and all is done. False: nothing is, go the long way; so it stays until `arm`."""
        return False

    def arm(
        self,
        until: int,
        due_ns: int,
        filed_ns: int,
        modules: dict[str, Any],
        compiled: dict[str, Any] | None,
        names: tuple[str, ...],
        seen: int,
        /,
    ) -> None:
        """Go the short way from now on, in this thread: for steps before number `until`, before `due_ns`. filed_ns: the
        time in the heartbeat's file. modules: `sys.modules`. compiled: torch's times of compilations, of which `seen`
        are known under the first of `names` that is there; None where its compiler is not loaded."""

    def rest(self) -> None:
        """Something is due at the end of this step."""

    def publish_to(self, memory: Any, /) -> None:
        """The heartbeat's memory, None for no more."""

    def collected(self, phase: str, info: dict[str, int], /) -> None:
        """Called by Python's garbage collector (`gc.callbacks`)."""
        try:
            now = time.perf_counter_ns()
            if phase == "start":
                self._gc_began_ns = now
            elif self._gc_began_ns:
                self.gc_ns += now - self._gc_began_ns
                self._gc_began_ns = 0
        except Exception:  # Python would print it in the middle of the script's output
            self._gc_began_ns = 0

    def take_collected(self) -> int:
        """Nanoseconds that it took since it was asked last, or a step went the short way."""
        total, self.gc_ns = self.gc_ns, 0
        return total

    def append(self, record: bytes, hold: bool, /) -> int:
        """Keep a record; its number. hold: it is not to be taken yet, nor those behind it."""
        number = next(self._numbers)
        if hold:
            self.held = min(self.held, number)
        self._records.append((number, bytearray(record)))
        return number

    def on_device(self, number: int, us: int, /) -> None:
        """What the device took for the step of this record, if that was not taken yet."""
        for one, record in tuple(self._records):
            if one == number:
                record[4:8] = us.to_bytes(4, sys.byteorder)
                return

    def take(self) -> bytes:
        """The records before number `held` that nobody has taken."""
        ready = []
        while self._records and self._records[0][0] < self.held:
            ready.append(self._records.popleft()[1])
        return b"".join(ready)


def short_way() -> LongWay:
    """The compiled one, where it could be built and the interpreter's lock is there to keep its threads apart."""
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        try:
            from traceops.capture.short_way import _short_way as native
        except ImportError:
            return LongWay()
        if hasattr(native.ShortWay, "publish_to"):  # else it was built before
            return native.ShortWay()
    return LongWay()
