"""How long a step would take with a cause gone, in words that say where it is only the least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceops.core.units import ms_text
from traceops.core.words import NoReplay
from traceops.render.report.unmatched_text import to_match, unmatched_reason
from traceops.report.model import Report
from traceops.rules.clocks import UNALIGNED_CLOCKS

_LOADERS = "the pace of data loaders' workers is not known"
_HOSTS = "how fast hosts are without the profiler is not known"


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


def then_text(report: Report, then_ms: float, pct: float) -> str:
    """'21.9 ms (60 % less)'; 'or more' where data loaders or hosts may hold the step up that are hidden now."""
    if least_only(report):
        return f"{ms_text(then_ms)} ms or more (up to {pct:.0f} % less)"
    return f"{ms_text(then_ms)} ms ({pct:.0f} % less)"


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
    return f"clocks of ranks do not fit ({UNALIGNED_CLOCKS.id}): do not trust what compares ranks" if unfit else ""


def why_least(loaders: Sequence[int], hosts: Sequence[int]) -> str:
    """The same for these ranks whose loaders and hosts are not known."""
    why = [words for words, ranks in ((_LOADERS, loaders), (_HOSTS, hosts)) if ranks]
    return f"a step may take longer: {'; '.join(why)}" if why else ""
