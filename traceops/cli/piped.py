"""Standard output and messages into a pipe whose reader may go away before the command has ended."""

from __future__ import annotations

import io
import os
import sys
from stat import S_ISFIFO, S_ISSOCK
from typing import Any, TextIO


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

    Its messages too may go there (`2>&1 | head`). Does nothing to a stream that is no pipe or socket.
    """
    sys.stdout, sys.stderr = (_outliving(stream) for stream in (sys.stdout, sys.stderr))


def _outliving(stream: TextIO) -> TextIO:
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError, AttributeError):
        return stream
    if not (S_ISFIFO(mode) or S_ISSOCK(mode)) or not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_UntilGone(number, "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
    )
