"""One rank in the place of many: how many it stands for, and the samples of a step with them and with it alone."""

from __future__ import annotations

import os
from collections.abc import Mapping

from traceops.core.errors import UsageError

# In the script's environment: by how much to multiply its gradient accumulation. Not set in a run of all ranks.
RANKS_ENV = "TRACEOPS_FALLBACK_RANKS"


def ranks_replaced(environ: Mapping[str, str] = os.environ) -> int | None:
    """Ranks that this one stands for; None where all are there. Raises UsageError for what is no count of ranks."""
    value = environ.get(RANKS_ENV, "").strip()
    if not value:
        return None
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise UsageError(f"{RANKS_ENV}={value}: give the number of ranks, 1 or more, or unset it where all ranks run")
    return int(value)


def effective_batches(ranks: int, accumulation: int, batch: int | None) -> list[str]:
    """The table of effective batch sizes, as lines: all ranks, and one that accumulates `ranks` times as much.

    accumulation: micro-batches a step of each rank before; batch: samples of a micro-batch, None where nobody knows
    it yet (the last column then counts micro-batches).
    """
    names = ["ranks", "accumulation", "batches a step"] if batch is None else [
        "ranks", "batch", "accumulation", "samples a step"]  # fmt: skip
    lines = [f"{'':9}  {'  '.join(names)}"]
    for name, count, steps in (("all ranks", ranks, accumulation), ("one rank", 1, accumulation * ranks)):
        numbers = [count, steps] if batch is None else [count, batch, steps]
        product = count * steps * (1 if batch is None else batch)
        cells = (f"{value:>{len(head)}}" for value, head in zip([*numbers, product], names, strict=True))
        lines.append(f"{name:9}  {'  '.join(cells)}")
    return lines
