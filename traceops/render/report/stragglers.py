"""What a report says of late ranks in one clause: who, why, what the others wait, what curing it would give."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from traceops.across.replay.what_if import WORK_SHARED
from traceops.core.claims import Claim, claim_of
from traceops.core.facts import Fact
from traceops.core.findings import Finding
from traceops.core.shared_place import shared_place
from traceops.core.step_words import StepWords
from traceops.core.units import ms_text
from traceops.render.report.cross_tables import check_of
from traceops.render.report.then_text import then_text
from traceops.report.model import Report
from traceops.rules.clocks import UNALIGNED_CLOCKS
from traceops.rules.slow_group import SLOW_GROUP
from traceops.rules.straggler_claims import ComesLast, Late, LateBehindLoading, Slower

STRAGGLERS = ("TO-S001", "TO-S002")
_BESIDE_A_GROUP = ("TO-S001", SLOW_GROUP.id)  # each is what its cure saves with the others cured

_MOST_NAMED = 3  # late ranks, each with its cause
_HARDLY_PCT = 10.0  # of the step: a saving below it is no reason to act [TO-S001]


@dataclass(frozen=True)
class Cure:
    """What a step takes as it is, and would take with a finding's cause gone, ms.

    least_ms: the best that it may come to, where that is open; then_ms is the most. late: the step is the mean of those
    that a finding is about. how: the state in which it costs nothing, 'at its peers' pace'.
    """

    now_ms: float
    then_ms: float
    how: str
    least_ms: float | None = None
    late: bool = False

    @property
    def pct(self) -> float:
        """Of the step: what is saved, at least where that is open."""
        return 100 * (self.now_ms - self.then_ms) / self.now_ms if self.now_ms else 0.0


def stragglers_judged(report: Report) -> bool:
    """Whether TO-S001 came out, one way or the other: then waiting alone accuses nobody."""
    check = check_of(report, "TO-S001")
    return check is not None and check.status != "not_evaluated"


def out_of_step(report: Report) -> bool:
    """Whether the ends of the ranks' collectives do not fit together, so that nothing that compares them holds."""
    return not stragglers_judged(report) and any(finding.rule == UNALIGNED_CLOCKS.id for finding in report.findings)


def straggler_clause(report: Report, finding: Finding) -> tuple[str, int]:
    """TO-S001 or TO-S002 in one clause, and how many findings it covers.

    Serious ones of one rule whose cure was predicted together become one clause.
    """
    same, cure = _joint(report, finding)
    if cure is None:
        return _single_clause(report, finding), 1
    if any(one.rule == SLOW_GROUP.id for one in same):
        return _groups_clause(report, same, cure), len(same)
    return _joint_clause(report, same, cure), len(same)


def late_together(report: Report, finding: Finding) -> list[Finding]:
    """The findings that one clause tells with this one, itself among them."""
    same, cure = _joint(report, finding)
    return same if cure is not None else [finding]


def straggler_cure(report: Report, finding: Finding) -> Cure | None:
    """What TO-S001's or TO-S002's cure would give, as the clause says it; None where no step is known to be shorter."""
    return joint_cure(report, finding) or _single_cure(report, finding)


def joint_cure(report: Report, finding: Finding) -> Cure | None:
    """What the cure of all that one clause tells would give; None where it tells one finding."""
    return _joint(report, finding)[1]


def group_clause(report: Report, finding: Finding) -> tuple[str, int]:
    """TO-S003 in one clause: how many, what they have in common, why, and what curing all of them would give.

    And how many findings it covers: others that are late beside them are told too.
    """
    same, cure = _joint(report, finding)
    if cure is not None:
        return _groups_clause(report, same, cure), len(same)
    step, saved = step_ms(report), finding.impact_ms
    said = headline_of(finding)
    if (place := place_text(report, finding.ranks)) and said:
        said += f" ({place})"
    if because := because_of(finding):
        said += f": {because}"
    if step is None or saved is None or saved > step:
        return said, 1
    then = f"{report.summary.step_words.a} would take {then_text(report, step - saved, 100 * saved / step)}"
    return f"{said}; {_how(finding)} {then}", 1


def _group_text(report: Report, finding: Finding) -> str:
    place = place_text(report, finding.ranks)
    return who_text(finding.ranks, len(report.ranks)) + (f" ({place})" if place else "")


