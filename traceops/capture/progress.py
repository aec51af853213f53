"""The heartbeat: one small record a rank, rewritten every step, from which the launcher tells who is where."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_SIZE = 256  # one write of less than a page: a reader never sees half of it


@dataclass(frozen=True)
class Progress:
    """Where one rank is.

    step: steps finished. phase: "starting" until the script takes part, a `Phase`, "profiler" while the
    profiler starts or writes its trace, or "ended". samples: what ``step(samples=…)`` counted, or None if
    nothing was said. sequence: number of the last collective of the default group; None before there is one.
    """

    rank: int
    pid: int
    phase: str
    step: int
    samples: int | None
    time_ns: int
    sequence: int | None = None


class ProgressWriter:
    """Rewrites this rank's record in place: 4 µs a step on a local disk, 14 where the step has emptied the caches."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank = rank
        self._pid = os.getpid()
        self._fd: int | None = os.open(folder / f"rank_{rank}.json", os.O_CREAT | os.O_WRONLY, 0o644)
        self._file = os.fstat(self._fd)

    def write(self, phase: str, step: int, samples: int | None) -> None:
        """Replace the record; does nothing after `close`."""
        if self._fd is None:
            return
        sequence = last_collective()
        # By hand: json.dumps of the dataclass takes longer than the rest of a step's bookkeeping.
        text = (
            f'{{"rank": {self._rank}, "pid": {self._pid}, "phase": "{phase}", "step": {step}, '
            f'"samples": {"null" if samples is None else samples}, "time_ns": {time.time_ns()}, '
            f'"sequence": {"null" if sequence is None else sequence}}}'
        )
        if not os.path.samestat(os.fstat(self._fd), self._file):
            self._fd = None  # closed by the script, and its number is another file now: not ours to write
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.pwrite(self._fd, text.ljust(_SIZE).encode(), 0)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


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
            found.append(Progress(**json.loads(text)))
    return sorted(found, key=lambda record: record.rank)
