"""How the steps of a report were found, in a few words."""

from __future__ import annotations

from traceops.core.words import STEPS_FOUND, steps_found_text
from traceops.report.model import Report


def how_found(report: Report) -> str:
    """'found by Optimizer.step'; '' where the profiler marked the steps, or nothing did."""
    by = report.summary.steps_found_by
    if by is None or by == "profiler" or by not in STEPS_FOUND:
        return ""
    return STEPS_FOUND[by].format(mark=report.summary.step_mark)


def steps_found(report: Report) -> str:
    """The same behind their number: '20 steps found by Optimizer.step'."""
    by, count = report.summary.steps_found_by, len(report.run.steps)
    if not how_found(report) or by is None or not count:
        return ""
    return steps_found_text(count, by, report.summary.step_mark)
