"""Which ranks to show where there are too many for one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from traceops.measure.ledger import IDLE_BUCKETS
from traceops.pipeline.report import Report

MOST_RANKS = 64  # a bar and a table row each
WORST_RANKS = 32  # beyond that, so many are shown and the rest is a distribution


def shown_ranks(report: Report) -> list[int]:
    """All ranks, or the `WORST_RANKS` worst in rank order.

    A quarter each for what the others wait for, idle time, exposed communication and the slowest steps;
    findings' ranks and then the worst idle fill the rest.
    """
    rows = report.ranks
    if len(rows) <= MOST_RANKS:
        return [int(row["rank"]) for row in rows]
    chosen: dict[int, None] = {}
    for key in (_by("caused_wait_ms"), idle_ms, _by("exposed_comm_ms"), _by("step_time_ms")):
        for row in sorted(rows, key=lambda row: -key(row))[: WORST_RANKS // 4]:
            chosen[int(row["rank"])] = None
    present = {int(row["rank"]) for row in rows}
    for finding in report.findings:
        if len(finding.ranks) <= WORST_RANKS // 4:
            chosen.update((rank, None) for rank in finding.ranks if rank in present)
    chosen.update((int(row["rank"]), None) for row in sorted(rows, key=lambda row: -idle_ms(row)))
    return sorted(list(chosen)[:WORST_RANKS])


def idle_ms(row: Mapping[str, Any]) -> float:
    """All idle buckets of a rank's row together, ms a step."""
    return sum(row.get(f"{bucket}_ms") or 0.0 for bucket in IDLE_BUCKETS)


def _by(key: str) -> Callable[[Mapping[str, Any]], float]:
    """A row's number as a sort key, unknown ones last."""

    def number(row: Mapping[str, Any]) -> float:
        value = row.get(key)
        return -1.0 if value is None else float(value)

    return number
