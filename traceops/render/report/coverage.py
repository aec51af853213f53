"""What a report could not judge, predict or match across ranks, why, and what would change that."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.across.match import NO_METADATA
from traceops.across.send_receive import NO_END
from traceops.core.claims import Claim
from traceops.core.findings import Check
from traceops.core.words import BUCKETS, WINDOW
from traceops.measure.ledger import COMM_BUCKETS
from traceops.render.report.terms import say, say_first
from traceops.report.model import Report
from traceops.report.step_times import UnjudgedTime
from traceops.rules.validity_time import UNALIGNED_CLOCKS
from traceops.words.catalogue import texts


def check_of(report: Report, rule: str) -> Check | None:
    """What a rule says about this run, None where nobody asked it."""
    return next((check for check in report.checks if check.rule == rule), None)


NO_REPLAY = {key.partition(".")[2]: why for key, why in texts("page", "no_what_if").items() if key.startswith("why.")}


def why_no_what_if(report: Report, least_pct: float) -> str:
    """Why nothing is said of what a change would save; '' where something is known that saves so much of the step."""
    replay, none = report.summary.replay, report.summary.no_replay
    reason = unmatched_reason(report) if none == "nothing_matched" and report.run.backend == "gloo" else ""
    if none is None and (replay is None or any((row.saved_pct or 0.0) >= least_pct for row in report.what_if)):
        return ""
    return say_first(
        "no_what_if", "sentence", report.summary.step_words, reason=reason, do=reason and to_match(report, reason),
        none=none, not_alike=not report.what_if, off=None if replay is None else replay.error_pct, least_pct=least_pct,
    )  # fmt: skip


def least_note(report: Report) -> str:
    """Beside the replay's predictions, that a step with a cause gone may take longer; '' where all is known."""
    replay = report.summary.replay
    return "" if replay is None else why_least(replay.loaders_unknown, replay.hosts_unknown)


def unfit_note(report: Report) -> str:
    """That the ranks' clocks do not fit together, beside what compares ranks; '' where they do."""
    unfit = any(found.rule == UNALIGNED_CLOCKS.id for found in report.findings)
    return say("what-if", "unfit_note", rule=UNALIGNED_CLOCKS.id if unfit else None)


def why_least(loaders: Sequence[int], hosts: Sequence[int]) -> str:
    """The same for these ranks whose loaders and hosts are not known."""
    return say_first("what-if", "least_note", loaders=loaders, hosts=hosts)


_NO_GROUP = "its process group is not known"
_TO_MATCH = {
    "ranks of its group have no trace": "ranks",
    "outside the window of other ranks": "same_steps",
    NO_END: "metadata",
    _NO_GROUP: "metadata",
    NO_METADATA: "metadata",
}
_TO_MATCH_GLOO = {NO_END: "gloo_end", _NO_GROUP: "gloo_groups"}


def unmatched_reason(report: Report) -> str:
    """Why most of the unmatched communication was left out; '' where nothing says so."""
    left_out = report.summary.matching.unmatched if report.summary.matching is not None else {}
    return max(left_out, key=lambda name: left_out[name], default="")


def to_match(report: Report, reason: str) -> str | None:
    """What would let communication be matched that was left out for this reason."""
    key = _TO_MATCH_GLOO.get(reason) if report.run.backend == "gloo" else None
    return texts("card", "to_match").get(key or _TO_MATCH.get(reason, ""))


MOST_UNJUDGED_PCT = 10.0  # of a step: no clean bill while more of it is unjudged
_NEARLY_ALL_PCT = 95.0
_OF_LAUNCHES = ("idle_host", "idle_sync")  # idle time that only a device can have
_SEE = f", see {UNALIGNED_CLOCKS.id}"


class Unjudged(Claim, frozen=True, kw_only=True):
    """What was not judged of a step. compute: percent of it that nothing rates, if most. what: the largest part else.
    share: its percent, where there are others. little: next to nothing else was judged. do: a key."""

    family = "card"
    kind = "unjudged"
    whose: str
    total: float
    what: str
    share: float | None = None
    compute: float | None = None
    because: str
    do: str = ""
    match: str | None = None
    little: bool = False


def unjudged_sentence(report: Report) -> str:
    """Up to two sentences on what was not judged; '' where a tenth of the step or less is not, or a window is short."""
    found = None if too_short(report) else unjudged_of(report)
    return "" if found is None else found.sentences("sentence")[0]


def too_short(report: Report) -> bool:
    """Whether a window without steps holds too little to judge."""
    return "short_window" in {check.lacking for check in report.checks}


def unjudged_of(report: Report) -> Unjudged | None:
    """What was not judged, and what would change that; None where it is a tenth of the step or less beside compute that
    nothing rates: `kernels_sentence` says why."""
    unjudged = [one for one in report.summary.unjudged if one.why != "unrated"]
    total = sum(one.pct for one in report.summary.unjudged)
    compute = total - (others := sum(one.pct for one in unjudged))
    if others <= MOST_UNJUDGED_PCT:
        return None
    most, words = unjudged[0], report.summary.step_words
    check = check_of(report, most.rule or "")
    why = "" if check is None else check.reason
    unmatched = unmatched_reason(report) if most.why == "unmatched" else ""
    match = to_match(report, unmatched)
    do = _remedy(report, most, check, match) or most.bucket
    because = texts("card", "unjudged").get(f"why.{most.why}") or why or texts("card", "unjudged")["why"]
    if unmatched:
        because += f" ({unmatched})"
    nothing_launched = report.run.device_type == "cpu" and most.bucket in _OF_LAUNCHES
    return Unjudged(
        whose=f"rank {most.rank}'s {words.noun}" if len(report.ranks) > 1 else words.the,
        total=total,
        # With nothing launched, it is not the operators that are unknown.
        what=texts("card", "unjudged")["no_operator"] if nothing_launched else BUCKETS[most.bucket].metric,
        share=most.pct if total - most.pct >= 1 else None,
        compute=compute if compute > most.pct else None,
        because=because.removesuffix(_SEE) if do == "clocks" else because,
        do=do,
        match=match,
        little=others > _NEARLY_ALL_PCT,
        window=words is WINDOW,
    )


def _remedy(report: Report, most: UnjudgedTime, check: Check | None, match: str | None) -> str | None:
    """What would let a rule judge it, as a key of words/card.ini; None where that depends on the bucket alone."""
    if check is not None and check.lacking in ("captured", "may_be_recording", "through_host"):
        return str(check.lacking)
    unaligned = any(found.rule == UNALIGNED_CLOCKS.id for found in report.findings)
    cut = {rank for one in report.findings if (one.facts or {}).get("incomplete") for rank in one.ranks}
    exchanged = most.bucket in COMM_BUCKETS
    cases = (
        (most.why == "not_recorded", "not_recorded"),
        (most.why == "not_evaluated" and most.rank in cut, "incomplete"),
        (exchanged and unaligned, "clocks"),
        (bool(match), "matched"),
        (exchanged and len(report.ranks) < (report.run.world_size or 0), "all_ranks"),
        (exchanged, "collectives"),
    )
    return next((key for holds, key in cases if holds), None)
