"""Standard output into a pipe whose reader may go away before the command has ended."""

from __future__ import annotations

import io
import os
import sys
from stat import S_ISFIFO, S_ISSOCK
from typing import Any


class _UntilGone(io.FileIO):
    """A file descriptor that takes everything: what nobody reads any more is lost."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def outlive_the_reader() -> None:
    """Have a command end with its own exit code where nobody reads to its end: `traceops compare … | head` in CI.

    Does nothing where standard output is no pipe or socket.
    """
    try:
        number = sys.stdout.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError, AttributeError):
        return
    if not (S_ISFIFO(mode) or S_ISSOCK(mode)) or not isinstance(sys.stdout, io.TextIOWrapper):
        return
    sys.stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_UntilGone(number, "wb", closefd=False)),
        encoding=sys.stdout.encoding,
        errors=sys.stdout.errors,
        line_buffering=sys.stdout.line_buffering,
    )
