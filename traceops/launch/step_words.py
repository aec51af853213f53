"""What the captures took for a step, in words."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.capture.manifest import RankManifest
from traceops.core.rank_text import who


def steps_told(ranks: Sequence[RankManifest]) -> list[str]:
    """A line for each way of ending a step that some rank had; none where nothing ended a step by itself."""
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for rank in ranks:
        if rank.step_ends:
            alike.setdefault((tuple(rank.step_ends), tuple(rank.steps_within)), []).append(rank.rank)
    lines = []
    for (ends, within), ranks_alike in alike.items():
        whose = "" if len(alike) == 1 else f" on {who(ranks_alike)}"
        parts = [name for name in within if name not in ends]
        line = f"a step ends{whose} where {' or '.join(ends)} returns"
        lines.append(f"{line}; {' and '.join(parts)} are within one" if parts else line)
    return lines
