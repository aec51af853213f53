"""Which explanation is the reason for one metric that moved: none that goes the other way."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.compare.model import Explanation, MetricChange

_COUNTED_BY = {"collectives": "collectives", "collective_bytes": "collectives"}  # metric -> cause


def reason_for_more(row: MetricChange, explanations: Sequence[Explanation]) -> Explanation | None:
    """Why a metric got worse: of a count what counts it, even if that saves time; else the first if it takes longer."""
    of_step = [one for one in explanations if one.cause != "peak_memory"]
    if row.metric == "kernels":  # what is launched more often accounts for no bucket
        own = next((one for one in of_step if one.cause == "compute" and not one.buckets), None)
    else:
        own = next((one for one in of_step if one.cause == _COUNTED_BY.get(row.metric)), None)
    first = own or next(iter(of_step), None)
    return None if first is None or (own is None and first.ms < 0) else first
