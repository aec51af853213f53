"""The step ledger of both sides, and how its explanations write times, counts and names."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from traceops.compare.model import Change, MetricChange
from traceops.core.cause_words import BUCKETS
from traceops.core.text import short_name
from traceops.core.units import count_text, ms_change_text

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


_MOST_NAME = 60


def bucket_text(bucket: str, ledger: LedgerChange) -> str:
    """What a bucket's change means, with both values."""
    ms = ledger.change[bucket]
    words = BUCKETS[bucket]
    return (
        f"{(words.longer if ms > 0 else words.shorter).format(device=ledger.device)}: {ms_change_text(ms)} a step "
        f"({ledger.base[bucket]:.2f} → {ledger.head[bucket]:.2f} ms)"
    )


def count_change_text(what: str, old: float, new: float) -> str:
    """815 kernels a step became 1,020."""
    return f"{count_text(old)} {what}{'' if round(old) == 1 else 's'} a step became {count_text(new)}"


def kernel_text(change: Change) -> str:
    """One kernel's change: new, gone, renamed, more often, or longer."""
    name = short_name(change.name, _MOST_NAME)
    if change.status == "new":
        return f"new {name}, {count_text(change.head_count or 0)} a step, {ms_change_text(change.more_ms)}"
    if change.status == "vanished":
        return f"{name} is gone, {ms_change_text(change.more_ms)}"
    if change.status == "renamed":
        return f"{name} became {short_name(change.head_name, _MOST_NAME)}, {ms_change_text(change.more_ms)}"
    if abs((change.head_count or 0) - (change.base_count or 0)) >= 0.5:
        counts = f"{count_text(change.base_count or 0)} → {count_text(change.head_count or 0)} times a step"
        return f"{name} {counts}, {ms_change_text(change.more_ms)}"
    return f"{name} takes {change.base_ms or 0:.2f} → {change.head_ms or 0:.2f} ms"


def calls_more_text(change: Change) -> str:
    """How often something is called: aten::norm 0 → 14 times a step."""
    name = short_name(change.head_name, _MOST_NAME)
    return f"{name} {count_text(change.base_count or 0)} → {count_text(change.head_count or 0)} times a step"


def operator_text(change: Change) -> str:
    """One operator's change in host time."""
    name = short_name(change.name, _MOST_NAME)
    return f"{name} {change.base_ms or 0:.2f} → {change.head_ms or 0:.2f} ms of host time"


def calls_text(calls: Sequence[Change]) -> str:
    """Which calls wait for the device how often."""
    parts = [
        f"{short_name(c.name, _MOST_NAME)} makes the host wait for the GPU {_times(c.head_count or 0)} a step "
        f"({count_text(c.base_count or 0)} before)"
        for c in sorted(calls, key=lambda c: -abs((c.head_count or 0) - (c.base_count or 0)))
    ]
    return joined(parts[:3])


def _times(count: float) -> str:
    return "once" if count_text(count) == "1" else f"{count_text(count)} times"


def joined(parts: Sequence[str]) -> str:
    """a; b and c."""
    return parts[0] if len(parts) == 1 else f"{'; '.join(parts[:-1])} and {parts[-1]}"
