"""The finding that leads a report: which it is, and what a step takes once its cause is fixed."""

from __future__ import annotations

import statistics
from collections import defaultdict

from msgspec import UNSET, Struct

from traceops.across.replay.what_if import WORK_SHARED
from traceops.core.facts import Fact
from traceops.core.findings import Finding
from traceops.core.words import WINDOW
from traceops.render.report.coverage import check_of
from traceops.render.report.whole_run import undisturbed_of
from traceops.report.model import Report
from traceops.rules.idle import HOST_BOUND, INPUT_BOUND
from traceops.rules.idle_findings import COMPILING, FIRST_USE
from traceops.rules.registry import family_of, rule_of
from traceops.rules.stragglers import SLOW_GROUP
from traceops.rules.validity_time import UNALIGNED_CLOCKS

STRAGGLERS = ("TO-S001", "TO-S002")
_BESIDE_A_GROUP = ("TO-S001", SLOW_GROUP.id)  # each is what its cure saves with the others cured


class Cure(Struct, frozen=True):
    """What a step takes as it is, and would take with a finding's cause gone, ms. least_ms: the best that it may come
    to, where that is open; then_ms is the most."""

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
    """The findings that the card is about together with this one, itself among them."""
    same, cure = _joint(report, finding)
    return same if cure is not None else [finding]


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


_LEAST_MS = 1e-3  # of a step or window: a shorter one has no share to be judged


def nothing_timed(report: Report) -> bool:
    """Whether no step, window or run has any length: then no share of it says anything."""
    timed = undisturbed_of(report) is not None or report.whole_run is not UNSET
    return not (timed or (mean_of_ranks(report) or 0.0) >= _LEAST_MS or report.summary.unprofiled_step_time_ms)


_REPLAYED = (  # evidence that is the impact, as a change was replayed
    Fact.SAVED_BY_EVEN_STAGES, Fact.SAVED_AT_PEERS_PACE, Fact.SAVED_AT_REFERENCE, Fact.SAVED_WITH_NCCL,
    Fact.SAVED_AT_THEIR_PACE, Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY,
)  # fmt: skip


def cure_of(report: Report, finding: Finding) -> Cure | None:
    """What curing the finding would give; None where nothing tells. A finding whose rule predicts no step gives a
    range: at best its whole impact is saved, at worst nothing. Of one about other steps than the typical ones nothing
    is said: those take as long without its cause. Nor of work that comes once."""
    together = _joint(report, finding)[1]
    if together is not None or finding.rule in STRAGGLERS:  # of these None where no step is known to be shorter
        return together or _single_cure(report, finding)
    if (faster := _faster_kernels(report, finding)) is not None:
        return faster
    if not finding.impact_ms or finding.advice in map(HOST_BOUND.advice_for, (FIRST_USE, COMPILING)):
        return None
    predicted = _rule_cure(report, finding) or _replayed(report, finding)
    if predicted is not None:
        return predicted
    step = finding.number(Fact.STEP) or mean_of_ranks(report)
    typical = set(report.run.steps) - report.summary.step_time_ms.left_out
    if step is None or finding.impact_ms > step or (finding.steps and typical.isdisjoint(finding.steps)):
        return None
    return Cure(step, step, step - finding.impact_ms)


def _faster_kernels(report: Report, finding: Finding) -> Cure | None:
    """The range of the step once slow kernels are fixed, as the report's loss with this cause has it."""
    compute = report.compute
    loss = next((one for one in compute.losses if one.cause == finding.cause), None) if compute else None
    if not compute or loss is None or not finding.rule.startswith("TO-K"):
        return None
    step, facts = mean_of_ranks(report), finding.facts or {}
    if step is None:
        return None
    if facts.get("effect") in (None, "at_most"):  # as the finding says
        return Cure(step, step, max(step - facts["gain"], 0.0))
    step = report.summary.plain_ms or step
    least, most = loss.step_after_ms
    if not loss.launches and compute.bound != "device":  # the step loses no more than the device does
        least = max(least, step - loss.device_ms - loss.device_ms_uncertain)
    # A replayed step that is shorter still leaves open how little of the recorded one the fix saves.
    return Cure(step, min(most, step) if most > least else step, min(least, step))


