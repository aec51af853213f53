"""Which thread's steps are a training's, where several threads train."""

from __future__ import annotations

import threading
from collections.abc import Callable

from traceops.capture.after_backward import in_backward

_SILENT = 100  # steps of other threads without one of the captured training: that has ended


class ThreadState(threading.local):
    """What a thread is in: optimizers and modules, methods of engines, a step that ends where the outermost returns."""

    depth = 0
    engines = 0
    due = False


class Trainer:
    """The thread whose training is captured where several train at once, each with optimizers of its own (Hogwild).

    It is the first one. Another takes over once that has ended, or no longer steps. An optimizer that has stepped in it
    counts wherever it steps: the threads of a parameter server take turns.

    taken: called where another takes over, whose optimizers make steps by themselves.
    """

    def __init__(self, taken: Callable[[], None]) -> None:
        self._taken = taken
        self._thread: int | None = None
        self._steps = 0  # of it, when another last stepped
        self._others = 0  # steps of others since then

    def is_other(self, known: bool, steps: int) -> bool:
        """Whether the optimizer that steps now is another training's. steps: that were counted so far."""
        thread = threading.get_ident()
        if known or thread == self._thread:
            return False
        if in_backward():  # on a GPU in a thread of autograd's, which is nobody's
            if self._thread is None:
                self._thread = thread if _is_there(thread) else threading.main_thread().ident
            return False
        self._others = self._others + 1 if steps == self._steps else 1
        self._steps = steps
        if self._thread is not None:  # which is what a thread that just starts has for its number
            if self._others <= _SILENT and _is_there(self._thread):
                return True
            self._taken()
        self._thread, self._others = thread, 0
        return False


def _is_there(thread: int) -> bool:
    return any(one.ident == thread for one in threading.enumerate())
