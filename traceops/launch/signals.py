"""Signals to the launcher: those that end a run are noted, so that it ends in order; others are the ranks'."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from traceops.capture.progress import Progress
from traceops.launch.process_activity import listens

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
ASKS = signal.SIGUSR2  # for a window, where no rank has a handler of its own
_MAY_BE_IGNORED = (signal.SIGHUP, signal.SIGQUIT)  # nohup ignores them on purpose, and shells for jobs behind a &
_REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else ()
# Slurm's --signal, a trainer's requeue, a resized terminal: without a launcher of ours the ranks may listen to them.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGWINCH, *_REAL_TIME)
_BY_HAND = (signal.SIGINT, signal.SIGQUIT)  # batch systems send the others more than once


class Received(list[int]):
    """The signals that end the run, in the order in which they came. others: those for the ranks, still to pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[int] = []

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """It came."""
        (self if number in ENDING else self.others).append(number)

    def for_ranks(self, ranks: Sequence[Progress]) -> int:
        """The first that came; SIGTERM, which saves what was captured, for one of which they would only die."""
        number = self[0]
        dies = number in _MAY_BE_IGNORED and not any(listens(one.pid, number) for one in ranks)
        return signal.SIGTERM if dies else number

    def again(self, heard: int) -> bool:
        """Whether somebody pressed Ctrl-C after the first `heard` signals."""
        return any(number in _BY_HAND for number in self[heard:])

    def pass_on(self, command: int | None, ranks: Sequence[Progress]) -> bool:
        """Send the others to the command, or to the ranks, that have a handler; whether a window is asked for instead.
        command: the process that a shell would have started."""
        asks = False
        while self.others:
            number = self.others.pop(0)
            listening = [pid for pid in (command,) if pid is not None and listens(pid, number)]
            for pid in listening or (listening := [one.pid for one in ranks if listens(one.pid, number)]):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            asks = asks or (number == ASKS and not listening)
        return asks


@contextmanager
def held_signals() -> Iterator[Received]:
    """Collect Ctrl-C, SIGTERM, SIGHUP (a dropped ssh) and SIGQUIT instead of dying of them, and those for the ranks."""
    received = Received()
    ours = [
        number
        for number in (*ENDING, *PASSED_ON)
        if number not in _MAY_BE_IGNORED or signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, received.note) for number in ours}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def from_terminal() -> bool:
    """Whether Ctrl-C at a terminal reaches this process: it is then sent to all of a command's processes at once."""
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False
