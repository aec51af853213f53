"""What collectives achieved against what their links should give, and what that costs a step."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.across.links import (
    LARGE_BYTES,
    LinkReference,
    busbw_gbs,
    collective_bytes,
    reference_transfer_ns,
)
from traceops.across.match import Collective


def reference_rows(run: CrossRank) -> list[dict[str, Any]]:
    """A row a group, operation and class of size (8 MB and more, less), those that lose most time first.

    busbw_gbs: median. reference_source: ``doctor``, ``graph``, ``table``, ``siblings`` (the best group of the same
    kind), null with the other reference columns where nothing is known; below 8 MB latency counts too, and there is
    no percentage. lost_ms: a step, beyond the time at the reference, hidden or not.
    """
    steps = max((len(times.duration) for times in run.ranks), default=1) or 1
    kinds: dict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    for collective in run.matching.collectives:
        if busbw_gbs(collective) is not None and collective.last_rank is not None:
            large = (collective_bytes(collective) or 0) >= LARGE_BYTES
            kinds[collective.description, collective.op, large, collective.group].append(collective)
    medians = {kind: float(np.median([busbw_gbs(c) or 0.0 for c in same])) for kind, same in kinds.items()}
    rows = []
    for kind, same in kinds.items():
        description, op, large, group = kind
        known = run.reference(group) or _best_sibling(kind, medians)
        sizes = [collective_bytes(c) or 0 for c in same]
        lost_ns = [max(c.transfer_ns - reference_transfer_ns(c, known), 0.0) for c in same]
        rows.append(
            {
                "group": description or f"{len(group)} ranks",
                "ranks": list(group),
                "op": op,
                "bytes_min": min(sizes),
                "bytes_p50": int(np.median(sizes)),
                "bytes_max": max(sizes),
                "count": len(same),
                "busbw_gbs": round(medians[kind], 4),
                "reference_gbs": None if known is None else round(known.busbw_gbs, 4),
                "reference_source": None if known is None else known.source,
                "reference_link": None if known is None else known.link,
                "reference_pct": None
                if known is None or not large
                else round(100.0 * medians[kind] / known.busbw_gbs, 2),
                "lost_ms": None if known is None else round(sum(lost_ns) / 1e6 / steps, 6),
            }
        )
    return sorted(rows, key=lambda row: (-(row["lost_ms"] or 0.0), row["group"], row["op"], row["ranks"]))


def _best_sibling(kind: tuple[Any, ...], medians: dict[tuple[Any, ...], float]) -> LinkReference | None:
    """The best of the groups of the same description and size, for large messages and where there are others."""
    description, op, large, group = kind
    others = [
        value
        for (d, o, big, g), value in medians.items()
        if (d, o, big) == (description, op, True) and len(g) == len(group)
    ]
    return (
        LinkReference("the best group like it", max(others), "siblings")
        if large and len(others) > 1
        else None
    )
