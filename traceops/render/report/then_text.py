"""How long a step would take with a cause gone, in words that say where it is only the least."""

from __future__ import annotations

from traceops.core.units import ms_text
from traceops.report.model import Report

LOADERS_UNKNOWN = "a step may take longer: the pace of data loaders' workers is not known"


def then_text(report: Report, then_ms: float, pct: float) -> str:
    """'21.9 ms (60 % less)'; 'or more' where data loaders may hold the step up that are hidden now."""
    if loaders_unknown(report):
        return f"{ms_text(then_ms)} ms or more (up to {pct:.0f} % less)"
    return f"{ms_text(then_ms)} ms ({pct:.0f} % less)"


def loaders_unknown(report: Report) -> bool:
    """Whether a data loader has workers of which nobody knows how fast they are."""
    replay = report.summary.replay
    return replay is not None and bool(replay.loaders_unknown)


def loaders_note(report: Report) -> str:
    """What to say beside the replay's predictions then; '' where all is known."""
    return LOADERS_UNKNOWN if loaders_unknown(report) else ""
