"""What else is said of the whole run: steps that a gradient scaler left out, and a script that profiles itself."""

from __future__ import annotations

from traceops.core.rank_text import who
from traceops.core.units import ms_text
from traceops.report.whole_run import WholeRunRows


def skipped_sentence(rows: WholeRunRows) -> str:
    """That a gradient scaler left steps out, as gradients were inf or NaN: they train nothing."""
    every = rows.steps + rows.recorded_steps + 1  # the first is not timed
    said = f" In {rows.skipped_steps} of all {every} steps the gradient scaler left the optimizer out (inf or NaN)."
    return said * bool(rows.skipped_steps)


def own_profiler_sentence(rows: WholeRunRows) -> str:
    """'' where no profiler of the script's own was at work."""
    if (own := rows.own_profiler) is None:
        return ""
    steps = f"step {own.first}" if own.first == own.last else f"{own.steps} of the steps {own.first} to {own.last}"
    steps = f"steps {own.first} to {own.last}" if 1 < own.steps == own.last - own.first + 1 else steps
    where = "" if own.where is None else f" ({own.where.replace(chr(92), '/').rpartition('/')[2]})"
    cost = "" if own.step_ms is None else f": one takes {ms_text(own.step_ms)} ms there"
    return f" The script's own profiler{where} is at work in {steps}{cost}."


def ended_sentence(rows: WholeRunRows) -> str:
    """That ranks made different numbers of steps, as with uneven inputs."""
    row = rows.ended_after
    if row is None:
        return ""
    return f" Ranks made different numbers of steps: {who(row.first)} {row.least}, others up to {row.most}."
