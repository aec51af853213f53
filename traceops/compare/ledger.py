"""The step ledger of both sides: each bucket's time and its change."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from traceops.compare.model import MetricChange

_WORTH_PCT = 1.0  # of the step: less explains nothing


class LedgerChange(Struct, frozen=True):
    """Change of each bucket in ms a step, what base and head had, and what a step of the base takes.

    in_noise: buckets whose change was tested and could be noise. device: what computes, GPU or CPU.
    """

    change: dict[str, float]
    base: dict[str, float]
    head: dict[str, float]
    step_ms: float
    in_noise: frozenset[str] = frozenset()
    device: str = "GPU"

    @property
    def worth_ms(self) -> float:
        """What is worth a sentence."""
        return _WORTH_PCT / 100.0 * self.step_ms


def ledger_of(metrics: Sequence[MetricChange], buckets: Sequence[str], device: str = "GPU") -> LedgerChange | None:
    """The ledger's change, None where a side has no profiled steps."""
    rows = {row.metric: row for row in metrics}
    known = [b for b in buckets if rows[b].base is not None and rows[b].head is not None]
    step = rows["profiled_step_time"].base
    if step is None or not known:
        return None
    return LedgerChange(
        {b: rows[b].change or 0.0 for b in known},
        {b: rows[b].base or 0.0 for b in known},
        {b: rows[b].head or 0.0 for b in known},
        step,
        frozenset(b for b in known if _holds_zero(rows[b])),
        device,
    )


def _holds_zero(row: MetricChange) -> bool:
    """Whether the interval, of this metric by itself, reaches 0: a bucket that moved need not prove it to others."""
    return row.low_pct is not None and row.high_pct is not None and row.low_pct <= 0.0 <= row.high_pct
