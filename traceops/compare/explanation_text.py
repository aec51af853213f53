"""Sentences of a comparison's explanations: numbers with units, names short enough to read."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.compare.ledger import LedgerChange
from traceops.compare.model import Change
from traceops.core.cause_words import BUCKETS
from traceops.core.text import short_name
from traceops.core.units import count_text, ms_change_text

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
