"""Signals that end a run are noted, so that the ranks are ended in order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_ASKS = signal.SIGUSR2
_MAY_BE_IGNORED = (signal.SIGHUP, signal.SIGQUIT)  # nohup ignores them on purpose, and shells for jobs behind a &


@contextmanager
def held_signals() -> Iterator[list[int]]:
    """Collect Ctrl-C, SIGTERM, SIGHUP (a dropped ssh) and SIGQUIT in a list instead of dying of them."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    ours = [
        number for number in _ENDING if number not in _MAY_BE_IGNORED or signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, note) for number in ours}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def asking_signal(ask: Callable[[], None]) -> Iterator[None]:
    """Have SIGUSR2 call `ask` inside the block: `kill -USR2` on the launcher asks for a window."""

    def note(number: int, frame: FrameType | None) -> None:
        ask()

    before = signal.signal(_ASKS, note)
    try:
        yield
    finally:
        signal.signal(_ASKS, before)
