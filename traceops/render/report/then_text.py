"""Why nothing is said of what a change would save, or only the least, and why communication was not matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceops.across.match import NO_METADATA
from traceops.across.send_receive import NO_END
from traceops.core.findings import Check
from traceops.core.words import NoReplay
from traceops.report.model import Report
from traceops.rules.clocks import UNALIGNED_CLOCKS

_LOADERS = "the pace of data loaders' workers is not known"
_HOSTS = "how fast hosts are without the profiler is not known"


def check_of(report: Report, rule: str) -> Check | None:
    """What a rule says about this run, None where nobody asked it."""
    return next((check for check in report.checks if check.rule == rule), None)


NO_REPLAY: Mapping[NoReplay, str] = {
    "one_rank": "steps are replayed on what ranks exchange, and this run has one rank",
    "other_ranks_missing": "it takes the traces of all ranks, and one is here",
    "no_collectives": "ranks exchange nothing here; record steps with an optimizer step, not under no_sync()",
    "nothing_matched": "no collective is in all its ranks' traces; record the same steps on all ranks (traceops run)",
    "no_common_step": "ranks share no step that can be matched; record the same steps on all ranks (traceops run)",
}


def why_no_what_if(report: Report, least_pct: float) -> str:
    """Why nothing is said of what a change would save; '' where something is known that saves so much of the step."""
    if report.summary.no_replay == "nothing_matched" and report.run.backend == "gloo":
        reason = unmatched_reason(report)
        if reason and (cure := to_match(report, reason)):
            return f"No what-if: no communication is matched across ranks ({reason}). {cure}."
    if report.summary.no_replay is not None:
        return f"No what-if: {NO_REPLAY[report.summary.no_replay]}."
    if report.summary.replay is not None and not report.what_if:
        off = report.summary.replay.error_pct
        by = "" if off is None else f", by up to {off:.0f} %"
        return f"No what-if: replayed as recorded, steps are not as long as they were{by}."
    if report.summary.replay is None or any((row.saved_pct or 0.0) >= least_pct for row in report.what_if):
        return ""
    words = report.summary.step_words
    return f"What if: no change that was replayed saves {least_pct:g} % of {words.the}."


def least_only(report: Report) -> bool:
    """Whether a step with a cause gone may take longer than is predicted."""
    return bool(least_note(report))


def least_note(report: Report) -> str:
    """What to say beside the replay's predictions then; '' where all is known."""
    replay = report.summary.replay
    return "" if replay is None else why_least(replay.loaders_unknown, replay.hosts_unknown)


def unfit_note(report: Report) -> str:
    """That the ranks' clocks do not fit together, beside what compares ranks; '' where they do."""
    unfit = any(found.rule == UNALIGNED_CLOCKS.id for found in report.findings)
    return f"rank clocks do not line up ({UNALIGNED_CLOCKS.id}); cross-rank numbers are unreliable" if unfit else ""


def why_least(loaders: Sequence[int], hosts: Sequence[int]) -> str:
    """The same for these ranks whose loaders and hosts are not known."""
    why = [words for words, ranks in ((_LOADERS, loaders), (_HOSTS, hosts)) if ranks]
    return f"a step may take longer: {'; '.join(why)}" if why else ""


# Why communication was not matched across ranks, and what would let it be.


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
