"""Pipes from a rank to its launcher: what it prints, and what ended its capture. They need no room on any disk.

A file for the output would fail print() on a full disk, and a program that writes to /dev/stdout would truncate it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from traceops.capture.guard import contained, say, text
from traceops.core.capture_failure import CaptureFailure, advice_text, cause_text, read_failure


def pipe_path(folder: Path, local_rank: int, *, error: bool) -> Path:
    """The pipe for a rank's stdout or stderr in the launcher's folder."""
    return folder / f"{'stderr' if error else 'stdout'}_{local_rank}.fifo"


def make_pipes(folder: Path, ranks: int, *, one_place: bool) -> list[tuple[int, Path]]:
    """Pipes for as many ranks: each with its local rank. one_place: stdout and stderr of each have the same one.

    Raises OSError.
    """
    made = []
    for local_rank in range(ranks):
        for error in (False,) if one_place else (False, True):
            path = pipe_path(folder, local_rank, error=error)
            os.mkfifo(path)
            made.append((local_rank, path))
    return made


def print_to_launcher(folder: Path, environ: Mapping[str, str]) -> None:
    """Have this process, and those that it starts, print into the launcher's pipes; as before where there are none."""
    local_rank = int(environ.get("LOCAL_RANK", "-1"))
    for descriptor, error in ((1, False), (2, True)):
        path = pipe_path(folder, local_rank, error=error)
        if not path.exists():
            path = pipe_path(folder, local_rank, error=False)
        with suppress(OSError):  # no pipe, or nobody who reads it
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(pipe, True)
            os.dup2(pipe, descriptor)
            os.close(pipe)


def _pipe(folder: Path) -> Path:
    return folder / "last_words.fifo"


def _send(folder: Path, failure: CaptureFailure) -> bool:
    """In a rank: one line into the pipe, in one write. Raises OSError where nobody listens, or the pipe is full."""
    pipe = os.open(_pipe(folder), os.O_WRONLY | os.O_NONBLOCK)
    try:
        return os.write(pipe, (json.dumps(failure.as_dict()) + "\n").encode()) > 0
    finally:
        os.close(pipe)


def report(failure: CaptureFailure, progress: str | None, *, saved: bool, aloud: bool) -> None:
    """In a rank: to the launcher whose heartbeats are in `progress`; on stderr where nobody else will say it.

    saved: the rank's manifest has it. aloud: whether stderr may be written to.
    """
    sent = progress is not None and contained(_send, Path(progress), failure) is True
    if aloud and (progress is None or not (sent or saved)):
        early = text("ended_early", who=f"rank {failure.rank}", cause=cause_text(failure))
        say(f"{early}; {advice_text(failure)}")


class LastWords:
    """In the launcher: makes the pipe in `folder`, which must be its own. Raises OSError where that fails."""

    def __init__(self, folder: Path) -> None:
        os.mkfifo(_pipe(folder))
        self._pipe = os.open(_pipe(folder), os.O_RDWR | os.O_NONBLOCK)  # both ends, so that reading never ends
        self._text = b""

    def heard(self) -> list[CaptureFailure]:
        """All that ranks of this machine have told so far."""
        try:
            while piece := os.read(self._pipe, 1 << 16):
                self._text += piece
        except BlockingIOError:
            pass
        found = [read_failure(_json(line)) for line in self._text.splitlines()]
        return [failure for failure in found if failure is not None]

    def close(self) -> None:
        os.close(self._pipe)


def _json(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
