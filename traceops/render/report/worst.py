"""Which ranks to show where there are too many for one page."""

from __future__ import annotations

from traceops.measure.ledger import IDLE_BUCKETS
from traceops.report.model import Report
from traceops.report.rows import RankRow

MOST_RANKS = 64  # a bar and a table row each
WORST_RANKS = 32  # beyond that, so many are shown and the rest is a distribution


def shown_ranks(report: Report) -> list[int]:
    """All ranks, or the `WORST_RANKS` worst in rank order.

    A quarter each for what the others wait for, idle time, exposed communication and the slowest steps;
    findings' ranks and then the worst idle fill the rest.
    """
    rows = report.ranks
    if len(rows) <= MOST_RANKS:
        return [row.rank for row in rows]
    chosen: dict[int, None] = {}
    for key in (
        lambda row: _least(row.caused_wait_ms),
        idle_ms,
        lambda row: _least(row.exposed_comm_ms),
        lambda row: _least(row.step_time_ms),
    ):
        for row in sorted(rows, key=lambda row: -key(row))[: WORST_RANKS // 4]:
            chosen[row.rank] = None
    present = {row.rank for row in rows}
    for finding in report.findings:
        if len(finding.ranks) <= WORST_RANKS // 4:
            chosen.update((rank, None) for rank in finding.ranks if rank in present)
    chosen.update((row.rank, None) for row in sorted(rows, key=lambda row: -idle_ms(row)))
    return sorted(list(chosen)[:WORST_RANKS])


def idle_ms(row: RankRow) -> float:
    """All idle buckets of a rank's row together, ms a step."""
    return sum(row.bucket_ms(bucket) or 0.0 for bucket in IDLE_BUCKETS)


def _least(value: float | None) -> float:
    """A sort key that has unknown numbers last."""
    return -1.0 if value is None else value
