"""Runs an iterator a few items ahead in a thread, so that reading and unzipping overlap with what is made of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")

_AHEAD = 8  # of 256 kB each
_PATIENCE_S = 1.0  # with a read that nobody wants any more


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order; an exception comes where it would have come.

    The thread ends with the items, or when the iteration is given up; only a read that does not return outlasts it.
    """
    waiting: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(_AHEAD)
    given_up = threading.Event()

    def read() -> None:
        end: BaseException | None = None
        try:
            for item in items:
                waiting.put((item,))
                if given_up.is_set():
                    return
        except BaseException as error:  # it is raised again where it is waited for
            end = error
        waiting.put(end)

    thread = threading.Thread(target=read, name="traceops read ahead", daemon=True)
    thread.start()
    try:
        while (got := waiting.get()) is not None:
            if isinstance(got, BaseException):
                raise got
            yield got[0]
    finally:
        given_up.set()
        impatient = time.monotonic() + _PATIENCE_S
        while thread.is_alive() and time.monotonic() < impatient:
            while not waiting.empty():  # it may wait for a place
                waiting.get()
            thread.join(0.005)
