"""What a step is where steps are of two kinds."""

from __future__ import annotations

from traceops.core.step_kinds import round_steps
from traceops.core.units import ms_text
from traceops.report.model import Report


def kinds_sentence(report: Report) -> str:
    """That no step is a whole round of the training; '' where all steps are alike, as far as known."""
    kinds = report.summary.step_kinds
    if kinds is None:
        return ""
    another = f"another optimizer's {kinds.another}" if kinds.another in kinds.ends else kinds.another
    every = round_steps(kinds.steps, kinds.count)
    took = "" if kinds.round_ms is None else f", {ms_text(kinds.round_ms)} ms in the mean"
    return (
        f"Steps are of two kinds: one ends where {' or '.join(kinds.ends)} returns, and {another} runs in "
        f"{kinds.count} of {kinds.steps} only. A round of the training is {every:.3g} steps{took}: a typical step "
        "tells of the kind that comes most often"
    )
