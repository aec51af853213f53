"""Times every step of a training, with what makes one unlike the others: garbage collection, torch.compile, allocator.

Records are those of `core/rank_files.py`. All is read where Python and torch keep it already; nothing of torch's is
replaced.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from traceops.capture.short_way.ways import LongWay
from traceops.capture.timing import uses_gpu
from traceops.core.rank_files import CORE_WAIT_NS, EVENT, MOST_CORE_WAIT, MOST_US, RECORD, SPAN
from traceops.core.redaction import redact_text

_MOST_NS = 1000 * MOST_US
_MOST_PENDING = 128  # steps that the host may be ahead of its GPU before their device time is given up
_TAKE_NS = 200_000_000  # between looks at the events: one at a time, each would find the caches cold
_EVENTS_COST = 0.0005  # of the time: what the events may take
_MOST_EVENT_NS = 1_000_000  # an event that took longer was interrupted
# What the first events may take beyond that, so that each step of a short training has one. Of shorter steps an event
# is too great a part.
_FREE_NS, _LONG_NS = 20_000_000, 8e6
FIRST = 4  # steps that tell nothing of those after them
_OWN_WORK_NS = 1_000_000  # of the capture between two steps, from which it is none of the step's time
# ns in which the thread ran, and in which it waited for a core
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class StepClock:
    """Made where the first step begins; `ended` where each ends. Never makes the host wait for the device.

    Events come in pairs, round one step, as often as they may. So the device's time is known of single steps, and of
    the steps from one pair to the next together: where the host runs ahead, its own times say nothing of a step.

    way: has the records, and what the steps of the short way change too: where the step began that goes on, about the
    median step (0 until there are some), and how many there were.
    """

    def __init__(self, way: LongWay) -> None:
        self._way = way
        self._record: list[int] | None = None  # of the step that ended, until the next one begins
        self._events: tuple[Any, Any] | None = None  # the device's begin and end of it
        self._open: deque[tuple[int, tuple[Any, Any]]] = deque()  # records whose device time is not known yet
        self._spare: list[Any] = []
        way.begun_ns = self._ended = time.perf_counter_ns()
        self._taken_ns = self._ended  # when the events were looked at
        self._mark: Any = None  # the event at the end of the step before: this one gets another
        self._since: Any = None  # the latest event, wherever that was
        self._event_due_ns = 0  # until then the events have had their share of the time
        self._free_ns = _FREE_NS
        self._waited_ns: int | None = None  # for cores, where a recorded step began

    def due_ns(self) -> int:
        """When an event is due, at the end of a step: now, where the step that goes on began with one."""
        if self._mark is not None:
            return 0
        return self._event_due_ns if uses_gpu() else sys.maxsize

    def ended(self, gc_ns: int, compile_ns: int, compiles: int, flags: int) -> None:
        """A step ended, in which so much went to the garbage collector and the compiler."""
        now = time.perf_counter_ns()
        if self._record is not None:
            # Another thread's, or one that a handler of the script's ended within ours.
            self._keep(self._record)
        if self._mark is not None or now >= self._event_due_ns:
            flags |= self._mark_end(now)
        took = now - self._way.begun_ns
        waited = 0 if self._waited_ns is None else self._core_wait(self._waited_ns)
        self._record = [_us(took), 0, _us(gc_ns), _us(compile_ns), 0, waited, min(compiles, 255), flags]
        self._learn(took)
        self._ended = self._way.begun_ns = now

    def _mark_end(self, now: int) -> int:
        """Have the device tell where this step ends; the flags of its record."""
        single, begin, end = self._mark is not None, self._since, self._event()
        self._mark, self._since = end if now >= self._event_due_ns else None, end
        if end is None:
            return 0
        if begin is None:
            return EVENT
        self._events = begin, end
        return EVENT if single else EVENT | SPAN

    def resumed(self, *, recorded: bool = False) -> None:
        """The next step begins: what the capture did since `ended` is none of it where it took long. recorded: the
        profiler is at work in it. Only there is it looked at how long the thread wants for a core."""
        now = time.perf_counter_ns()
        record, self._record = self._record, None
        own = now - self._ended
        if own > _OWN_WORK_NS:
            self._way.begun_ns = now
            self._mark = self._since = None if self._mark is None else self._event()
        self._waited_ns = _waited_for_cores_ns() if recorded else None
        if record is not None:
            record[4] = _us(own)
            if record[7] & EVENT:
                self._charge(self._ended)
            self._keep(record)
        if self._open and now - self._taken_ns >= _TAKE_NS:
            self._taken_ns = now
            self._take()
            self._charge(now)

    def _charge(self, since_ns: int) -> None:
        """What events took from then until now, and the long way that they made this step's end go, they wait for."""
        now = time.perf_counter_ns()
        cost = min(now - since_ns, _MOST_EVENT_NS)
        if self._free_ns > 0 and (self._way.count <= FIRST or self._way.usual_ns >= _LONG_NS):
            self._free_ns -= cost
            return
        self._event_due_ns = max(self._event_due_ns, now) + int(cost / _EVENTS_COST)

    def _keep(self, record: list[int]) -> None:
        """With the events of its step, if it has some: the records behind it then wait with it."""
        events, self._events = self._events, None
        number = self._way.append(RECORD.pack(*record), events is not None)
        if events is not None:
            self._open.append((number, events))

    def _core_wait(self, before_ns: int) -> int:
        """What the step spent in want of a core, in tenths of a ms."""
        now = _waited_for_cores_ns()
        return 0 if now is None else min(max((now - before_ns) // CORE_WAIT_NS, 0), MOST_CORE_WAIT)

    def _learn(self, ns: int) -> None:
        """Follow the median without keeping the steps; the first ones do not count."""
        way = self._way
        way.count += 1
        if way.count == FIRST:
            way.usual_ns = float(ns)
        elif way.count > FIRST:
            way.usual_ns *= 1.05 if ns > way.usual_ns else 1 / 1.05

    def finish(self) -> None:
        """Give up the device times that are not known yet."""
        record, self._record = self._record, None
        if record is not None:
            self._keep(record)
        self._take()
        self._open.clear()
        self._way.held = sys.maxsize

    def _take(self) -> None:
        """Ask the device for the times of steps that it has finished."""
        while self._open:
            number, (begin, end) = self._open[0]
            if end.query():
                self._way.on_device(number, min(max(int(begin.elapsed_time(end) * 1e3), 1), MOST_US))
                # The step is known; its end may be the begin of the next one.
                shared = end is self._since or (len(self._open) > 1 and self._open[1][1][0] is end)
                if len(self._spare) < 2 * _MOST_PENDING:
                    self._spare += [begin] if shared else [begin, end]
            elif len(self._open) <= _MOST_PENDING:
                break
            self._open.popleft()
        self._way.held = self._open[0][0] if self._open else sys.maxsize

    def _event(self) -> Any:
        """A new event on the current stream; None without a GPU, and while its work is captured into a graph."""
        if not uses_gpu():
            return None
        cuda = sys.modules["torch"].cuda
        if cuda.is_current_stream_capturing():
            return None
        event = self._spare.pop() if self._spare else cuda.Event(enable_timing=True)
        event.record()
        return event


def _us(ns: int) -> int:
    return ns // 1000 if 0 <= ns < _MOST_NS else MOST_US if ns > 0 else 0


def counts_core_waits() -> bool:
    """Whether Linux counts how long a thread waits for a core: without that it says 0 of all."""
    try:
        with _SCHEDSTAT.open("rb", buffering=0) as file:
            ran = file.read(64).split()[:1]
    except OSError:
        return False
    return bool(ran) and ran[0].isdigit() and int(ran[0]) > 0


def _waited_for_cores_ns() -> int | None:
    """How long this thread has waited for a core; None where Linux does not tell."""
    try:  # opened anew: a script may close every file that it has not opened itself
        with _SCHEDSTAT.open("rb", buffering=0) as file:
            return int(file.read(64).split()[1])
    except (OSError, ValueError, IndexError):
        return None


COMPILED = ("_compile.compile_inner", "entire_frame_compile")  # torch's own names of a whole compilation
_MOST_REASON = 200


class GarbageTime:
    """Has the time that Python's garbage collector takes added up in `way`, where the short way takes it too."""

    def __init__(self, way: LongWay) -> None:
        self.take = way.take_collected
        self._told = way.collected
        gc.callbacks.append(self._told)

    def close(self) -> None:
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)


class Compilations:
    """What torch.compile compiled, by its own record."""

    def __init__(self) -> None:
        self.seen = 0
        self._known = 0
        self.notes: list[list[Any]] = []

    def take(self, step: int) -> tuple[int, int]:
        """Nanoseconds and number of the compilations since it was asked last."""
        if not (times := self.times()):
            self.seen = 0  # torch._dynamo.reset() empties it
            return 0, 0
        took = next((times[name] for name in COMPILED if name in times), ())
        count = len(took) - self.seen
        if count <= 0:
            self.seen = len(took)
            return 0, 0
        ns = int(sum(took[self.seen :]) * 1e9)
        self.seen = len(took)
        self._note(step, getattr(sys.modules.get("torch._dynamo.utils"), "_compilation_metrics", ()))
        return ns, count

    @staticmethod
    def times() -> dict[str, Any] | None:
        """Torch's record; None where its compiler is not loaded."""
        utils = sys.modules.get("torch._dynamo.utils")
        return getattr(utils, "compilation_time_metrics", None)

    def _note(self, step: int, metrics: Any) -> None:
        """Which functions, and why again; torch keeps the last 64."""
        for one in list(metrics)[-16:]:
            began = int(getattr(one, "start_time_us", None) or 0)
            if began <= self._known or not getattr(one, "co_name", None):
                continue
            self._known = began
            took = getattr(one, "duration_us", None) or 1e6 * (getattr(one, "entire_frame_compile_time_s", None) or 0)
            reason = getattr(one, "recompile_reason", None)
            told = None if reason is None else redact_text(str(reason))[:_MOST_REASON]
            self.notes.append(
                ["c", step, int(took), str(one.co_name), str(one.co_filename), int(one.co_firstlineno or 0), told]
            )


def allocator_counters(device: int) -> tuple[int, int, int] | None:
    """cudaMalloc calls, retries after memory ran out, and cudaFree calls so far; None where torch does not tell."""
    torch = sys.modules.get("torch")
    if (read := getattr(getattr(torch, "_C", None), "_cuda_memoryStats", None)) is None:
        return None
    stats = read(device)
    return (
        int(stats.get("num_device_alloc", 0)),
        int(stats.get("num_alloc_retries", 0)),
        int(stats.get("num_device_free", 0)),
    )


def allocator_bytes(device: int) -> tuple[int, int, int, int, int] | None:
    """Bytes that tensors hold, that are reserved, that lie free between blocks in use; most held and reserved so far.
    None where torch does not tell."""
    torch = sys.modules.get("torch")
    if (read := getattr(getattr(torch, "_C", None), "_cuda_memoryStats", None)) is None:
        return None
    stats = read(device)
    held, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    pieces = stats["inactive_split_bytes"]["all"]["current"]
    numbers = held["current"], reserved["current"], pieces, held["peak"], reserved["peak"]
    return tuple(map(int, numbers))  # type: ignore[return-value]