def _groups_clause(report: Report, findings: Sequence[Finding], cure: Cure) -> str:
    """Groups and single ranks that are late for reasons of their own, and what curing all of them would give."""
    told = list[str]()
    for finding in findings[:_MOST_NAMED]:
        if finding.rule == SLOW_GROUP.id:
            who, why = _group_text(report, finding), because_of(finding)
            told.append(
                f"so are {who[:1].lower()}{who[1:]}: {why}" if told else f"{who} are slower than the others: {why}"
            )
        else:
            rank, why = finding.ranks[0], because_of(finding)
            told.append(f"so is rank {rank}: {why}" if told else f"Rank {rank} is late: {why}")
    if more := len(findings) - len(told):
        told.append(f"{more} more below")
    then = f"{report.summary.step_words.a} would take {then_text(report, cure.then_ms, cure.pct)}"
    return f"{'; '.join(told)}; with all of them {cure.how} {then}"


def place_text(report: Report, ranks: Sequence[int]) -> str:
    """What several ranks have in common, and no other has: 'all ranks of host-3'; '' of few ranks."""
    return shared_place(ranks, {row.rank: row.host for row in report.ranks}) if len(ranks) > _MOST_NAMED else ""


def _joint(report: Report, finding: Finding) -> tuple[list[Finding], Cure | None]:
    """Serious findings of the same rule, or late beside a group; what curing all of them gives, where replayed."""
    if finding.rule not in (*STRAGGLERS, SLOW_GROUP.id):
        return [finding], None
    serious = [f for f in report.findings if f.severity != "info" and f.impact_ms is not None]
    grouped = finding.rule in _BESIDE_A_GROUP and any(f.rule == SLOW_GROUP.id for f in serious)
    rules = _BESIDE_A_GROUP if grouped else (finding.rule,)
    same = [f for f in serious if f.rule in rules]
    together = sorted(rank for f in same for rank in f.ranks)
    if finding in same and len(same) > 1:
        for row in report.what_if:
            step, predicted = row.step_time_ms, row.predicted_step_time_ms
            if sorted(row.ranks) == together and step and predicted is not None:
                return same, Cure(step, predicted, "at the other ranks' pace")
    return same, None


def _single_cure(report: Report, finding: Finding) -> Cure | None:
    if not finding.ranks or finding.impact_ms is None:
        return None
    how = _how(finding)
    late, saved_late = finding.number(Fact.LATE_STEP), finding.number(Fact.SAVED_IN_A_LATE_STEP)
    if finding.rule == "TO-S002" and late is not None and saved_late is not None:
        return Cure(late, late - saved_late, how, late=True)
    step, saved = step_ms(report), finding.impact_ms
    if (plain := finding.number(Fact.PLAIN_STEP)) is not None:
        return Cure(plain, plain - saved, how)
    if step is None or saved > step:
        return None
    shared = finding.number(Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY)
    if shared is None and (then := _alone(report, finding)) is not None:
        return Cure(step, then, how)
    row = next((row for row in report.what_if if row.change == WORK_SHARED), None)
    least = row.predicted_least_ms if shared is not None and row is not None else None
    return Cure(step, step - saved, how, least if least is not None and least < step - saved else None)


def _alone(report: Report, finding: Finding) -> float | None:
    """What a step would take with this rank cured and no other, ms, where others are late too."""
    late = [one for one in report.findings if one.rule in (*STRAGGLERS, SLOW_GROUP.id)]
    if all(one is finding for one in late):
        return None  # then that is the impact
    rows = [row for row in report.what_if if row.ranks == finding.ranks]
    return next((row.predicted_step_time_ms for row in rows if row.predicted_step_time_ms is not None), None)


def headline_of(finding: Finding) -> str:
    """What is claimed, in one sentence without a full stop; of an earlier version's report its message."""
    return finding.headline if isinstance(finding.headline, str) else finding.message.rstrip(".")


def because_of(finding: Finding) -> str:
    """Why ranks are late, in a clause; '' in reports of an earlier version."""
    claim = _claim(finding)
    return "" if claim is None else claim.part("because")


