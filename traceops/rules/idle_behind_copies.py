"""TO-I003 where the host waits for copies: the device is idle behind them, and their cure is another."""

from __future__ import annotations

from dataclasses import replace

from traceops.core.findings import Evidence, Finding
from traceops.core.units import stored
from traceops.rules.inputs import Inputs

CAUSE = "copies"
ADVICE = (
    "The host waits for copies between host and device: with non_blocking=True it goes on at once, from memory that is "
    "pinned (pin_memory=True, where it is not yet). Copies to the host: into a pinned tensor, read a "
    "step later, or every N steps."
)
_MOSTLY = 0.5  # of this idle time


def of_copies(found: Finding, inputs: Inputs) -> Finding:
    """The finding with what of its idle time begins while the host waits for a copy, and the advice for most of it."""
    told = next((e for e in found.evidence if e.metric == "idle_sync"), None)
    rank, idle = (None, 0.0) if told is None else (told.rank, float(told.value or 0.0))
    behind = max((one.sync_ms for one in inputs.run.copies if one.rank == rank), default=0.0)
    if rank is None or behind < _MOSTLY * idle or not behind:
        return found
    words, pct = inputs.run.step_words, min(100 * behind / idle, 100)
    return replace(
        found,
        message=f"{found.message} {pct:.0f} % of it comes behind copies for which the host waits.",
        evidence=(*found.evidence, Evidence("behind copies", stored(behind), words.unit("ms"), rank=rank)),
        cause=CAUSE,
        advice=ADVICE,
    )
