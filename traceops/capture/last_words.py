"""A pipe from the ranks to their launcher for what ended a capture: it needs no room on any disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

from traceops.capture.guard import contained, say
from traceops.core.capture_failure import CaptureFailure, advice_text, cause_text, read_failure


def _pipe(folder: Path) -> Path:
    return folder / "last_words.fifo"


def tell(folder: Path, failure: CaptureFailure) -> bool:
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
    told = progress is not None and contained(tell, Path(progress), failure) is True
    if aloud and (progress is None or not (told or saved)):
        say(f"rank {failure.rank}: the capture ended early: {cause_text(failure)}; {advice_text(failure)}")


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
