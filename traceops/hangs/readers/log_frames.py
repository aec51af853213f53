"""Stacks that a log has behind an event, a frame a line: of the failed collective, and of a fatal error of Python."""

from __future__ import annotations

import re

from traceops.hangs.evidence import Frame
from traceops.hangs.readers.log_events import OpenEvent
from traceops.hangs.readers.log_tracebacks import fatal_frame

_FRAME = re.compile(r"^#(\d{1,4}) (\S{1,500}) from (.{1,4096}):(\d{1,9})\s{0,4}$")
_CURRENT = re.compile(r"^Current thread 0x[0-9a-f]{1,16}(?: \[.{0,200}\])? \(most recent call first\):")
_MOST_FRAMES = 200


class LineFrames:
    """Adds the frames that come to the event that they belong to."""

    def __init__(self) -> None:
        self._failed: tuple[int | None, OpenEvent] | None = None
        self._fatal: tuple[int | None, OpenEvent, bool] | None = None  # inside: of the thread that failed

    @property
    def is_open(self) -> bool:
        return self._failed is not None or self._fatal is not None

    def of_failed(self, speaker: int | None, event: OpenEvent | None) -> None:
        """The stack of this rank's failed collective comes; of None nobody knows which that is."""
        self._failed = None if event is None else (speaker, event)

    def of_fatal(self, speaker: int | None, event: OpenEvent) -> None:
        """The stacks of all threads come."""
        self._fatal = (speaker, event, False)

    def take(self, rank: int | None, body: str) -> bool:
        """Whether the line is a part of one."""
        if self._failed is not None and self._take_failed(*self._failed, rank, body):
            return True
        return self._fatal is not None and self._take_fatal(*self._fatal, rank, body)

    def _take_failed(self, speaker: int | None, event: OpenEvent, rank: int | None, body: str) -> bool:
        """Other lines may come in between."""
        match = _FRAME.match(body)
        if match is None:
            if not body.strip() or (rank == speaker and not body.startswith("#")):
                self._failed = None
            return False
        if rank in (None, speaker) and int(match[1]) == len(event.event.frames):
            _add(event, Frame(match[2], match[3], int(match[4])))
        return True

    def _take_fatal(self, speaker: int | None, event: OpenEvent, inside: bool, rank: int | None, body: str) -> bool:
        if rank != speaker:
            return False
        if _CURRENT.match(body):
            self._fatal = (speaker, event, True)
            return True
        if (frame := fatal_frame(body)) is not None:
            if inside:
                _add(event, frame)
            return True
        over = inside and bool(event.event.frames)
        if over or "Traceback" in body or body.startswith("Extension modules"):
            self._fatal = None
        return False


def _add(event: OpenEvent, frame: Frame) -> None:
    if len(event.event.frames) < _MOST_FRAMES:
        event.amend(frames=(*event.event.frames, frame))
