"""The frames of all threads, looked for while Python collects no garbage.

Python 3.11 makes some of these frames anew, with its list of threads locked. Until 3.11.12 that could begin a
collection, in which the program's own code runs and may let other threads go on. Who started a thread then waited for
that lock, and its owner for them (python/cpython#106883). A process that was forked then had it locked for ever
(python/cpython#112275).
"""

from __future__ import annotations

import gc
import sys
from itertools import chain, compress, tee
from types import FrameType

if sys.version_info[:2] == (3, 11):
    from operator import call

    def all_frames() -> dict[int, FrameType]:
        """As `sys._current_frames` has them, by the number of their thread."""
        # One call of C does it all: no other thread runs until the collector is again as it was.
        was_on, is_to_be_on = tee(map(call, (gc.isenabled,)))
        parts = compress((gc.disable, sys._current_frames, gc.enable), chain(was_on, (True,), is_to_be_on))
        try:
            found = list(map(call, parts))
        except BaseException:  # out of a hook of the program's (`sys.addaudithook`)
            if next(is_to_be_on, False):
                gc.enable()
            raise
        return next(frames for frames in found if frames is not None)

else:
    all_frames = sys._current_frames
