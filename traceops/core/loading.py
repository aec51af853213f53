"""Loading much code without Python's garbage collector, which would go through all of it again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """For the imports of a process of our own: torch loads in three quarters of the CPU time.

    What is there when it ends stays, and the collector passes it over from then on.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