def _how(finding: Finding) -> str:
    """The state in which it costs nothing."""
    claim = _claim(finding)
    return ("" if claim is None else claim.part("way")) or "at the other ranks' pace"


def _short(finding: Finding) -> str:
    """The same in few words."""
    claim = _claim(finding)
    return "late" if claim is None else claim.part("short")


def _claim(finding: Finding) -> Claim | None:
    known = (claim_of(finding, kind) for kind in (Late, LateBehindLoading, ComesLast, Slower))
    return next((claim for claim in known if claim is not None), None)


def _single_clause(report: Report, finding: Finding) -> str:
    if not finding.ranks or finding.impact_ms is None:
        return finding.message.rstrip(".")
    clause, words = headline_of(finding) + _reason(finding), report.summary.step_words
    cure = _single_cure(report, finding)
    if cure is None:
        return clause
    then = then_text(report, cure.then_ms, cure.pct, cure.now_ms)
    if cure.late:
        return f"{clause}: {cure.how} such a step would take {then}"
    if finding.rule == "TO-S001" and finding.severity == "info" and cure.pct < _HARDLY_PCT:
        return f"{clause}, but {cure.how} {words.a} would be only {ms_text(finding.impact_ms)} ms shorter"
    return f"{clause}; {cure.how} {words.a} would take {then}"


def _joint_clause(report: Report, findings: Sequence[Finding], cure: Cure) -> str:
    ranks = [rank for f in findings for rank in f.ranks]  # the costliest first
    causes = {rank: _short(f) for f in findings for rank in f.ranks}
    if len(ranks) <= _MOST_NAMED:
        named = [f"{rank} ({causes[rank]})" for rank in ranks]
        who = f"Ranks {', '.join(named[:-1])} and {named[-1]} are late"
    else:
        who = f"{who_text(sorted(ranks), len(report.ranks))} are late"
    others, words = len(report.ranks) - len(ranks), report.summary.step_words
    known = [waits for f in findings if (waits := _waiting_for(f)) is not None]
    if known and others > 0:  # each is a mean over all ranks but one
        waits = sum(known) * (len(report.ranks) - 1) / others
        if waits <= cure.now_ms:
            wait = "the other rank waits" if others == 1 else f"the other {others} ranks wait"
            who += f": {wait} {ms_text(waits)} ms{_of(cure.now_ms, waits, words)} for them"
    return f"{who}; {cure.how} {words.a} would take {then_text(report, cure.then_ms, cure.pct)}"


def _reason(finding: Finding) -> str:
    """What looks at hosts and machine say of it, in brackets."""
    told = finding.proof(Fact.REASON)
    return "" if told is None else f" ({told.value})"


def _waiting_for(finding: Finding) -> float | None:
    """Waiting for the rank, ms a step, mean over the others."""
    return finding.number(Fact.PLAIN_WAIT) or finding.number(Fact.WAITING_FOR_IT)


def _of(step: float | None, part: float, words: StepWords) -> str:
    """' of each 54.9 ms step', unless the part is not known to be one of that step."""
    whole = None if step is None or part > step else words.each_of(f"{ms_text(step)} ms")
    return f" {words.per}" if whole is None else f" of {whole}"


def step_ms(report: Report) -> float | None:
    """The step that savings are taken from, ms: as the replay has it, else the mean over steps."""
    known = [float(row.step_time_ms) for row in report.what_if if row.step_time_ms]
    return known[0] if known else mean_of_ranks(report)


def who_text(ranks: Sequence[int], count: int) -> str:
    """Ranks in words that begin a sentence: 'Rank 1', 'Ranks 1 and 3', 'All 4 ranks', '40 of 64 ranks'."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    if len(ranks) == count:
        return "Both ranks" if count == 2 else f"All {count} ranks"
    if len(ranks) > 4:
        return f"{len(ranks)} of {count} ranks"
    return f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def mean_of_ranks(report: Report) -> float | None:
    """The typical step, which per-step costs are shares of: median over ranks of the mean over such steps, ms."""
    if report.summary.step_time_ms.typical is not None:
        return report.summary.step_time_ms.typical
    durations: dict[int, list[float]] = defaultdict(list)
    for row in report.steps:
        durations[row.rank].append(row.duration_ms)
    return statistics.median(map(statistics.fmean, durations.values())) if durations else None
