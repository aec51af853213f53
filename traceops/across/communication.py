"""What transfer costs a step, and what each group's collectives achieved."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.across.links import bus_factor, collective_bytes
from traceops.across.match import Collective


def exposed_pct(run: CrossRank) -> float | None:
    """Percent of the step that is transfer which nothing hides, median over ranks; None where not known."""
    if not run.split:
        return None
    shares = exposed_shares(run)
    return float(np.median(list(shares.values()))) if shares else None


def exposed_shares(run: CrossRank) -> dict[int, float]:
    """Percent of its steps that each rank spends in transfer which nothing hides; ranks without a step are left out."""
    return {
        times.summary.rank: 100.0 * int(times.buckets["comm_transfer"].sum()) / int(times.duration.sum())
        for times in run.ranks
        if int(times.duration.sum()) > 0
    }


def collective_rows(run: CrossRank) -> list[dict[str, Any]]:
    """A row per group, operation and size: count, median transfer and waiting, bus bandwidth.

    Bandwidths in GB/s (1e9 bytes) by nccl-tests' rules; null where the size is not known.
    """
    by_kind: dict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    for collective in run.matching.collectives:
        by_kind[
            collective.group, collective.description, collective.op, collective.elements, collective.dtype
        ].append(collective)
    rows = []
    for (group, description, op, _, _), same in by_kind.items():
        nbytes = collective_bytes(same[0])
        transfer = float(np.median([c.transfer_ns for c in same]))
        waits = [max(c.wait_ns) for c in same]
        busbw = None
        if nbytes and transfer > 0:
            busbw = round(nbytes / transfer * bus_factor(op, len(group)), 3)  # bytes per ns are GB/s
        rows.append(
            {
                "group": description or f"{len(group)} ranks",
                "ranks": list(group),
                "op": op,
                "bytes": nbytes,
                "count": len(same),
                "median_ms": round(transfer / 1e6, 6),
                "total_ms": round(sum(c.transfer_ns for c in same) / 1e6, 6),
                "median_wait_ms": round(float(np.median(waits)) / 1e6, 6),
                "busbw_gbs": busbw,
            }
        )
    return sorted(rows, key=lambda row: -row["total_ms"])
