"""What a rank writes for a monitor while it trains: the format of ``rank_<r>/live.bin``, beside ``steps.bin``.

Twice a second a `PULSE` of 160 bytes, in a ring: slot 0 holds `HEAD`, the others the latest `SLOTS` pulses. With 24
bytes a step in ``steps.bin`` a rank writes less than 64 bytes per step, and nothing of it on the thread that trains.

    HEAD     magic, rank, process id, pulses so far
    PULSE    number; Unix ns; steps finished; Unix ns at which the step began that goes on; samples trained on, -1
             where nobody counts them; bytes that tensors hold on the GPU; that the allocator reserved; of the whole
             GPU; bytes of the process in memory, without files; allocator retries; major page faults; involuntary
             context switches; flags; looks at the host; then µs that these stand for, for each of `KINDS`; all counts
             since the start

A monitor asks for more looks at the host by touching `CLOSER` in the run folder: for `CLOSER_S` seconds ranks are
sampled every 20 ms.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PULSES_FILE = "live.bin"
STATE_FILE, EVENTS_FILE = "live.json", "live.events.jsonl"  # of the monitor, in the run folder
CLOSER, CLOSER_S = "live.closer", 4.0
MAGIC = b"traceops live 1\n"
EVERY_S = 0.5
SLOTS = 2_048
# What the main thread did where it was seen. waiting: for other ranks or the device; backward: in autograd's engine,
# which waits for other ranks too, where gradients are reduced while they are computed.
KINDS = ("own", "input", "optimizer", "backward", "waiting", "checkpoint", "evaluation", "compiling")
HEAD = struct.Struct("<16sIIQ")
PULSE = struct.Struct("<QqQqqQQQQIIIIQ8Q")
SIZE = PULSE.size
ENDED = 1  # the rank closed its file by itself


@dataclass(frozen=True)
class Pulse:
    """One of them, see above. seen_us: by kind."""

    number: int
    time_ns: int
    steps: int
    begun_ns: int
    samples: int
    held: int
    reserved: int
    total: int
    resident: int
    retries: int
    faults: int
    preempted: int
    flags: int
    looks: int
    seen_us: tuple[int, ...]

    def pack(self) -> bytes:
        """Its bytes in the file."""
        values = [getattr(self, name) for name in _NAMES]
        return PULSE.pack(*values, *self.seen_us)


_NAMES = tuple(Pulse.__dataclass_fields__)[:-1]


def new_file(rank: int) -> bytes:
    """The head of a file without pulses."""
    return HEAD.pack(MAGIC, rank, os.getpid(), 0).ljust(SIZE, b"\0")


def place_of(number: int) -> int:
    """Where pulse `number` stands, in bytes."""
    return SIZE * (1 + number % SLOTS)


def read_pulses(path: Path, after: int = -1, most: int = SLOTS) -> list[Pulse]:
    """The pulses numbered above `after`, the latest `most` of them; none where there is no such file. All of them where
    the file was begun anew since, as a capture does that opens after the observer."""
    try:
        with path.open("rb", buffering=0) as file:
            magic, _, _, count = HEAD.unpack(file.read(SIZE)[: HEAD.size])
            after = -1 if after >= count else after
            first = max(after + 1, count - min(most, SLOTS), 0)
            if magic != MAGIC or first >= count:
                return []
            found = []
            while first < count:  # a piece of the ring at a time
                here = min(count - first, SLOTS - first % SLOTS)
                file.seek(place_of(first))
                raw = file.read(here * SIZE)
                found += [_pulse(raw[at : at + PULSE.size]) for at in range(0, len(raw) - SIZE + 1, SIZE)]
                first += here
    except (OSError, struct.error):
        return []
    return [pulse for pulse in found if after < pulse.number < count]


def _pulse(raw: bytes) -> Pulse:
    values = PULSE.unpack(raw)
    named = dict(zip(_NAMES, values[: len(_NAMES)], strict=True))
    return Pulse(**named, seen_us=tuple(values[len(_NAMES) :]))


# By the file that a frame is in, or its function's name; the first kind that one of a stack's frames has counts.
_BY_FRAME: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (kind, re.compile(files), re.compile(names))
    for kind, files, names in (
        ("checkpoint", r"torch/(serialization|distributed/checkpoint/.*)\.py$",
         r"(^|[._])(save_checkpoint|save_pretrained|save_state|save_model|async_save)$"),
        ("evaluation", r"$^", r"(^|[._])(eval|evaluate|evaluation_loop|validate|validation|validation_step)$"),
        ("input", r"torch/utils/data/.*\.py$", r"$^"),
        ("compiling", r"torch/_(dynamo|inductor|functorch)/.*\.py$", r"$^"),
        ("waiting", r"torch/distributed/(distributed_c10d|c10d_logger)\.py$", r"(^|[._])(synchronize|barrier)$"),
        ("backward", r"$^", r"_engine_run_backward$"),
        ("optimizer", r"torch/optim/.*\.py$", r"$^"),
    )
)  # fmt: skip
_RANK_OF_KIND = {kind: order for order, (kind, _, _) in enumerate(_BY_FRAME)}
_WAITS = re.compile(r"\.(item|cpu|tolist|synchronize|wait)\(|\b(all_reduce|barrier|all_gather|broadcast)\w*\(")


class StackKinds:
    """What a main thread does, of `KINDS`, by its stack; frames are those of ``observed.jsonl``, as they come."""

    def __init__(self) -> None:
        self._frames: list[str | None] = []
        self._own: set[int] = set()  # of the program's own files

    def take(self, line: Sequence[Any]) -> None:
        """A line of the file, which may be one on frames."""
        if line[0] == "f":
            if line[5] is not None:
                self._own.add(len(self._frames))
            self._frames.append(_kind(str(line[1]), str(line[2]), line[5]))
        elif line[0] == "n":
            for number in line[1]:
                self._frames[number] = "evaluation"

    def of(self, stack: Sequence[int]) -> str:
        """An optimizer that calls the program back (a closure, as Lightning has it) is not at work itself then."""
        kinds: set[str] = set()
        for number in stack:
            if number in self._own:
                kinds.discard("optimizer")
            if (kind := self._frames[number]) is not None:
                kinds.add(kind)
        return min(kinds, key=_RANK_OF_KIND.__getitem__, default="own")


def _kind(function: str, file: str, text: str | None) -> str | None:
    for kind, files, names in _BY_FRAME:
        if files.search(file) or names.search(function):
            return kind
    return "waiting" if text is not None and _WAITS.search(text) else None
