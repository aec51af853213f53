"""The rank's part of the monitor: twice a second, on the observer's own thread, what has been seen until then."""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traceops.capture.observing.signs import allocator_bytes, allocator_counters
from traceops.capture.short_way.ways import LongWay
from traceops.core.live_pulses import (
    CLOSER,
    CLOSER_S,
    ENDED,
    EVERY_S,
    HEAD,
    KINDS,
    MAGIC,
    PULSES_FILE,
    SIZE,
    Pulse,
    new_file,
    place_of,
)

_PAGE = os.sysconf("SC_PAGE_SIZE")
_CLOSER_NS = 20_000_000  # between two looks, on average
_MOST_STACKS = 20_000
# By the file that a frame is in, or its function's name; the first kind that one of a stack's frames has counts.
_BY_FRAME: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (kind, re.compile(files), re.compile(names))
    for kind, files, names in (
        ("checkpoint", r"torch/(serialization|distributed/checkpoint/.*)\.py$",
         r"(^|[._])(save_checkpoint|save_pretrained|save_state|save_model|async_save)$"),
        ("evaluation", r"$^", r"(^|[._])(eval|evaluate|evaluation_loop|validate|validation|validation_step)$"),
        ("input", r"torch/utils/data/.*\.py$", r"$^"),
        ("compiling", r"torch/_(dynamo|inductor|functorch)/.*\.py$", r"$^"),
        ("optimizer", r"torch/optim/.*\.py$", r"$^"),
        ("waiting", r"torch/distributed/(distributed_c10d|c10d_logger)\.py$", r"(^|[._])(synchronize|barrier)$"),
        ("backward", r"$^", r"_engine_run_backward$"),
    )
)  # fmt: skip
_RANK_OF_KIND = {kind: order for order, (kind, _, _) in enumerate(_BY_FRAME)}
_WAITS = re.compile(r"\.(item|cpu|tolist|synchronize|wait)\(|\b(all_reduce|barrier|all_gather|broadcast)\w*\(")


class Pulses:
    """One rank's. folder: of the rank, in the run folder."""

    def __init__(self, folder: Path, rank: int, way: LongWay, first: int = 0) -> None:
        self._path, self._closer = folder / PULSES_FILE, folder.parent / CLOSER
        self._path.write_bytes(new_file(rank))
        self._rank, self._way, self._first = rank, way, first
        self._count = 0
        self._total = 0  # bytes of the GPU
        self._frames: list[str | None] = []
        self._stacks: list[int] = []
        self._seen = [0] * len(KINDS)
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
            if line[0] == "f":
                self._frames.append(_kind(str(line[1]), str(line[2]), line[5]))
            elif line[0] == "n":
                for number in line[1]:
                    self._frames[number] = "evaluation"
            elif line[0] == "s" and len(self._stacks) < _MOST_STACKS:
                kinds = {kind for number in line[1] if (kind := self._frames[number]) is not None}
                first = min(kinds, key=_RANK_OF_KIND.__getitem__, default="own")
                self._stacks.append(KINDS.index(first))
            elif line[0] == "t":
                for at in range(0, len(line[1]), 3):
                    _, stack, us = line[1][at : at + 3]
                    self._seen[self._stacks[stack]] += us
                    self.looks += 1

    def write(self, device: int | None, *, ended: bool = False) -> bool:
        """Write one. True where more looks are wanted from now on."""
        begun, steps = self._way.begun_ns, self._first + self._way.count
        now = time.perf_counter_ns()
        self.due_ns = now + int(EVERY_S * 1e9)
        unix = time.time_ns()
        held = reserved = retries = 0
        if device is not None:
            held, reserved, retries = self._memory(device)
        used = resource.getrusage(resource.RUSAGE_SELF)
        pulse = Pulse(
            self._count, unix, steps, unix - (now - begun), self._way.samples, held, reserved, self._total,
            _resident(), retries, used.ru_majflt & 0xFFFFFFFF, used.ru_nivcsw & 0xFFFFFFFF, ENDED if ended else 0,
            self.looks, tuple(self._seen),
        )  # fmt: skip
        # Opened anew: a script may close every file that it has not opened itself, and open others under their numbers.
        with self._path.open("r+b", buffering=0) as file:
            file.seek(place_of(self._count))
            file.write(pulse.pack())
            self._count += 1
            file.seek(0)
            file.write(HEAD.pack(MAGIC, self._rank, os.getpid(), self._count).ljust(SIZE, b"\0"))
        return self._is_asked()

    def _is_asked(self) -> bool:
        try:
            asked = self._closer.stat().st_mtime
        except OSError:
            return False
        before, self._asked = self._asked, asked
        if asked == before or time.time() - asked > CLOSER_S:
            return False
        self._closer_until_ns = time.perf_counter_ns() + int(CLOSER_S * 1e9)
        return True

    def _memory(self, device: int) -> tuple[int, int, int]:
        sizes, counters = allocator_bytes(device), allocator_counters(device)
        if not self._total:
            self._total = int(sys.modules["torch"].cuda.get_device_properties(device).total_memory)
        held, reserved = (0, 0) if sizes is None else sizes[:2]
        return held, reserved, 0 if counters is None else counters[1]


def _kind(function: str, file: str, text: str | None) -> str | None:
    for kind, files, names in _BY_FRAME:
        if files.search(file) or names.search(function):
            return kind
    return "waiting" if text is not None and _WAITS.search(text) else None


def _resident() -> int:
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - twice a second, beside a training
            return int(file.read(64).split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
