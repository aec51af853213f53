"""What traceops finds where it is installed: its data, and the process it runs in."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traceops.core.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]  # the folder of traceops itself


def bundled(*parts: str) -> Path:
    """Path of a bundled file such as ``bundled("runners", "train.py")``."""
    for root in (PACKAGE / "_bundled", PACKAGE.parent):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise InputError(f"{'/'.join(parts)} is missing from this traceops installation; reinstall it")


@contextmanager
def uncollected() -> Iterator[None]:
    """For the imports of a process of our own: torch loads in three quarters of the CPU time. What is there when it
    ends stays, and the collector passes it over from then on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


# What is freed stays with a process that reads many large files: given back and taken again, each page of it is cleared
# and mapped anew, which takes a twentieth of the time of `analyze`.

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_MOST_FREE = 1 << 30
_MOST_MAPPED = 32 << 20  # the largest that it takes


def keep_freed_memory() -> None:
    """For this process and those that it forks; nothing without glibc."""
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(_TRIM_THRESHOLD, _MOST_FREE)
    mallopt(_MMAP_THRESHOLD, _MOST_MAPPED)


def stat_fields(pid: int) -> list[str]:
    """The fields behind the process's name, its state first; none where there is no such process, or no /proc."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return raw.rpartition(b")")[2].decode("ascii", "replace").split()  # the name may hold anything
