"""The line that says how far the reading of traces is: ranks, MB, MB/s, time left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from traceops.core.units import clock_text

if TYPE_CHECKING:
    from traceops.pipeline.mapping.ranks import Done

_MOMENT_S = 0.5  # what takes no longer needs no line
_BETWEEN_S = 0.1
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """A line on a terminal that is written over, nothing elsewhere; call it with how far the map is."""

    def __init__(self, file: TextIO, enabled: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._shown = enabled and file.isatty() and os.environ.get("TERM") != "dumb"
        self._began = self._last = clock()
        self._written = False

    def __enter__(self) -> ProgressLine:
        return self

    def __call__(self, done: Done) -> None:
        now = self._clock()
        if self._shown and now - self._began >= _MOMENT_S and now - self._last >= _BETWEEN_S:
            self._file.write(_CLEAR + progress_text(done, now - self._began))
            self._file.flush()
            self._last, self._written = now, True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._written:
            self._file.write(_CLEAR)
            self._file.flush()


def progress_text(done: Done, seconds: float) -> str:
    """How far the map is after so many seconds, in less than 80 characters."""
    text = f"reading traces  {done.ranks}/{done.all_ranks} ranks"
    if done.bytes:
        text += f"  {done.bytes / 1e6:,.0f} MB  {done.bytes / 1e6 / max(seconds, 1e-9):,.0f} MB/s"
    share = done.bytes / done.all_bytes if done.all_bytes else done.ranks / done.all_ranks
    if 0 < share < 1:
        text += f"  {clock_text(seconds * (1 / share - 1))} left"
    return text
