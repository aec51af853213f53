"""What ranks wait for each other: how long, and for whom most."""

from __future__ import annotations

from msgspec import Struct

from traceops.render.report.stragglers import out_of_step
from traceops.report.model import Report

WAIT_INFO_PCT = 10.0  # of the step, median over ranks: the bounds a straggler is judged by [docs/metrics.md]
WAIT_WARNING_PCT = 20.0
_MOST = 2.0  # times what the next rank causes: from here on one rank is named


class Waiting(Struct, frozen=True):
    """Waiting for late ranks, ms and percent of the typical step (median over ranks), and the rank that causes most.

    rank: None where nothing that compares ranks is to be trusted, where another rank causes about as much, and where
    some steps are unlike the others, as an evaluation would be blamed.
    """

    ms: float
    pct: float
    rank: int | None = None


def waiting_of(report: Report) -> Waiting | None:
    """Of the recorded steps; None where waiting is not told from transfer."""
    ms, pct = report.summary.ledger_ms.comm_wait, report.summary.ledger_pct.comm_wait
    if ms is None or pct is None:
        return None
    blamed = sorted(((row.late_share, row.rank) for row in report.ranks if row.late_share), reverse=True)
    if not blamed or out_of_step(report) or report.summary.step_time_ms.unlike:
        return Waiting(ms, pct)
    share, rank = blamed[0]
    by_turns = any(_MOST * other >= share for other, _ in blamed[1:])
    return Waiting(ms, pct, None if by_turns else rank)
