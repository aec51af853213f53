"""How the steps of a report were found, in a few words."""

from __future__ import annotations

from traceops.core.words import STEPS_FOUND
from traceops.report.model import Report


def how_found(report: Report) -> str:
    """'found by Optimizer.step'; '' where the profiler marked the steps, or nothing did."""
    by = report.summary.steps_found_by
    if by is None or by == "profiler" or by not in STEPS_FOUND:
        return ""
    return STEPS_FOUND[by].format(mark=report.summary.step_mark)


def steps_found_text(report: Report) -> str:
    """The same behind their number: '20 steps found by Optimizer.step'."""
    found, count = how_found(report), len(report.run.steps)
    return f"{count} step{'' if count == 1 else 's'} {found}" if found and count else ""
