"""Which process of a command is a rank, where the command starts its ranks itself: the first that ends a step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from traceops.capture.environment import host
from traceops.core.installation import stat_fields

_FILE = ".joined"  # a line a process: the rank's, then those that came later


@dataclass(frozen=True)
class Unrecorded:
    """A process that ended steps as a rank that another process is already.

    restarted: that one had ended by then, as where torchrun starts all ranks again. None where it ran elsewhere.
    """

    rank: int
    pid: int
    restarted: bool | None


def is_first(out: Path, rank: int) -> bool:
    """Whether no other process is this rank: one that trains by itself takes itself for rank 0. Each leaves a line."""
    folder = out / f"rank_{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    line = f"{os.getpid()} {host()}\n".encode()
    try:
        _write(folder / _FILE, os.O_CREAT | os.O_EXCL, line)
    except FileExistsError:
        before = _lines(folder / _FILE)
        state = "elsewhere"
        if before and before[0][1:] == [host()] and before[0][0].isdigit():
            state = "beside" if _runs(int(before[0][0])) else "after"
        with suppress(OSError):
            _write(folder / _FILE, os.O_APPEND, f"{os.getpid()} {state}\n".encode())
        return False
    return True


def unrecorded(out: Path, ranks: Iterable[int]) -> Iterator[Unrecorded]:
    """The processes that came later, by rank."""
    for rank in sorted(ranks):
        for line in _lines(out / f"rank_{rank}" / _FILE)[1:]:
            if len(line) == 2 and line[0].isdigit():
                yield Unrecorded(rank, int(line[0]), {"after": True, "beside": False}.get(line[1]))


def _write(path: Path, flags: int, line: bytes) -> None:
    file = os.open(path, flags | os.O_WRONLY, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def _lines(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return []


def _runs(pid: int) -> bool:
    state = stat_fields(pid)[:1]
    return bool(state) and state[0] not in "ZX"
