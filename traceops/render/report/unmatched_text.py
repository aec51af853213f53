"""Why communication was not matched across ranks, and what would let it be."""

from __future__ import annotations

from traceops.across.match import NO_METADATA
from traceops.across.send_receive import NO_END
from traceops.report.model import Report

_NO_GROUP = "its process group is not known"
_WITH_METADATA = "Record CPU activity too: then the trace says what each communication kernel belongs to"
_TO_MATCH = {
    "ranks of its group have no trace": "Add the traces of the missing ranks",
    "outside the window of other ranks": "Start and stop the profiler at the same steps on all ranks",
    NO_END: _WITH_METADATA,
    _NO_GROUP: _WITH_METADATA,
    NO_METADATA: _WITH_METADATA,
}
_TO_MATCH_GLOO = {
    NO_END: "gloo's events never say it",
    _NO_GROUP: "Record with traceops run: it notes the groups, which gloo's events do not name",
}


def unmatched_reason(report: Report) -> str:
    """Why most of the unmatched communication was left out; '' where nothing says so."""
    left_out = report.summary.matching.unmatched if report.summary.matching is not None else {}
    return max(left_out, key=lambda name: left_out[name], default="")


def to_match(report: Report, reason: str) -> str | None:
    """What would let communication be matched that was left out for this reason."""
    if report.run.backend == "gloo" and reason in _TO_MATCH_GLOO:
        return _TO_MATCH_GLOO[reason]
    return _TO_MATCH.get(reason)
