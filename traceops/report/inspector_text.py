"""What was read of NCCL Inspector, in words."""

from __future__ import annotations

from traceops.core.rank_text import ranks_text
from traceops.core.units import rate_text, size_range_text
from traceops.fabric.measured import Inspector


def inspector_text(inspector: Inspector) -> str:
    """'2 files of NCCL Inspector: 57 collectives of ranks 0–3, AllReduce of 268 MB at 341 GB/s (median)'."""
    files = f"{len(inspector.files)} file{'' if len(inspector.files) == 1 else 's'} of NCCL Inspector"
    count = inspector.collectives
    done = f"{count:,} collective{'' if count == 1 else 's'}" if count else "no collective"
    communicators = {row.communicator: row.ranks for row in inspector.completed}
    if len(communicators) == 1:
        ranks = sorted({row.rank for row in inspector.completed})
        of_all = next(iter(communicators.values()))
        whose = f"rank{'' if len(ranks) == 1 else 's'} {ranks_text(ranks)}"
        whose += f" (of {of_all})" if len(ranks) < of_all else ""
    else:
        whose = f"{len(communicators)} communicators"
    text = f"{files}: {done} of {whose}"
    if (main := inspector.main) is not None:
        text += f", {main.op} of {size_range_text(main.least, main.most)} at {rate_text(main.busbw_gbs)} GB/s (median)"
    if inspector.dropped:
        text += f"; it lost {inspector.dropped:,} more operations"
    return text
