"""What was read of NCCL Inspector, in words."""

from __future__ import annotations

from typing import Any

from traceops.core.claims import first_phrase
from traceops.core.rank_text import ranks_text
from traceops.fabric.measured import Inspector


def inspector_text(inspector: Inspector) -> str:
    """'2 files of NCCL Inspector: 57 collectives of ranks 0–3, AllReduce of 268 MB at 341 GB/s (median)'."""
    communicators = {row.communicator: row.ranks for row in inspector.completed}
    whose = f"{len(communicators)} communicators"
    if len(communicators) == 1:
        ranks = sorted({row.rank for row in inspector.completed})
        of_all = next(iter(communicators.values()))
        whose = f"rank{'' if len(ranks) == 1 else 's'} {ranks_text(ranks)}"
        whose += f" (of {of_all})" if len(ranks) < of_all else ""
    facts: dict[str, Any] = {"collectives": inspector.collectives or None, "dropped": inspector.dropped or None}
    if (main := inspector.main) is not None:
        facts |= {"op": main.op, "sizes": (main.least, main.most), "busbw": main.busbw_gbs}
    return first_phrase("views", "report", "inspector", files=len(inspector.files), whose=whose, **facts)
