"""What a step takes, and would take with the cause of a finding gone: for the sentence and for the two bars."""

from __future__ import annotations

from traceops.core.findings import Finding
from traceops.measure.ledger import BUCKETS
from traceops.render.report.stragglers import STRAGGLERS, Cure, joint_cure, mean_of_ranks, step_ms, straggler_cure
from traceops.report.model import Report
from traceops.rules.bandwidth import SAVED_AT_BEST, SAVED_AT_REFERENCE
from traceops.rules.copies_told import EXPOSED as EXPOSED_COPIES
from traceops.rules.idle_loading import OTHER_LOADER
from traceops.rules.registry import BY_ID
from traceops.rules.through_host import SAVED_WITH_NCCL

_REPLAYED = {  # evidence that is the impact -> the change that was replayed
    "saved by even stages": "with the same work shared evenly",
    "saved at its peers' pace": "at its peers' pace",
    SAVED_AT_REFERENCE: "with the links at their reference",
    SAVED_WITH_NCCL: "with NCCL",
    "saved at their peers' pace": "at their peers' pace",
    "saved with the work shared evenly": "with the work shared evenly",
}
_MEASURED = {*BUCKETS, EXPOSED_COPIES}  # evidence that is what a finding measured


def cure_of(report: Report, finding: Finding) -> Cure | None:
    """What curing the finding would give; None where nothing tells.

    A finding whose rule predicts no step gives a range: at best its whole impact is saved, at worst nothing. Of one
    about other steps than the typical ones nothing is said: those take as long without its cause.
    """
    if finding.rule in STRAGGLERS:
        return straggler_cure(report, finding)
    if (together := joint_cure(report, finding)) is not None:
        return together
    if finding.impact_ms is None or not finding.impact_ms:
        return None
    predicted = rule_cure(report, finding) or _replayed(report, finding)
    if predicted is not None:
        return predicted
    step = evidence_ms(finding, "step") or mean_of_ranks(report)
    if step is None or finding.impact_ms > step or _of_other_steps(report, finding):
        return None
    return Cure(step, step, "", step - finding.impact_ms)


def _of_other_steps(report: Report, finding: Finding) -> bool:
    """Whether none of the finding's steps counts in the step that the report tells."""
    typical = set(report.run.steps) - report.summary.step_time_ms.left_out
    return bool(finding.steps) and typical.isdisjoint(finding.steps)


def _replayed(report: Report, finding: Finding) -> Cure | None:
    """Of a rule whose impact is what the replay predicts: its evidence says so."""
    how = next((_REPLAYED[e.metric] for e in finding.evidence if e.metric in _REPLAYED), None)
    step, saved = step_ms(report), finding.impact_ms
    if how is None or step is None or saved is None or saved > step:
        return None
    best = next((e.value for e in finding.evidence if e.metric == SAVED_AT_BEST), None)
    return Cure(step, step - saved, how, step - best if isinstance(best, (int, float)) else None)


def rule_cure(report: Report, finding: Finding) -> Cure | None:
    """What a rule's own words for a cure stand for: the impact, off the step of the rank that it is measured on."""
    rule, step, saved = BY_ID.get(finding.rule), measured_step(report, finding), finding.impact_ms
    if rule is None or not rule.cured or step is None or saved is None or saved > step:
        return None
    on_all = any(e.metric == OTHER_LOADER for e in finding.evidence)
    return Cure(step, step - saved, f"{rule.cured} on all ranks" if on_all else rule.cured)


def measured_step(report: Report, finding: Finding) -> float | None:
    """The step that a finding's times are a part of, ms: its own evidence, else the mean step of its worst rank."""
    if not finding.ranks:
        return None
    whole = evidence_ms(finding, "step")
    worst = next((e.rank for e in finding.evidence if e.rank is not None), finding.ranks[0])
    return whole if whole is not None else mean_step(report, worst)


def lost_ms(finding: Finding) -> float:
    """What the finding measured, ms a step (or window): its cure may save less, which is its impact."""
    measured = next((e.value for e in finding.evidence if e.metric in _MEASURED), None)
    return float(measured) if isinstance(measured, (int, float)) else finding.impact_ms or 0.0


def evidence_ms(finding: Finding, metric: str) -> float | None:
    """A time of the finding's evidence, ms."""
    value = next((e.value for e in finding.evidence if e.metric == metric and e.unit == "ms"), None)
    return float(value) if isinstance(value, (int, float)) else None


def mean_step(report: Report, rank: int) -> float | None:
    """Mean typical step of a rank, ms: impacts are means over these, so a share needs the mean too."""
    left_out = report.summary.step_time_ms.left_out
    own = [row.duration_ms for row in report.steps if row.rank == rank and row.step not in left_out]
    return sum(own) / len(own) if own else None
