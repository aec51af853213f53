"""The one boundary between the user's program and the capture: no error of the capture's own gets past it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

from traceops.core.capture_failure import CaptureOperation
from traceops.words.catalogue import fill

T = TypeVar("T")


class Guard:
    """Runs the capture's part wherever the program, torch, a signal or Python's import enters it.

    An error of the capture's own is given to `failed`, which ends the capture. Ctrl-C, SystemExit and what a signal
    handler of the program raises while we run are the program's: `failed` hears of them too, then they go on.

    doing: what the capture does just now, for the record.
    """

    def __init__(self, failed: Callable[[CaptureOperation, BaseException], None]) -> None:
        self._failed = failed
        self._pid = os.getpid()
        self.doing = CaptureOperation.PREPARE

    def run(
        self,
        operation: CaptureOperation,
        work: Callable[..., T],
        *arguments: Any,
        passing: tuple[type[Exception], ...] = (),
    ) -> T | None:
        """What `work` returns; None where it failed, and in a process that was forked from this one. passing: errors
        meant for the program, which go through."""
        if os.getpid() != self._pid:
            return None
        return self.run_here(operation, work, *arguments, passing=passing)

    def run_here(
        self,
        operation: CaptureOperation,
        work: Callable[..., T],
        *arguments: Any,
        passing: tuple[type[Exception], ...] = (),
    ) -> T | None:
        """The same where the caller knows that this is the process: asking takes a call to the system."""
        try:
            self.doing = operation
            return work(*arguments)
        except passing:
            raise
        except Exception as error:
            try:
                theirs = raised_by_a_handler(error)
                self._failed(self.doing, error)
            except Exception:  # even that: there is nothing left to do about it
                theirs = False
            if theirs:
                raise
        except BaseException as error:
            contained(self._failed, self.doing, error)
            raise
        return None


def contained(work: Callable[..., T], *arguments: Any) -> T | None:
    """What `work` returns, None where it failed: for threads and handlers that have nobody to tell."""
    try:
        return work(*arguments)
    except Exception:
        return None


def text(key: str, /, **facts: object) -> str:
    """A text of words/capture.ini with its facts, read when it is needed; its key where the file cannot be read."""
    try:
        return fill("capture", key, **facts)
    except Exception:
        return f"{key} {facts}" if facts else key


def say(text: str) -> None:
    """A line on stderr, if there is one that takes it."""
    try:
        print(f"traceops: {text}", file=sys.stderr)
    except Exception:  # closed, or full
        return


def raised_by_a_handler(error: BaseException) -> bool:
    """Whether it comes out of a signal handler of the program, which Python ran between two lines of ours."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code in handlers:
            return True
        frame = frame.tb_next
    return False


def describe(error: BaseException) -> str:
    """The last line of the error's traceback, which names it."""
    try:
        text = str(error).strip()
    except Exception:  # of the program's own class
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _code(handler: Any) -> CodeType | None:
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):
        function = vars(type(handler)).get("__call__")
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


# How a rank's error reads when the process at the other end of a connection has ended.
_PEER_GONE = re.compile(
    r"(Connection|Socket) (was |is )?(closed|reset)|Broken pipe|remote process (has )?exited|connectFullMesh failed",
    re.IGNORECASE,
)


def is_peer_failure(error: str) -> bool:
    """Whether the error is the echo of another rank's end."""
    return _PEER_GONE.search(error) is not None
