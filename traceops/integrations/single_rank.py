"""Under ``traceops run --fallback single``: a trainer accumulates for the ranks that are not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from traceops.core.rank_files import RANKS_ENV, effective_batches, ranks_replaced

MULTIPLY = f"multiply in the script by {RANKS_ENV}"
_DONE = "_traceops_fallback"  # on the trainer's object: it was decided once, and stays


def accumulate_more(
    holder: Any, option: str, *, asked: bool | None, batch: int | None = None, obstacle: str | None = None
) -> None:
    """Multiply the option of `holder` by the ranks that this one stands for, and say so; else do nothing.

    holder: what the trainer reads the option from, changed once only. asked: the callback's `accumulate`; with None
    a script whose own file names RANKS_ENV is left alone, because it multiplies itself. batch: samples of a
    micro-batch. obstacle: why it stays, which is said in place of the table.
    """
    ranks = ranks_replaced()
    if ranks is None or asked is False or getattr(holder, _DONE, False):
        return
    setattr(holder, _DONE, True)
    if asked is None and _script_reads_it():
        _say(f"fallback: {option} stays {getattr(holder, option)}, because {sys.argv[0]} reads {RANKS_ENV} itself")
        return
    before = int(getattr(holder, option))
    if obstacle is not None:
        _say(f"fallback: {option} stays {before}: {obstacle}")
        return
    setattr(holder, option, before * ranks)
    _say(f"fallback: one rank in the place of {ranks}: {option} is {before * ranks} instead of {before}")
    for line in effective_batches(ranks, before, batch):
        _say(line)


def _script_reads_it() -> bool:
    try:
        return RANKS_ENV in Path(sys.argv[0]).read_text(errors="replace")
    except (OSError, IndexError):
        return False


def _say(line: str) -> None:
    print(f"traceops: {line}", file=sys.stderr, flush=True)