def _replayed(report: Report, finding: Finding) -> Cure | None:
    """Of a rule whose impact is what the replay predicts: its evidence says so."""
    step, saved = step_ms(report), finding.impact_ms
    if not any(e.fact in _REPLAYED for e in finding.evidence) or step is None or saved is None or saved > step:
        return None
    best = finding.number(Fact.SAVED_AT_REFERENCE_AND_NO_HOST_LATE)
    return Cure(step, step - saved, None if best is None else step - best)


def _rule_cure(report: Report, finding: Finding) -> Cure | None:
    """What a rule's own words for a cure stand for: the impact, off the step of the rank that it is measured on. It is
    the best that a fix may come to of a host that launches late, of loaders where nothing tells how many workers would
    be enough (taking their batches is a part of it), and of a window, in which it may come once."""
    rule, saved = rule_of(finding.rule), finding.impact_ms
    if rule is None or not rule.cured or saved is None or not finding.ranks:
        return None
    step = finding.number(Fact.STEP)
    if step is None:  # the mean typical step of its worst rank: impacts are means over these, and a share needs it too
        left_out = report.summary.step_time_ms.left_out
        worst = next((e.rank for e in finding.evidence if e.rank is not None), finding.ranks[0])
        own = [row.duration_ms for row in report.steps if row.rank == worst and row.step not in left_out]
        step = sum(own) / len(own) if own else None
    if step is None or saved > step:
        return None
    unsure = finding.rule == INPUT_BOUND.id and not (finding.facts or {}).get("need")
    if finding.rule == HOST_BOUND.id or unsure or report.summary.step_words is WINDOW:
        return Cure(step, step, step - saved)
    return Cure(step, step - saved)


def hang_leads(report: Report) -> bool:
    """Whether a hang's cause is what to act on first."""
    return report.hang is not None and bool(report.hang.roots)


def lead_finding(report: Report) -> Finding | None:
    """The finding that the card is about: the first serious one, else a straggler; None in a clean bill."""
    if hang_leads(report):
        return None
    serious = next((f for f in report.findings if f.severity != "info"), None)
    return serious or next((f for f in report.findings if f.rule in STRAGGLERS), None)


def is_unrecorded(finding: Finding) -> bool:
    """Whether it speaks of steps without the profiler."""
    family = family_of(finding.rule)
    of_run = family is not None and family.over == "run"
    return of_run or finding.proof(Fact.RECORDED) is not None


WAIT_INFO_PCT = 10.0  # of the step, median over ranks: the bounds a straggler is judged by [docs/metrics.md]
WAIT_WARNING_PCT = 20.0
_MOST = 2.0  # times what the next rank causes: from here on one rank is named


class Waiting(Struct, frozen=True):
    """Waiting for late ranks, ms and percent of the typical step (median over ranks), and the rank that causes most.
    rank: None where nothing that compares ranks is to be trusted, where another rank causes about as much, and where
    some steps are unlike the others, as an evaluation would be blamed."""

    ms: float
    pct: float
    rank: int | None = None


def waiting_of(report: Report) -> Waiting | None:
    """Of the recorded steps; None where waiting is not told from transfer."""
    ms, pct = report.summary.ledger_ms.comm_wait, report.summary.ledger_pct.comm_wait
    if ms is None or pct is None:
        return None
    blamed = sorted(((row.late_share, row.rank) for row in report.ranks if row.late_share), reverse=True)
    if not blamed or out_of_step(report) or report.summary.step_time_ms.unlike:
        return Waiting(ms, pct)
    share, rank = blamed[0]
    by_turns = any(_MOST * other >= share for other, _ in blamed[1:])
    return Waiting(ms, pct, None if by_turns else rank)
