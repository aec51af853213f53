"""Frames of other threads, looked for while Python collects no garbage.

Python 3.11 makes frames when they are asked for, and that may begin a collection. In it the program's own code runs and
may let other threads go on. A thread that is looked at then leaves a function of which the frame is just being made:
what is made is written over what that thread has there by now. And until 3.11.12 `sys._current_frames` has the list of
threads locked: who starts a thread meanwhile waits for that lock, and its owner for them (python/cpython#106883). A
process that is forked has it locked for ever (python/cpython#112275). Before 3.11 frames are there, from 3.12 on
collections wait.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from itertools import accumulate, chain, compress, repeat, takewhile, tee
from operator import is_not
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

if sys.version_info[:2] == (3, 11):
    from operator import call

    def _uncollected(work: Callable[[], T]) -> T:
        """What `work` returns, which is C as all of this is: no other thread runs until the collector is as it was."""
        was_on, is_to_be_on = tee(map(call, (gc.isenabled,)))
        parts: Any = compress((gc.disable, work, gc.enable), chain(was_on, (True,), is_to_be_on))
        try:
            found: list[Any] = list(map(call, parts))
        except BaseException:  # out of a hook of the program's (`sys.addaudithook`)
            if next(is_to_be_on, False):
                gc.enable()
            raise
        result: T = next(one for one in found if one is not None)
        return result

else:

    def _uncollected(work: Callable[[], T]) -> T:
        return work()


def all_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by its number."""
    return _uncollected(sys._current_frames)


def with_callers(frame: FrameType, most: int) -> list[FrameType]:
    """This frame and those that called it, innermost first."""
    names: Any = chain((frame,), repeat("f_back", most - 1))
    outwards = takewhile(partial(is_not, None), accumulate(names, getattr))
    return _uncollected(partial(list, outwards))
