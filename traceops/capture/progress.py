"""The heartbeat: one small record a rank, rewritten as it steps, from which the launcher tells who is where."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_SIZE = 256  # one write of less than a page: a reader never sees half of it
_EVERY_NS = 20_000_000
_FIRST = (
    200  # steps that are all written there: by then the launcher has the memory, whatever becomes of the rank
)
_NAME = "traceops-progress"
_MEMORY = struct.Struct("=5q")  # the file's time_ns, step, samples, time_ns, sequence; -1 for None


@dataclass(frozen=True)
class Progress:
    """Where one rank is.

    step: steps finished. phase: "starting" until the script takes part, a `Phase`, "profiler" while the
    profiler starts or writes its trace, or "ended". samples: what ``step(samples=…)`` counted, or None if
    nothing was said. sequence: number of the last collective of the default group; None before there is one.
    memory: number of the rank's own file in which its later steps are; None where every step is in the record.
    """

    rank: int
    pid: int
    phase: str
    step: int
    samples: int | None
    time_ns: int
    sequence: int | None = None
    memory: int | None = None


class ProgressWriter:
    """Rewrites this rank's record: in memory that a reader finds by the record, and every 20 ms in the file.

    A reader that has looked once keeps the memory open, so it has the last step of a rank that was killed too.
    The file takes 4 µs on a local disk, and 14 where the step has emptied the caches; the memory takes less than 1.
    The memory is exact where the process is stopped or holds the interpreter's lock: no thread has to write it.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank = rank
        self._pid = os.getpid()
        self._fd: int | None = os.open(folder / f"rank_{rank}.json", os.O_CREAT | os.O_WRONLY, 0o644)
        self._file = os.fstat(self._fd)
        self._memory, self._number = _shared_memory()
        self._behind = None if self._number is None else os.fstat(self._number)
        self._phase = ""
        self._filed_ns = 0

    def write(self, phase: str, step: int, samples: int | None) -> bool:
        """Replace the record; does nothing after `close`. Whether the file was written too."""
        if self._fd is None:
            return False
        sequence = last_collective()
        now = time.time_ns()
        # A clock that was set back must not keep anything out of the file.
        due = phase != self._phase or not 0 <= now - self._filed_ns < _EVERY_NS
        due = due or step < _FIRST or self._memory is None
        if due:
            self._to_file(phase, step, samples, now, sequence)
            self._phase, self._filed_ns = phase, now
        if self._memory is not None:
            _MEMORY.pack_into(
                self._memory, 0,
                self._filed_ns, step, -1 if samples is None else int(samples), now,
                -1 if sequence is None else sequence,
            )  # fmt: skip
        return due

    def _to_file(
        self, phase: str, step: int, samples: int | None, time_ns: int, sequence: int | None
    ) -> None:
        assert self._fd is not None
        # By hand: json.dumps of the dataclass takes longer than the rest of a step's bookkeeping.
        text = (
            f'{{"rank": {self._rank}, "pid": {self._pid}, "phase": "{phase}", "step": {step}, '
            f'"samples": {"null" if samples is None else samples}, "time_ns": {time_ns}, '
            f'"sequence": {"null" if sequence is None else sequence}, '
            f'"memory": {"null" if self._number is None else self._number}}}'
        )
        if not os.path.samestat(os.fstat(self._fd), self._file):
            self._fd = None  # closed by the script, and its number is another file now: not ours to write
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.pwrite(self._fd, text.ljust(_SIZE).encode(), 0)

    def close(self) -> None:
        """Write nothing any more; the last record stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        number, self._number = self._number, None
        if number is not None and self._behind is not None:
            with suppress(OSError):  # closed by the script
                if os.path.samestat(os.fstat(number), self._behind):
                    os.close(number)


def _shared_memory() -> tuple[Any, int | None]:
    """Memory that has a name only in /proc, and the number of its file there; None where there is no such thing.

    Not a mapped file of a disk: where that fails or is full, a write to it would kill the process. And not Python's
    own mapping: that closes a number at its end, which may be a file of the script's by then. 4 kB stay until the end.
    """
    try:
        number = os.memfd_create(_NAME)
        os.truncate(number, mmap.PAGESIZE)
        to_map = ctypes.CDLL(None, use_errno=True).mmap
    except (OSError, AttributeError):
        return None, None
    to_map.restype = ctypes.c_void_p
    to_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *3 * (ctypes.c_int,), ctypes.c_long)
    at = to_map(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, number, 0)
    if at == ctypes.c_void_p(-1).value:
        os.close(number)
        return None, None
    return (ctypes.c_char * _MEMORY.size).from_address(at), number


def last_collective() -> int | None:
    """Sequence number of the default group's last collective; None before the group is there."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    member = getattr(c10d, "GroupMember", None)  # absent while torch is being imported
    group = None if member is None else member.WORLD
    if group is None:
        return None
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:  # a backend that counts nothing
        return None


def read_progress(folder: Path) -> list[Progress]:
    """The records of all ranks on this machine, by rank; one that is not written yet is left out."""
    found = []
    for path in folder.glob("rank_*.json"):
        text = path.read_text()
        if text.strip():
            found.append(_newest(Progress(**json.loads(text))))
    return sorted(found, key=lambda record: record.rank)


def _newest(record: Progress) -> Progress:
    """With what the rank has told since, where its memory can be read and belongs to this record."""
    if record.memory is None or (number := _memory_of(record.pid, record.memory)) is None:
        return record
    try:
        looks = [os.pread(number, _MEMORY.size, 0) for _ in range(2)]
    except OSError:
        return record
    if looks[0] != looks[1] or len(looks[0]) != _MEMORY.size:  # it is being written: the rank is not standing
        return record
    filed_ns, step, samples, time_ns, sequence = _MEMORY.unpack(looks[0])
    if (
        filed_ns != record.time_ns
    ):  # the file has been written again since, or this is an earlier capture's memory
        if _memories.pop((record.pid, record.memory), None) is not None:
            os.close(number)
        return record
    return replace(
        record, step=step, samples=None if samples < 0 else samples, time_ns=time_ns,
        sequence=None if sequence < 0 else sequence,
    )  # fmt: skip


_memories: dict[
    tuple[int, int], int
] = {}  # by process and number there; open here, so that they outlive the rank


def _memory_of(pid: int, number: int) -> int | None:
    """Our number of the rank's memory; None where it cannot be had."""
    if (pid, number) not in _memories:
        path = Path(f"/proc/{pid}/fd/{number}")
        try:
            if not str(path.readlink()).startswith(f"/memfd:{_NAME}"):
                return None
            _memories[pid, number] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
    return _memories[pid, number]
