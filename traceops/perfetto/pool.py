"""Runs one function over many tasks, in processes where there are several."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_processes(
    function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int
) -> Iterator[Result]:
    """Results in the order of the tasks. What a process took with it when it was killed is done again here."""
    done = 0
    if min(jobs, len(tasks)) > 1:
        context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
        # Ctrl-C reaches all processes of a terminal: these die of it in silence, the first one tidies up.
        pool = ProcessPoolExecutor(
            min(jobs, len(tasks)),
            mp_context=context,
            initializer=signal.signal,
            initargs=(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            for result in pool.map(function, tasks):
                done += 1
                yield result
        except BrokenProcessPool:
            pass
        finally:
            pool.shutdown(cancel_futures=True)
    yield from map(function, tasks[done:])
