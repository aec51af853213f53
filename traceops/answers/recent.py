"""Keeps what was opened last, for who asks several questions of one run."""

from __future__ import annotations

import subprocess
import tempfile
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from traceops.answers.opening import Opened, is_written, open_run, refuse_several
from traceops.core.as_module import command_of
from traceops.core.errors import InputError
from traceops.core.redaction import redact_text
from traceops.traces.source import is_remote

_MOST = 4


class Recent:
    """Opens runs, the last ones once as long as their files stay as they are.

    Traces are analysed in a process of their own, into a temporary folder: nothing beside them is written, and this
    process may have threads. Closing removes those folders.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, int, int], Opened] = OrderedDict()
        self._scope = ExitStack()

    def __enter__(self) -> Recent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.close()

    def open(self, path: str) -> Opened:
        """As `open_run`. Raises InputError."""
        state = _state(path)
        if state in self._kept:
            self._kept.move_to_end(state)
            return self._kept[state]
        found = open_run(path) if is_written(path) else self._analysed(path)
        self._kept[state] = found
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return found

    def _analysed(self, path: str) -> Opened:
        refuse_several(path)
        folder = self._scope.enter_context(tempfile.TemporaryDirectory(prefix="traceops-"))
        command = [*command_of("traceops"), "analyze", path, "-o", folder, "--format", "json,csv", "-q"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            said = done.stderr.strip().removeprefix("traceops analyze: ")
            raise InputError(said or f"{path} could not be analysed (exit code {done.returncode})")
        return replace(open_run(folder), path=redact_text(path), read_from="traces")


def _state(path: str) -> tuple[str, int, int, int]:
    """The path, and how many files it has, of how many bytes, the newest from when: other files are another state."""
    if is_remote(path):
        return path, 0, 0, 0
    place = Path(path)
    count = total = newest = 0
    for file in place.rglob("*") if place.is_dir() else (place,):
        try:
            found = file.stat()
        except OSError:
            continue
        count, total, newest = count + 1, total + found.st_size, max(newest, found.st_mtime_ns)
    return path, count, total, newest
