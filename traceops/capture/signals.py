"""SIGTERM ends a rank without unwinding it; this saves what was captured first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Saver:
    """Runs `save` once on SIGTERM, then lets the signal do what it would have done."""

    def __init__(self, save: Callable[[], None], previous: Any) -> None:
        self._save = save
        self._previous = previous
        self._pid = os.getpid()
        self._holds = 0
        self._waiting = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put a SIGTERM off until the end of the block."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._waiting and self._holds == 0:
            self(signal.SIGTERM, None)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._holds and os.getpid() == self._pid:
            self._waiting = True
            return
        if os.getpid() == self._pid:  # forked data-loader workers inherit the handler, not the duty
            self._holds += 1
            try:
                self._save()
            finally:
                self._holds -= 1
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def saving_on_sigterm(save: Callable[[], None]) -> Iterator[Saver]:
    """Call `save` when SIGTERM comes while inside the block (from the main thread only, as Python has it)."""
    previous = signal.getsignal(signal.SIGTERM)
    saver = Saver(save, previous)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield saver
        return
    signal.signal(signal.SIGTERM, saver)
    try:
        yield saver
    finally:
        if signal.getsignal(signal.SIGTERM) is saver:  # the script may have installed its own since
            signal.signal(signal.SIGTERM, previous)
