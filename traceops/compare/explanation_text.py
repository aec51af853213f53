"""Sentences of a comparison's explanations: numbers with units, names short enough to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from traceops.compare.metrics import LEDGER_LABELS
from traceops.compare.model import Change
from traceops.render.cells import short_name, size

if TYPE_CHECKING:
    from traceops.compare.explain import Ledger

_MOST_NAME = 60
_BUCKETS: Mapping[str, tuple[str, str]] = {
    "idle_input": ("the {device} waits longer for input", "the {device} waits less for input"),
    "idle_host": ("the host launches later, the {device} starves", "the host launches earlier"),
    "idle_sync": ("the host blocks on the {device} longer", "the host blocks on the {device} less"),
    "memory": ("copies take longer", "copies take less"),
    "comm_wait": ("ranks wait longer for each other", "ranks wait less for each other"),
    "comm_transfer": ("communication that nothing hides takes longer", "less communication is exposed"),
}


def ms_text(ms: float) -> str:
    """+4.1 ms; three digits."""
    digits = 0 if abs(ms) >= 100 else 1 if abs(ms) >= 10 else 2
    return f"{ms:+.{digits}f} ms"


def number(value: float) -> str:
    """A count: whole where it is, else one decimal."""
    return f"{value:,.0f}" if abs(value - round(value)) < 0.05 else f"{value:,.1f}"


def size_text(nbytes: float) -> str:
    """Bytes as tables show them: 33.6 MB."""
    return size(nbytes).text


def bucket_text(bucket: str, ledger: Ledger) -> str:
    """What a bucket's change means, with both values."""
    ms = ledger.change[bucket]
    longer, less = _BUCKETS.get(bucket, (f"{LEDGER_LABELS[bucket]} grew", f"{LEDGER_LABELS[bucket]} shrank"))
    return (
        f"{(longer if ms > 0 else less).format(device=ledger.device)}: {ms_text(ms)} a step "
        f"({ledger.base[bucket]:.2f} → {ledger.head[bucket]:.2f} ms)"
    )


def count_text(what: str, old: float, new: float) -> str:
    """815 kernels a step became 1,020."""
    return f"{number(old)} {what}{'' if round(old) == 1 else 's'} a step became {number(new)}"


def kernel_text(change: Change) -> str:
    """One kernel's change: new, gone, renamed, more often, or longer."""
    name = short_name(change.name, _MOST_NAME)
    if change.status == "new":
        return f"new {name}, {number(change.head_count or 0)} a step, {ms_text(change.delta_ms)}"
    if change.status == "vanished":
        return f"{name} is gone, {ms_text(change.delta_ms)}"
    if change.status == "renamed":
        return f"{name} became {short_name(change.head_name, _MOST_NAME)}, {ms_text(change.delta_ms)}"
    if abs((change.head_count or 0) - (change.base_count or 0)) >= 0.5:
        counts = f"{number(change.base_count or 0)} → {number(change.head_count or 0)} times a step"
        return f"{name} {counts}, {ms_text(change.delta_ms)}"
    return f"{name} takes {change.base_ms or 0:.2f} → {change.head_ms or 0:.2f} ms"


def calls_more_text(change: Change) -> str:
    """How often something is called: aten::norm 0 → 14 times a step."""
    name = short_name(change.head_name, _MOST_NAME)
    return f"{name} {number(change.base_count or 0)} → {number(change.head_count or 0)} times a step"


def operator_text(change: Change) -> str:
    """One operator's change in host time."""
    name = short_name(change.name, _MOST_NAME)
    return f"{name} {change.base_ms or 0:.2f} → {change.head_ms or 0:.2f} ms of host time"


def calls_text(calls: Sequence[Change]) -> str:
    """Which calls wait for the device how often."""
    parts = [
        f"{short_name(c.name, _MOST_NAME)} makes the host wait for the GPU {_times(c.head_count or 0)} a step "
        f"({number(c.base_count or 0)} before)"
        for c in sorted(calls, key=lambda c: -abs((c.head_count or 0) - (c.base_count or 0)))
    ]
    return joined(parts[:3])


def _times(count: float) -> str:
    return "once" if number(count) == "1" else f"{number(count)} times"


def joined(parts: Sequence[str]) -> str:
    """a; b and c."""
    return parts[0] if len(parts) == 1 else f"{'; '.join(parts[:-1])} and {parts[-1]}"
