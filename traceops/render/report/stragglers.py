"""Late ranks in a report: which are told together, and what curing them would give."""

from __future__ import annotations

import statistics
from collections import defaultdict

from msgspec import Struct

from traceops.across.replay.what_if import WORK_SHARED
from traceops.core.facts import Fact
from traceops.core.findings import Finding
from traceops.render.report.cross_tables import check_of
from traceops.report.model import Report
from traceops.rules.clocks import UNALIGNED_CLOCKS
from traceops.rules.stragglers import SLOW_GROUP

STRAGGLERS = ("TO-S001", "TO-S002")
_BESIDE_A_GROUP = ("TO-S001", SLOW_GROUP.id)  # each is what its cure saves with the others cured


class Cure(Struct, frozen=True):
    """What a step takes as it is, and would take with a finding's cause gone, ms.

    least_ms: the best that it may come to, where that is open; then_ms is the most.
    """

    now_ms: float
    then_ms: float
    least_ms: float | None = None

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


def late_together(report: Report, finding: Finding) -> list[Finding]:
    """The findings that the card tells with this one, itself among them."""
    same, cure = _joint(report, finding)
    return same if cure is not None else [finding]


def straggler_cure(report: Report, finding: Finding) -> Cure | None:
    """What TO-S001's or TO-S002's cure would give; None where no step is known to be shorter."""
    return joint_cure(report, finding) or _single_cure(report, finding)


def joint_cure(report: Report, finding: Finding) -> Cure | None:
    """What the cure of all that the card tells would give; None where it tells one finding."""
    return _joint(report, finding)[1]


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
                return same, Cure(step, predicted)
    return same, None


def _single_cure(report: Report, finding: Finding) -> Cure | None:
    if not finding.ranks or finding.impact_ms is None:
        return None
    late, saved_late = finding.number(Fact.LATE_STEP), finding.number(Fact.SAVED_IN_A_LATE_STEP)
    if finding.rule == "TO-S002" and late is not None and saved_late is not None:
        return Cure(late, late - saved_late)
    step, saved = step_ms(report), finding.impact_ms
    if (plain := finding.number(Fact.PLAIN_STEP)) is not None:
        return Cure(plain, plain - saved)
    if step is None or saved > step:
        return None
    shared = finding.number(Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY)
    if shared is None and (then := _alone(report, finding)) is not None:
        return Cure(step, then)
    row = next((row for row in report.what_if if row.change == WORK_SHARED), None)
    least = row.predicted_least_ms if shared is not None and row is not None else None
    return Cure(step, step - saved, least if least is not None and least < step - saved else None)


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


def step_ms(report: Report) -> float | None:
    """The step that savings are taken from, ms: as the replay has it, else the mean over steps."""
    known = [float(row.step_time_ms) for row in report.what_if if row.step_time_ms]
    return known[0] if known else mean_of_ranks(report)


def mean_of_ranks(report: Report) -> float | None:
    """The typical step, which per-step costs are shares of: median over ranks of the mean over such steps, ms."""
    if report.summary.step_time_ms.typical is not None:
        return report.summary.step_time_ms.typical
    durations: dict[int, list[float]] = defaultdict(list)
    for row in report.steps:
        durations[row.rank].append(row.duration_ms)
    return statistics.median(map(statistics.fmean, durations.values())) if durations else None
