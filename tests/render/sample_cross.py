"""The tables that compare ranks, for `sample_report`: rank 1 computes 20 ms longer and everybody waits for it."""

from __future__ import annotations

from typing import Any

from traceops.core.words import CAUSES

MEGABYTE = 1_000_000


def cross_tables(ranks: int, steps: int, late: int, hostile: str) -> dict[str, list[dict[str, Any]]]:
    """lateness, arrivals, bandwidth, critical_path and timeline as `analyze` makes them."""
    members = list(range(ranks))
    causes = dict.fromkeys((f"{cause}_ms" for cause in CAUSES), 0.0)
    split = {**causes, "gpu_compute_ms": 19.0, "unknown_ms": 1.0}
    return {
        "lateness": [
            {
                "rank": rank,
                "step": step,
                "caused_wait_ms": 20.0 + step if rank == late else 0.0,
                "waited_ms": 0.0 if rank == late else 20.0,
                **(split if rank == late else causes),
            }
            for rank in members
            for step in range(3, 3 + steps)
        ],
        "arrivals": [
            {
                "group": hostile,
                "ranks": members,
                "op": hostile,
                "bytes": nbytes,
                "count": 12,
                "spread_p50_ms": 20.0,
                "spread_p95_ms": 25.0,
                "spread_max_ms": 30.0,
                "last_rank": late,
                "last_rank_pct": 100.0,
            }
            for nbytes in (33 * MEGABYTE, None)
        ],
        "bandwidth": [
            {
                "group": hostile,
                "ranks": members,
                "op": op,
                "bytes": nbytes,
                "transfer_ms": 0.2,
                "busbw_gbs": nbytes / MEGABYTE,
            }
            for op in ("allreduce", hostile)
            for nbytes in (MEGABYTE, 33 * MEGABYTE)
        ],
        "critical_path": [
            _piece(late, "compute", "compute", 0.0, 40.0, compute_ms=38.0, idle_dependency_ms=2.0),
            _piece(late, "transfer", f"{hostile} of {hostile}", 40.0, 5.0),
            _piece(0, "idle_host", "idle_host", 45.0, 5.0, compute_ms=1.0, idle_host_ms=3.0),
        ],
        "timeline": [
            {"step": 3, "rank": rank, "kind": kind, "start_ms": rank / 1000 + start, "duration_ms": ms}
            for rank in members
            for kind, start, ms in _runs(rank == late)
        ],
    }


def _runs(late: bool) -> list[tuple[str, float, float]]:
    if late:
        return [("compute", 0.0, 45.0), ("comm_transfer", 45.0, 5.0)]
    return [("compute", 0.0, 25.0), ("comm_wait", 25.0, 20.0), ("comm_transfer", 45.0, 5.0)]


def _piece(rank: int, kind: str, what: str, start: float, ms: float, **buckets: float) -> dict[str, Any]:
    return {
        "step": 4, "rank": rank, "kind": kind, "what": what, "stream": 7, "start_ms": start, "duration_ms": ms,
        "spent_ms": {name.removesuffix("_ms"): ms for name, ms in buckets.items()},
    }  # fmt: skip
