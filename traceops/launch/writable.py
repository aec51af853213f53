"""Refuses folders that cannot be written, before anything is started."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
