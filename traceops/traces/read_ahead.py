"""Runs an iterator a few items ahead in a thread, so that reading and unzipping overlap with what is made of them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")

_AHEAD = 8  # of 256 kB each
_AT_ONCE = 4  # places are given back so many at a time, or the threads would wake each other for each item
_PATIENCE_S = 1.0  # with a read that nobody wants any more


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order; an exception comes where it would have come.

    The thread ends with the items, or when the iteration is given up; only a read that does not return outlasts it.
    """
    waiting: queue.SimpleQueue[tuple[Item] | BaseException | None] = queue.SimpleQueue()
    places: queue.SimpleQueue[None] = queue.SimpleQueue()
    given_up = threading.Event()

    def give_back(count: int) -> None:
        for _ in range(count):
            places.put(None)

    def read() -> None:
        end: BaseException | None = None
        try:
            for item in items:
                waiting.put((item,))
                places.get()
                if given_up.is_set():
                    return
        except BaseException as error:  # it is raised again where it is waited for
            end = error
        waiting.put(end)

    give_back(_AHEAD)
    thread = threading.Thread(target=read, name="traceops read ahead", daemon=True)
    thread.start()
    taken = 0
    try:
        while (got := waiting.get()) is not None:
            if isinstance(got, BaseException):
                raise got
            yield got[0]
            taken += 1
            if taken == _AT_ONCE:
                give_back(taken)
                taken = 0
    finally:
        given_up.set()
        give_back(1)  # it may wait for a place
        thread.join(_PATIENCE_S)
