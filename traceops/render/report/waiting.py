"""What ranks wait for each other, as the verdict says it: how long, and for whom most."""

from __future__ import annotations

from dataclasses import dataclass

from traceops.core.step_words import StepWords
from traceops.core.units import ms_text
from traceops.render.report.stragglers import mean_of_ranks, out_of_step
from traceops.report.model import Report

WAIT_INFO_PCT = 10.0  # of the step, median over ranks: the bounds a straggler is judged by [docs/metrics.md]
WAIT_WARNING_PCT = 20.0
_MOST = 2.0  # times what the next rank causes: from here on one rank is told alone


@dataclass(frozen=True)
class Waiting:
    """Waiting for late ranks, ms and percent of the typical step (median over ranks); who causes most of it.

    share: of all recorded steps; without a rank where some are unlike the others, as an evaluation would be blamed.
    beside: the next rank and its share, where it causes about as much.
    """

    ms: float
    pct: float
    rank: int | None
    share: float | None
    step_ms: float | None
    words: StepWords
    beside: tuple[int, float] | None = None
    out_of_step: bool = False  # nothing that compares these ranks is to be trusted

    def sentence(self) -> str:
        step = "" if self.step_ms is None else f" of {self.words.each_of(f'{ms_text(self.step_ms)} ms')}"
        waits = f"Ranks wait {ms_text(self.ms)} ms{step} ({self.pct:.0f} %) for others that are late"
        if self.out_of_step:
            return f"{waits}; the traces do not tell which one: the ends of collectives do not fit together (TO-V006)."
        if self.share is None:
            return f"{waits}; which one cannot be said."
        if self.rank is None:
            return f"{waits}."
        if self.beside is not None:
            other, share = self.beside
            both = f"rank {self.rank} for {100 * self.share:.0f} % and for rank {other} for {100 * share:.0f} % of that"
            return f"{waits}, by turns: for {both}."
        return f"{waits}; rank {self.rank} causes {100 * self.share:.0f} % of that."


def waiting_of(report: Report) -> Waiting | None:
    """Of the recorded steps; None where waiting is not told from transfer."""
    ms = report.summary.ledger_ms.comm_wait
    pct = report.summary.ledger_pct.comm_wait
    if ms is None or pct is None:
        return None
    blamed = [row for row in report.ranks if row.late_share is not None]
    words = report.summary.step_words
    worst = max(blamed, key=lambda row: row.late_share or 0.0, default=None)
    if out_of_step(report):
        return Waiting(ms, pct, None, None, mean_of_ranks(report), words, out_of_step=True)
    if report.summary.step_time_ms.unlike and worst is not None and worst.late_share:
        return Waiting(ms, pct, None, worst.late_share, mean_of_ranks(report), words)
    if worst is None or not worst.late_share:
        return Waiting(ms, pct, None, None, mean_of_ranks(report), words)
    others = [(row.rank, row.late_share or 0.0) for row in blamed if row is not worst]
    beside = max(others, key=lambda other: other[1], default=None)
    if beside is not None and _MOST * beside[1] < worst.late_share:
        beside = None
    return Waiting(ms, pct, worst.rank, worst.late_share, mean_of_ranks(report), words, beside)
