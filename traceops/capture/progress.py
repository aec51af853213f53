"""From a rank to its launcher: the heartbeat, and pipes for what it prints and what ended its capture.

The heartbeat is one small record per rank, rewritten as it steps, which shows the launcher where each rank is. Pipes
need no room on any disk: a file for the output would fail print() on a full one.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from traceops.capture.guard import contained, say, text
from traceops.core.capture_failure import CaptureFailure, advice_text, cause_text, read_failure

_SIZE = 256  # one write of less than a page: a reader never sees half of it
_EVERY_NS = 200_000_000
_NAME = "traceops-progress"
# Step, samples, time_ns, a word that is free, and last the file's time_ns: Python clears a record before it writes it,
# in order, so one that was cut short does not end with it. -1 for None.
_MEMORY = struct.Struct("=3q8xq")
_SLOTS = (0, _MEMORY.size)  # of two records, written in turn: one of them is whole at any time
_TAKEN = 2 * _MEMORY.size  # 1 from when a reader has the memory open
_LAST = _TAKEN + 1  # which of the two was written last; short_way/native/short_way.c writes them too


@dataclass(frozen=True)
class Progress:
    """Where one rank is.

    step: steps finished. phase: "starting" until the script takes part, a `Phase`, "profiler" while the
    profiler starts or writes its trace, or "ended". samples: what ``step(samples=…)`` counted, or None if
    nothing was said.
    memory: number of the rank's own file in which its later steps are; None where every step is in the record.
    """

    rank: int
    pid: int
    phase: str
    step: int
    samples: int | None
    time_ns: int
    memory: int | None = None


class ProgressWriter:
    """Rewrites this rank's record: in memory that a reader finds by the record, and every 200 ms in the file.

    Where steps go the short way (`short_way/`), that writes the memory, and the file comes when a step's end looks at
    everything.

    A reader that has looked once keeps the memory open, so it has the last step of a rank that was killed too. It
    says so in the memory. Until then each step goes to the file: the reader may be another user's, or not come in time.
    The file takes 4 µs on a local disk, and 14 where the step has emptied the caches; the memory takes less than 1.
    The memory is exact where the process is stopped or holds the interpreter's lock: no thread has to write it.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank = rank
        self._pid = os.getpid()
        self._fd: int | None = os.open(folder / f"rank_{rank}.json", os.O_CREAT | os.O_WRONLY, 0o644)
        self._file = os.fstat(self._fd)
        self._memory, self._number = _shared_memory(_name_of(rank, self._file))
        self._behind = None if self._number is None else os.fstat(self._number)
        self._phase = ""
        self._filed_ns = 0

    @property
    def memory(self) -> Any:
        """For who writes a step's record in our place; None where there is none."""
        return self._memory

    def filed_for_others(self) -> int | None:
        """The time in the file, where a reader has the memory, so that others may write to it; None where not."""
        if self._fd is None or self._memory is None or self._memory[_TAKEN] == b"\0":
            return None
        return self._filed_ns

    def write(self, phase: str, step: int, samples: int | None) -> bool:
        """Replace the record; does nothing after `close`. Whether the file was written too."""
        if self._fd is None:
            return False
        now = time.time_ns()
        # A clock that was set back must not keep anything out of the file.
        due = phase != self._phase or not 0 <= now - self._filed_ns < _EVERY_NS
        due = due or self._memory is None or self._memory[_TAKEN] == b"\0"
        if due:
            self._to_file(phase, step, samples, now)
            self._phase, self._filed_ns = phase, now
        if self._memory is not None:
            last = self._memory[_LAST] == b"\0"
            _MEMORY.pack_into(
                self._memory, _SLOTS[last],
                step, -1 if samples is None else int(samples), now, self._filed_ns,
            )  # fmt: skip
            self._memory[_LAST] = bytes([last])
        return due

    def _to_file(self, phase: str, step: int, samples: int | None, time_ns: int) -> None:
        assert self._fd is not None
        # By hand: json.dumps of the dataclass takes longer than the rest of a step's bookkeeping.
        text = (
            f'{{"rank": {self._rank}, "pid": {self._pid}, "phase": "{phase}", "step": {step}, '
            f'"samples": {"null" if samples is None else samples}, "time_ns": {time_ns}, '
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


def _name_of(rank: int, file: os.stat_result) -> str:
    """Of the memory that goes with this file: under a rank's number may be anything, and one writes to it too."""
    return f"{_NAME}-{rank}-{file.st_ino}"


def _shared_memory(name: str) -> tuple[Any, int | None]:
    """Memory that has a name only in /proc, and the number of its file there; None where there is no such thing. Not a
    mapped file of a disk: where that fails or is full, a write to it would kill the process. And not Python's own
    mapping: that closes a number at its end, which may be a file of the script's by then. 4 kB stay until the end."""
    try:
        number = os.memfd_create(name)
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
    return (ctypes.c_char * (_LAST + 1)).from_address(at), number


def read_progress(folder: Path) -> list[Progress]:
    """The records of all ranks on this machine, by rank; one that is not written yet is left out."""
    found = []
    for path in folder.glob("rank_*.json"):
        text = path.read_text()
        if text.strip():
            record = Progress(**json.loads(text))
            found.append(_newest(record, _name_of(record.rank, path.stat())))
    return sorted(found, key=lambda record: record.rank)


def _newest(record: Progress, name: str) -> Progress:
    """With what the rank has told since, where its memory can be read and belongs to this record."""
    if record.memory is None:
        return record
    for anew in (False, True):
        number = _memory_of(record.pid, record.memory, name, anew=anew)
        if number is not None and (told := _newer(record, number)) is not None:
            return told
    return record


def _newer(record: Progress, number: int) -> Progress | None:
    """None where the file has been written again since, or where the memory is that of an earlier capture."""
    try:
        looks = [os.pread(number, _TAKEN, 0) for _ in range(2)]
    except OSError:
        return None
    if any(len(look) != _TAKEN for look in looks):
        return None
    slots = [[_MEMORY.unpack_from(look, at) for at in _SLOTS] for look in looks]
    told = [slot for slot, again in zip(*slots, strict=True) if slot == again and slot[-1] == record.time_ns]
    if not told:
        return None
    step, samples, time_ns, _ = max(told)
    return replace(record, step=step, samples=None if samples < 0 else samples, time_ns=time_ns)


# By process and number there; open here, so that they outlive the rank.
_memories: dict[tuple[int, int], int] = {}


def _memory_of(pid: int, number: int, name: str, *, anew: bool) -> int | None:
    """Our number of the rank's memory; None where it cannot be had. anew: what the rank has under its number now. The
    one that is open stays where there is no other: the rank may be gone."""
    if (known := _memories.get((pid, number))) is not None and not anew:
        return known
    theirs = Path(f"/proc/{pid}/fd/{number}")
    try:
        if not _is_memory(theirs, name):
            return known
        ours = os.open(theirs, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return known
    try:
        if not _is_memory(Path(f"/proc/self/fd/{ours}"), name):  # the rank had it as another file just then
            raise FileNotFoundError
        os.pwrite(ours, b"\1", _TAKEN)
    except OSError:
        os.close(ours)
        return known
    if known is not None:
        os.close(known)
    _memories[pid, number] = ours
    return ours


def _is_memory(path: Path, name: str) -> bool:
    return str(path.readlink()).removesuffix(" (deleted)") == f"/memfd:{name}"


def pipe_path(folder: Path, local_rank: int, *, error: bool) -> Path:
    """The pipe for a rank's stdout or stderr in the launcher's folder."""
    return folder / f"{'stderr' if error else 'stdout'}_{local_rank}.fifo"


def make_pipes(folder: Path, ranks: int, *, one_place: bool) -> list[tuple[int, Path]]:
    """Pipes for as many ranks: each with its local rank. one_place: stdout and stderr of each have the same one. Raises
    OSError."""
    made = []
    for local_rank in range(ranks):
        for error in (False,) if one_place else (False, True):
            path = pipe_path(folder, local_rank, error=error)
            os.mkfifo(path)
            made.append((local_rank, path))
    return made


def print_to_launcher(folder: Path, environ: Mapping[str, str]) -> None:
    """Have this process, and those that it starts, print into the launcher's pipes; as before where there are none."""
    local_rank = int(environ.get("LOCAL_RANK", "-1"))
    for descriptor, error in ((1, False), (2, True)):
        path = pipe_path(folder, local_rank, error=error)
        if not path.exists():
            path = pipe_path(folder, local_rank, error=False)
        with suppress(OSError):  # no pipe, or nobody who reads it
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(pipe, True)
            os.dup2(pipe, descriptor)
            os.close(pipe)


def _pipe(folder: Path) -> Path:
    return folder / "last_words.fifo"


def _send(folder: Path, failure: CaptureFailure) -> bool:
    """In a rank: one line into the pipe, in one write. Raises OSError where nobody listens, or the pipe is full."""
    pipe = os.open(_pipe(folder), os.O_WRONLY | os.O_NONBLOCK)
    try:
        return os.write(pipe, (json.dumps(failure.as_dict()) + "\n").encode()) > 0
    finally:
        os.close(pipe)


def report(failure: CaptureFailure, progress: str | None, *, saved: bool, aloud: bool) -> None:
    """In a rank: to the launcher whose heartbeats are in `progress`; on stderr where nobody else will say it. saved:
    the rank's manifest has it. aloud: whether stderr may be written to."""
    sent = progress is not None and contained(_send, Path(progress), failure) is True
    if aloud and (progress is None or not (sent or saved)):
        early = text("ended_early", who=f"rank {failure.rank}", cause=cause_text(failure))
        say(f"{early}; {advice_text(failure)}")


class LastWords:
    """In the launcher: makes the pipe in `folder`, which must be its own. Raises OSError where that fails."""

    def __init__(self, folder: Path) -> None:
        os.mkfifo(_pipe(folder))
        self._pipe = os.open(_pipe(folder), os.O_RDWR | os.O_NONBLOCK)  # both ends, so that reading never ends
        self._text = b""

    def heard(self) -> list[CaptureFailure]:
        """All that ranks of this machine have told so far."""
        try:
            while piece := os.read(self._pipe, 1 << 16):
                self._text += piece
        except BlockingIOError:
            pass
        found = [read_failure(_json(line)) for line in self._text.splitlines()]
        return [failure for failure in found if failure is not None]

    def close(self) -> None:
        os.close(self._pipe)


def _json(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
