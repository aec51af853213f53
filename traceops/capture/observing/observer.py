"""Observes a rank outside of recorded windows: times every step, and looks now and then where its host is."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traceops.capture.guard import contained, raised_by_a_handler
from traceops.capture.observing.loader_workers import FirstSamples, LoaderWorkers
from traceops.capture.observing.stacks import NoLooks, Stacks, looks
from traceops.capture.observing.step_clock import (
    COMPILED,
    FIRST,
    Compilations,
    GarbageTime,
    StepClock,
    allocator_bytes,
    allocator_counters,
    counts_core_waits,
)
from traceops.capture.short_way.ways import LongWay, short_way
from traceops.capture.threads import daemon_thread
from traceops.capture.timing import uses_gpu
from traceops.core import live_pulses
from traceops.core.live_pulses import MAGIC as PULSES_MAGIC
from traceops.core.rank_files import MAGIC, OBSERVED_FILE, RECORDED, SKIPPED, STEPS_FILE

_WAKING_NS = 170_000  # what being woken for a look costs the thread that trains, beside the look
_COST = 0.0005  # of the time: what looks may take
_FREE_NS = 50_000_000  # of the looks before, so that a short training has some: with those, ten times as often
_FREE_COST = 0.005
_LEAST_S, _MOST_S = 0.01, 1.0  # between two looks
_SLOWER_AFTER = 30_000  # looks: then half as often, so that a run of days does not fill the disk
# Looks at a step that takes longer than usual, and wakings to find one: of the time, beyond what is free.
_SLOW_COST, _SLOW_FREE_NS = 0.0003, 15_000_000


class Pace:
    """When to look at the host: often at first, later so rarely that looks cost a fixed part of the time.

    A look costs the training thread more than the looking thread sees: it gives up the interpreter's lock, sleeps until
    the look is over, and wakes up. On two hosts of H200s a look cost it 110 to 210 µs, and lasts 30 to 40; on a CPU 110
    to 190 µs in Python 3.11 and 190 to 210 in 3.12. Times are of `time.perf_counter_ns`.
    """

    def __init__(self, begun_ns: int) -> None:
        self._begun_ns = begun_ns
        self._look_ns = 30_000.0  # the first ones are slower
        self._spent_ns = self._slow_ns = 0.0

    @property
    def cost_ns(self) -> float:
        """Of a look."""
        return self._look_ns + _WAKING_NS

    def looked(self, took_ns: int, *, early: bool) -> None:
        """A look is over. early: it was not due yet, but the step takes longer than usual."""
        self._look_ns += 0.05 * (took_ns - self._look_ns)
        if early:
            self._slow_ns += self.cost_ns
        else:
            self._spent_ns += self.cost_ns

    def woken(self) -> None:
        """There was nothing to look at."""
        self._slow_ns += _WAKING_NS

    def pause_ns(self, looks: int) -> float:
        """Between two looks, on average, after so many."""
        part = _FREE_COST if self._spent_ns < _FREE_NS else _COST
        seconds = min(max(self.cost_ns / part / 1e9, _LEAST_S), _MOST_S)
        return 1e9 * seconds * (1 << min(looks // _SLOWER_AFTER, 6))

    def has_left(self, now_ns: int, *, to_find: bool = False) -> bool:
        """Whether a step that takes longer may be looked at early; to_find: whether to wake up to see if one does. Half
        of what there is goes to that at most: in a training of long steps each one would want it."""
        part = 0.5 if to_find else 1.0
        return self._slow_ns < part * (_SLOW_FREE_NS + _SLOW_COST * (now_ns - self._begun_ns))


_FLUSH_S = 2.0
_COUNTERS_S = 1.0
_BYTES_NS = 250_000_000  # between two looks at what tensors hold, at the end of steps
_RARER_AFTER = 2_000  # of them: then half as often
_JOIN_S = 2.0
_SLOW = 1.3  # times the usual step: from then on a step is looked at more closely
_SLOW_STEP_NS, _SLOW_LOOKS = 5e6, 50.0  # between two looks in it: so long, or so many looks in all
_LONG_NS = 50e6
_MOST_WEIGHT = 4.0  # of the time between two looks: what one sample may stand for


class Observer:
    """One rank's; made where its first step begins, on the thread that trains. folder: of the rank, in the run folder.
    None of its errors reaches the training or ends the capture: it ends itself, and `trouble` says why. live: write
    pulses for a monitor too (`core/live_pulses.py`)."""

    def __init__(
        self, folder: Path, rank: int, first: int = 0, way: LongWay | None = None, *, live: bool = False
    ) -> None:
        self._steps, self._observed = folder / STEPS_FILE, folder / OBSERVED_FILE
        header = {"rank": rank, "started_ns": time.time_ns(), "first": first, "core_waits": counts_core_waits()}
        self._steps.write_bytes(MAGIC + json.dumps(header).encode() + b"\n")
        self._observed.write_bytes(b"")
        self.trouble: str | None = None
        self._first = first
        self._way = short_way() if way is None else way
        self._device: int | None = None
        self._looking = False  # until the first step is over: what comes before it is the program's start
        self._clock = StepClock(self._way)
        self._pulses = Pulses(folder, rank, self._way, first) if live else None
        self._pace = Pace(self._way.begun_ns)
        self._stacks = Stacks(threading.get_ident())
        self._compilations = Compilations()
        self._under_profiler = self._after_window = False
        self._weighed, self._weigh_from_ns = 0, 0  # looks at what tensors hold, and when the next one is due
        self._looks = looks(self._way)
        self._thread = daemon_thread("traceops-observer", self._run)
        self._workers, self._samples = LoaderWorkers(folder), FirstSamples()
        self._garbage = GarbageTime(self._way)
        try:
            self._thread.start()
        except BaseException:
            self._garbage.close()
            self._workers.close()
            self._samples.close()
            raise

    @property
    def _step(self) -> int:
        return self._first + self._way.count

    @property
    def samples(self) -> int:
        """Looks at the host so far."""
        return self._stacks.count

    @property
    def late(self) -> bool:
        """Whether looks wait until the main thread lets others run."""
        return isinstance(self._looks, NoLooks)

    def step_ended(self, *, recorded: bool, skipped: bool = False) -> None:
        """A step ended. recorded: the profiler was on at its end. skipped: a gradient scaler left its optimizer out."""
        if self.trouble is None:
            try:
                recorded = recorded or self._under_profiler
                flags = (RECORDED if recorded or self._after_window else 0) | (SKIPPED if skipped else 0)
                self._after_window = recorded
                step = self._step
                ns, count = self._compilations.take(step)
                self._clock.ended(self._garbage.take(), ns, count, flags)
                if (seen := self._samples.step_ended()) is not None:
                    self._compilations.notes.append(seen)
                if self._way.begun_ns >= self._weigh_from_ns:
                    self._weigh(step, self._way.begun_ns)
            except Exception as error:
                self._ended_by(error)

    def step_begins(self, *, recorded: bool) -> None:
        """The next one begins, after what the capture itself had to do. recorded: the profiler is on."""
        if self.trouble is None:
            try:
                self._clock.resumed(recorded=recorded)
                self._looking, self._under_profiler = not recorded, recorded
            except Exception as error:
                self._ended_by(error)

    def arm(self, until: int, due_ns: int, filed_ns: int) -> None:
        """Have the next steps go the short way, where nothing of this observer is due in them: see `LongWay.arm`."""
        if self.trouble is not None or self._under_profiler or self._after_window or self._way.count < FIRST:
            return
        due_ns = min(due_ns, self._clock.due_ns())
        if (times := self._compilations.times()) is None or isinstance(times, dict):
            self._way.arm(until, due_ns, filed_ns, sys.modules, times, COMPILED, self._compilations.seen)

    def close(self) -> bool:
        """End; our own thread writes what is not written yet. True once that is done; it may be called again."""
        self._way.rest()
        if self.trouble is None:
            try:
                self._clock.finish()
            except Exception as error:
                self._give_up(error)
        self._looks.end()
        self._garbage.close()
        self._workers.close()
        self._samples.close()
        self._thread.join(_JOIN_S)
        return True

    def _ended_by(self, error: Exception) -> None:
        """On the thread that trains, where a signal handler of the script's may have run between two lines of ours."""
        if raised_by_a_handler(error):
            raise error
        self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.trouble = f"{type(error).__name__}: {error}"[:200]
        self._way.rest()
        self._looks.end()
        self._workers.close()
        self._samples.close()
        contained(self._garbage.close)

    def _run(self) -> None:
        try:
            self._look()
            if self.trouble is None:
                self._pulse(ended=True)
        except Exception as error:
            self._give_up(error)

    def _look(self) -> None:
        last = flushed = counted = time.perf_counter_ns()
        drawn = 1
        due = 0.0
        while True:
            now = time.perf_counter_ns()
            wait_ns = self._pace.pause_ns(self._stacks.count)
            if self._pulses is not None:
                wait_ns = self._pulses.pause_ns(wait_ns)
            if due <= now:
                # Looks at even intervals would see an even program always at the same places.
                drawn = (1103515245 * drawn + 12345) & 0x7FFFFFFF
                due = now + wait_ns * (0.5 + drawn / 0x7FFFFFFF)
            wake = self._wake_ns(now, due)
            pulse = self._pulses is not None and self._pulses.due_ns < wake
            if pulse and self._pulses is not None:
                wake = self._pulses.due_ns
            if self._looks.wait(max(wake - now, 0.0) / 1e9, self._looking and not pulse):
                return
            if pulse:
                if self._pulse():
                    due = 0.0
                continue
            begin = time.perf_counter_ns()
            look = self._looks.take()
            at, step_begun, count = (begin, self._way.begun_ns, self._way.count) if look is None else look[:3]
            slow = self._slow(at, step_begun)
            if self._looking and (slow or at >= due):
                since = max(last, step_begun) if slow else last
                weight_us = max(min(at - since, int(_MOST_WEIGHT * wait_ns)), 0) // 1000
                self._stacks.sample(self._first + count, weight_us, look, (at - step_begun) // 1000)
                self._pace.looked(time.perf_counter_ns() - begin, early=at < due)
                last = at
            elif self._looking:
                self._pace.woken()
            else:
                last = begin
            if begin - counted > _COUNTERS_S * 1e9:
                counted = begin
                self._count()
            if begin - flushed > _FLUSH_S * 1e9:
                flushed = begin
                self._write()

    def _pulse(self, *, ended: bool = False) -> bool:
        """Write what there is for a monitor; True where it wants more looks. What fails there ends only that."""
        self._write()
        try:
            return self._pulses is not None and self._pulses.write(self._device, ended=ended)
        except Exception:  # a full disk, a device that is gone
            self._pulses = None
            return False

    def _slow(self, now: int, begun: int) -> bool:
        """Whether the step that has begun then takes longer than it should, and there is time left to look at it."""
        usual = self._way.usual_ns
        if usual <= 0 or now - begun <= _SLOW * usual:
            return False
        return self._pace.has_left(now)

    def _wake_ns(self, now: int, due: float) -> float:
        """When to look next: in a step that takes longer than usual soon, for there are few of them."""
        usual, begun = self._way.usual_ns, self._way.begun_ns
        if self._looking and self._slow(now, begun):
            return min(due, now + max(_SLOW_STEP_NS, (now - begun) / _SLOW_LOOKS))
        if self._looking and usual >= _LONG_NS and self._pace.has_left(now, to_find=True):
            return min(due, begun + _SLOW * usual + 1e6)
        return due

    def _count(self) -> None:
        if self._device is None:
            return
        if (counters := allocator_counters(self._device)) is not None:
            self._compilations.notes.append(["m", self._step, *counters])

    def _weigh(self, step: int, now: int) -> None:
        """What tensors hold where a step ends: there it is alike from step to step, unless something grows."""
        if self._device is None and uses_gpu():
            self._device = sys.modules["torch"].cuda.current_device()
            return
        self._weigh_from_ns = now + (_BYTES_NS << min(self._weighed // _RARER_AFTER, 8))
        if self._device is None:
            return
        self._weighed += 1
        if (found := allocator_bytes(self._device)) is not None:
            self._compilations.notes.append(["b", step, *found])

    def _write(self) -> None:
        if ready := self._way.take():
            _append(self._steps, ready)
        notes, self._compilations.notes = self._compilations.notes, []
        lines: list[list[Any]] = [*self._stacks.take(), *notes]
        if self._pulses is not None:
            self._pulses.saw(lines)
        if lines:
            text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
            _append(self._observed, text.encode())


def _append(path: Path, content: bytes) -> None:
    # Opened anew: a script may close every file that it has not opened itself, and open others under their numbers.
    with path.open("ab", buffering=0) as file:
        file.write(content)


# What a rank writes for a monitor.

_PAGE = os.sysconf("SC_PAGE_SIZE")
_CLOSER_NS = 20_000_000  # between two looks, on average
_MOST_STACKS = 20_000


class Pulses:
    """One rank's. folder: of the rank, in the run folder."""

    def __init__(self, folder: Path, rank: int, way: LongWay, first: int = 0) -> None:
        self._path, self._closer = folder / live_pulses.PULSES_FILE, folder.parent / live_pulses.CLOSER
        self._path.write_bytes(live_pulses.new_file(rank))
        self._rank, self._way, self._first = rank, way, first
        self._count = 0
        self._total = 0  # bytes of the GPU
        self._kinds = live_pulses.StackKinds()
        self._stacks: list[int] = []
        self._seen = [0] * len(live_pulses.KINDS)
        self.looks = 0
        self._asked: float | None = None
        self._closer_until_ns = 0
        self.due_ns = time.perf_counter_ns()

    def pause_ns(self, usual: float) -> float:
        """Between two looks at the host; more of them where a monitor has asked for that."""
        return min(usual, _CLOSER_NS) if time.perf_counter_ns() < self._closer_until_ns else usual

    def saw(self, lines: Sequence[Sequence[Any]]) -> None:
        """Count what the observer has seen, in the form of its file (`core/rank_files.py`)."""
        for line in lines:
            if line[0] == "s" and len(self._stacks) < _MOST_STACKS:
                self._stacks.append(live_pulses.KINDS.index(self._kinds.of(line[1])))
            elif line[0] == "t":
                for at in range(0, len(line[1]), 3):
                    _, stack, us = line[1][at : at + 3]
                    self._seen[self._stacks[stack]] += us
                    self.looks += 1
            else:
                self._kinds.take(line)

    def write(self, device: int | None, *, ended: bool = False) -> bool:
        """Write one. True where more looks are wanted from now on."""
        begun, steps = self._way.begun_ns, self._first + self._way.count
        now = time.perf_counter_ns()
        self.due_ns = now + int(live_pulses.EVERY_S * 1e9)
        unix = time.time_ns()
        held = reserved = retries = 0
        if device is not None:
            held, reserved, retries = self._memory(device)
        used = resource.getrusage(resource.RUSAGE_SELF)
        pulse = live_pulses.Pulse(
            self._count, unix, steps, unix - (now - begun), self._way.samples, held, reserved, self._total,
            _resident(), retries, used.ru_majflt & 0xFFFFFFFF, used.ru_nivcsw & 0xFFFFFFFF,
            live_pulses.ENDED if ended else 0, self.looks, tuple(self._seen),
        )  # fmt: skip
        # Opened anew: a script may close every file that it has not opened itself, and open others under their numbers.
        with self._path.open("r+b", buffering=0) as file:
            file.seek(live_pulses.place_of(self._count))
            file.write(pulse.pack())
            self._count += 1
            file.seek(0)
            file.write(
                live_pulses.HEAD.pack(PULSES_MAGIC, self._rank, os.getpid(), self._count).ljust(live_pulses.SIZE, b"\0")
            )
        return self._is_asked()

    def _is_asked(self) -> bool:
        try:
            asked = self._closer.stat().st_mtime
        except OSError:
            return False
        before, self._asked = self._asked, asked
        if asked == before or time.time() - asked > live_pulses.CLOSER_S:
            return False
        self._closer_until_ns = time.perf_counter_ns() + int(live_pulses.CLOSER_S * 1e9)
        return True

    def _memory(self, device: int) -> tuple[int, int, int]:
        sizes, counters = allocator_bytes(device), allocator_counters(device)
        if not self._total:
            self._total = int(sys.modules["torch"].cuda.get_device_properties(device).total_memory)
        held, reserved = (0, 0) if sizes is None else sizes[:2]
        return held, reserved, 0 if counters is None else counters[1]


def _resident() -> int:
    """Without files that are mapped: a data set that is read that way is no memory that grows."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - twice a second, beside a training
            _, resident, of_files, *_ = file.read(128).split()
            return (int(resident) - int(of_files)) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
