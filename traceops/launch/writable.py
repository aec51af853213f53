"""The run folder can be written before anything starts, and run.json at the end: room for it is kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from traceops.capture.environment import host
from traceops.core.errors import UsageError
from traceops.launch.aside import reason


class NotWritable(UsageError):
    """Nothing was started, because the run folder cannot be written."""


@contextmanager
def writable(out: Path) -> Iterator[None]:
    """Before anything is started: refuse a folder that cannot be written."""
    try:
        yield
    except OSError as error:
        raise NotWritable(
            f"{out} cannot be written ({reason(error)}); make room or get permission there, or choose another --out"
        ) from error


@contextmanager
def progress_folder() -> Iterator[str]:
    """A folder of this launcher's own for the ranks' records, gone at the end."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="traceops-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UsageError(
            f"{tempfile.gettempdir()} cannot be written ({reason(error)}); make room there, or set TMPDIR"
        ) from error
    with folder as path:
        yield path


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
