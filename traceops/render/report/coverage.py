"""What a report could not judge, predict or match across ranks, why, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceops.across.match import NO_METADATA
from traceops.across.send_receive import NO_END
from traceops.core.cause_words import BUCKETS
from traceops.core.claims import Claim
from traceops.core.findings import Check
from traceops.core.words import WINDOW, NoReplay
from traceops.measure.ledger import COMM_BUCKETS
from traceops.report.model import Report
from traceops.report.step_times import UnjudgedTime
from traceops.rules.idle import CAPTURED, NO_DEVICE, THROUGH_HOST
from traceops.rules.idle_time import MAY_BE_RECORDING
from traceops.rules.validity_time import UNALIGNED_CLOCKS
from traceops.words.catalogue import texts

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


MOST_UNJUDGED_PCT = 10.0  # of a step: no clean bill while more of it is unjudged
_SEE = f", see {UNALIGNED_CLOCKS.id}"


class Unjudged(Claim, frozen=True, kw_only=True):
    """What was not judged of a step. what: its largest part; share: its percent, where there are others. do: a key."""

    family = "card"
    kind = "unjudged"
    whose: str
    total: float
    what: str
    share: float | None = None
    because: str
    do: str = ""
    match: str | None = None


def unjudged_sentence(report: Report) -> str:
    """One or two sentences on what was not judged; '' where a tenth of the step or less is not."""
    unjudged = report.summary.unjudged
    total = sum(one.pct for one in unjudged)
    if total <= MOST_UNJUDGED_PCT:
        return ""
    most, words = unjudged[0], report.summary.step_words
    check = check_of(report, most.rule) if most.rule else None
    said = "" if check is None else check.reason
    unmatched = unmatched_reason(report) if most.why == "unmatched" else ""
    match = to_match(report, unmatched)
    do = _remedy(report, most, said) or ("matched" if match else most.bucket)
    because = texts("card", "unjudged").get(f"why.{most.why}", said or "no rule judges it")
    if most.why == "unmatched" and unmatched:
        because += f" ({unmatched})"
    return Unjudged(
        whose=f"rank {most.rank}'s {words.noun}" if len(report.ranks) > 1 else words.the,
        total=total,
        # With nothing launched, it is not the operators that are unknown.
        what="time in which no operator computes" if said == NO_DEVICE else BUCKETS[most.bucket].metric,
        share=most.pct if len(unjudged) > 1 and total - most.pct >= 1 else None,
        because=because.removesuffix(_SEE) if do == "clocks" else because,
        do=do,
        match=match,
        window=words is WINDOW,
    ).sentences("sentence")[0]


def _remedy(report: Report, most: UnjudgedTime, said: str) -> str | None:
    """What would let a rule judge it, as a key of words/card.ini; None where that depends on the bucket alone."""
    unaligned = any(found.rule == UNALIGNED_CLOCKS.id for found in report.findings)
    cases = (
        (said == CAPTURED, "captured"),
        (said.startswith(MAY_BE_RECORDING), "may_be_recording"),
        (said == THROUGH_HOST, "through_host"),
        (most.why == "not_recorded", "not_recorded"),
        (most.bucket in COMM_BUCKETS and unaligned, "clocks"),
        (most.bucket == "comm_wait" and len(report.ranks) == report.run.world_size, "whom"),
    )
    return next((key for holds, key in cases if holds), None)
