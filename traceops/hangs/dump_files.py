"""Reads flight-recorder dumps, in several processes where there are many: unpickling takes most of a diagnosis."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from traceops.core.errors import InputError, problem_of
from traceops.hangs.evidence import RankRecord
from traceops.hangs.readers.flight_recorder import read_dump

_POOL_WORTH_BYTES = 16 << 20  # below this, starting processes takes longer than the work
_AT_A_TIME = 8

Dump = tuple[Path, int]
Read = tuple[RankRecord | None, str]


def read_dumps(dumps: Sequence[Dump], jobs: int | None = None) -> list[Read]:
    """Of each (path, rank) the record and what is wrong with the file, '' if nothing; None if nothing could be read.

    jobs: processes, one a core if None; 1 reads here, which a process with threads has to.
    """
    jobs = min(jobs or os.cpu_count() or 1, len(dumps) // _AT_A_TIME)
    if jobs > 1 and sum(path.stat().st_size for path, _ in dumps) > _POOL_WORTH_BYTES:
        context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
        try:
            with ProcessPoolExecutor(jobs, mp_context=context, initializer=gc.freeze) as pool:
                return list(pool.map(_read, dumps, chunksize=_AT_A_TIME))
        except BrokenProcessPool:  # one was killed, for memory say: here they need it one after the other
            pass
    return [_read(dump) for dump in dumps]


def _read(dump: Dump) -> Read:
    try:
        return read_dump(*dump)
    except InputError as error:
        return None, problem_of(error)
