"""Room on the disk that is kept for run.json, so that a run whose traces fill the disk can still say so."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from traceops.capture.environment import host

_BYTES = 1 << 18  # run.json takes 2 kB and 2 kB a rank


class Reserve:
    """Takes the room when it is made; `release` gives it back. Raises OSError where there is none."""

    def __init__(self, out: Path) -> None:
        self._path = _place(out)
        self._path.write_bytes(os.urandom(_BYTES))  # written, and as some disks compress: not zeros

    def release(self) -> None:
        """Give the room back; does nothing where that cannot be done."""
        remove_reserve(self._path.parent)


def remove_reserve(out: Path) -> None:
    """What `release` does, of a launcher on this machine that is gone."""
    with suppress(OSError):
        _place(out).unlink(missing_ok=True)


def _place(out: Path) -> Path:
    return out / f".reserve.{host()}"
