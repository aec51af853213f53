"""How much a run gets done a second."""

from __future__ import annotations

from msgspec.structs import replace

from traceops.report.run import Run, Summary


def with_speed(summary: Summary, run: Run) -> Summary:
    """The summary with samples and tokens a second, where the run tells how many a step has."""
    step_ms = summary.own_step_ms
    if not step_ms:
        return summary
    return replace(
        summary,
        samples_per_s=_rate(run.samples_per_step, step_ms),
        tokens_per_s=_rate(run.tokens_per_step, step_ms),
    )


def _rate(a_step: float | None, step_ms: float) -> float | None:
    return None if a_step is None else round(1e3 * a_step / step_ms, 3)
