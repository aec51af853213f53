"""TO-O001, and what each group's collectives achieved."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from traceops.across.cross_rank import CrossRank, mean_ms
from traceops.across.links import bus_factor, collective_bytes
from traceops.across.match import Collective
from traceops.across.replay.what_if import NO_COMMUNICATION
from traceops.core.findings import Evidence
from traceops.measure.ledger import COMM_BUCKETS
from traceops.rules.findings import Verdict, finding, severity_of

_BOUNDS = (10.0, 20.0, 40.0)  # percent of the step: info, warning, error

_UNMATCHED_BOUND = 0.2  # share of exposed communication beyond which nothing is claimed


def judge_exposed(run: CrossRank) -> Verdict:
    """TO-O001 over the median rank: transfer is the group's, so a single rank's share proves little."""
    if not any(len(times.summary.comm.start) for times in run.ranks):
        return Verdict("TO-O001", not_evaluated="the traces hold no communication")
    if not run.split:
        reasons = "; ".join(run.matching.unmatched) or "no collective could be matched"
        return Verdict("TO-O001", not_evaluated=f"waiting and transfer cannot be told apart: {reasons}")
    exposed = sum(int(times.buckets[bucket].sum()) for times in run.ranks for bucket in COMM_BUCKETS)
    unmatched = sum(int(times.buckets["comm_unmatched"].sum()) for times in run.ranks)
    if unmatched > _UNMATCHED_BOUND * exposed:
        return Verdict(
            "TO-O001",
            not_evaluated=f"{100 * unmatched / exposed:.0f} % of the exposed communication could not be matched "
            "across ranks, so waiting and transfer cannot be told apart",
        )
    shares = _exposed_shares(run)
    if not shares:
        return Verdict("TO-O001", not_evaluated="the traces hold no complete step")
    median = float(np.median(list(shares.values())))
    severity = severity_of(median, *_BOUNDS)
    if severity is None:
        return Verdict(
            "TO-O001", clear=f"{median:.1f} % of the step is exposed transfer (bound {_BOUNDS[0]:g} %)"
        )
    impact = float(np.median([mean_ms(times.buckets["comm_transfer"]) for times in run.ranks]))
    saved = run.what_if.saved_ns(NO_COMMUNICATION) if run.what_if is not None else None
    gain = impact if saved is None else min(impact, max(saved, 0.0) / 1e6)
    worst = max(shares, key=lambda rank: shares[rank])
    overlap = [
        t.summary.breakdown.overlap_pct for t in run.ranks if t.summary.breakdown.overlap_pct is not None
    ]
    evidence = [
        Evidence("comm_transfer", round(impact, 3), "ms/step"),
        Evidence("comm_transfer_pct", round(median, 1), "%", _BOUNDS[0]),
        Evidence("comm_transfer_pct (most)", round(shares[worst], 1), "%", rank=worst),
    ]
    if overlap:
        evidence.append(Evidence("overlap_pct", round(float(np.median(overlap)), 1), "%"))
    message = (
        f"{impact:.2f} ms of each step ({median:.0f} %) is transfer between ranks that no computation hides; "
        "waiting for late ranks is not counted."
    )
    ranks = sorted(shares)
    return Verdict(
        "TO-O001",
        (finding("TO-O001", severity, "high", message, evidence, ranks=ranks, impact_ms=round(gain, 3)),),
    )


def exposed_pct(run: CrossRank) -> float | None:
    """Percent of the step that is transfer which nothing hides, median over ranks; None where not known."""
    if not run.split:
        return None
    shares = _exposed_shares(run)
    return float(np.median(list(shares.values()))) if shares else None


def _exposed_shares(run: CrossRank) -> dict[int, float]:
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
