"""Events that a worker reports while it runs: a line of JSON each, in a file of its own."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Reporter:
    """Writes events; each is on its way before `say` returns, so that a rank that is killed has said it.

    Events: ``launched``; of a stage: ``begin``, ``end``, ``at`` (what), ``wrong`` (text), ``note`` (text),
    ``skipped`` (text), ``measured`` (row), ``pair`` (ranks, state); and at last ``left``, or ``error`` (text, cause).
    A cause is a FailureCause, or null.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, event: str, **facts: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, "time_s": time.monotonic(), **facts}) + "\n").encode())


class Reports:
    """Reads the events of one worker as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.events: list[Event] = []

    def refresh(self) -> None:
        """Take in what is new: whole lines only."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return  # the worker has not come that far
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            with suppress(json.JSONDecodeError):  # cut off where the disk was full
                self.events.append(json.loads(line))

    def of(self, stage: str, event: str) -> list[Event]:
        return [found for found in self.events if found["event"] == event and found.get("stage") == stage]
