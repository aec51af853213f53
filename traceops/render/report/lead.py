"""What a report's answer is about: the finding that leads, what a step takes without its cause, what nobody judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import UNSET

from traceops.core.facts import Fact
from traceops.core.findings import Check, Finding
from traceops.render.report.stragglers import STRAGGLERS, Cure, joint_cure, mean_of_ranks, step_ms, straggler_cure
from traceops.render.report.whole_run import undisturbed_of
from traceops.report.model import Report
from traceops.rules.registry import Family, family_of, rule_of

_MOST_IDS = 2  # of a family's rules that a sentence names


def nothing_timed(report: Report) -> bool:
    """Whether no step, window or run has any length: then no share of it says anything."""
    timed = undisturbed_of(report) is not None or report.whole_run is not UNSET
    return not (timed or mean_of_ranks(report) or report.summary.unprofiled_step_time_ms)


def not_evaluated(checks: Sequence[Check]) -> list[str]:
    """What could not be judged: a family of rules by its name if none of it was judged, else the ids, or how many.

    Rules that no data of the run could decide are left out, as `count_checks` leaves them out.
    """
    families: dict[Family | None, list[Check]] = defaultdict(list)
    for check in checks:
        if check.unjudged is not UNSET:
            continue
        families[family_of(check.rule)].append(check)
    named: list[str] = []
    for family, members in families.items():
        skipped = [check.rule for check in members if check.status == "not_evaluated"]
        if len(skipped) == len(members) and family is not None:
            named.append(family.about)
        elif len(skipped) > _MOST_IDS and family is not None:
            named.append(f"{len(skipped)} rules of {family.about}")
        else:
            named += skipped
    return named


# What a step takes, and would take with the cause of a finding gone: for the two bars.


_REPLAYED = (  # evidence that is the impact, as a change was replayed
    Fact.SAVED_BY_EVEN_STAGES,
    Fact.SAVED_AT_PEERS_PACE,
    Fact.SAVED_AT_REFERENCE,
    Fact.SAVED_WITH_NCCL,
    Fact.SAVED_AT_THEIR_PACE,
    Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY,
)


def cure_of(report: Report, finding: Finding) -> Cure | None:
    """What curing the finding would give; None where nothing tells.

    A finding whose rule predicts no step gives a range: at best its whole impact is saved, at worst nothing. Of one
    about other steps than the typical ones nothing is said: those take as long without its cause.
    """
    if finding.rule in STRAGGLERS:
        return straggler_cure(report, finding)
    if (together := joint_cure(report, finding)) is not None:
        return together
    if (faster := _faster_kernels(report, finding)) is not None:
        return faster
    if finding.impact_ms is None or not finding.impact_ms:
        return None
    predicted = _rule_cure(report, finding) or _replayed(report, finding)
    if predicted is not None:
        return predicted
    step = _evidence_ms(finding, Fact.STEP) or mean_of_ranks(report)
    if step is None or finding.impact_ms > step or _of_other_steps(report, finding):
        return None
    return Cure(step, step, step - finding.impact_ms)


def _faster_kernels(report: Report, finding: Finding) -> Cure | None:
    """The range of the step once slow kernels are fixed, as the report's loss with this cause has it."""
    plain = report.summary.plain_ms
    step, losses = mean_of_ranks(report) if plain is None else plain, report.compute.losses if report.compute else ()
    loss = next((one for one in losses if one.cause == finding.cause), None)
    if loss is None or step is None or not finding.rule.startswith("TO-K"):
        return None
    least, most = (min(ms, step) for ms in loss.step_after_ms)
    return Cure(step, most, least)


def _of_other_steps(report: Report, finding: Finding) -> bool:
    """Whether none of the finding's steps counts in the step that the report tells."""
    typical = set(report.run.steps) - report.summary.step_time_ms.left_out
    return bool(finding.steps) and typical.isdisjoint(finding.steps)


def _replayed(report: Report, finding: Finding) -> Cure | None:
    """Of a rule whose impact is what the replay predicts: its evidence says so."""
    step, saved = step_ms(report), finding.impact_ms
    if not any(e.fact in _REPLAYED for e in finding.evidence) or step is None or saved is None or saved > step:
        return None
    best = finding.number(Fact.SAVED_AT_REFERENCE_AND_NO_HOST_LATE)
    return Cure(step, step - saved, None if best is None else step - best)


def _rule_cure(report: Report, finding: Finding) -> Cure | None:
    """What a rule's own words for a cure stand for: the impact, off the step of the rank that it is measured on."""
    rule, step, saved = rule_of(finding.rule), _measured_step(report, finding), finding.impact_ms
    if rule is None or not rule.cured or step is None or saved is None or saved > step:
        return None
    return Cure(step, step - saved)


def _measured_step(report: Report, finding: Finding) -> float | None:
    """The step that a finding's times are a part of, ms: its own evidence, else the mean step of its worst rank."""
    if not finding.ranks:
        return None
    whole = _evidence_ms(finding, Fact.STEP)
    worst = next((e.rank for e in finding.evidence if e.rank is not None), finding.ranks[0])
    return whole if whole is not None else _mean_step(report, worst)


def _evidence_ms(finding: Finding, fact: Fact) -> float | None:
    """A time of the finding's evidence, ms."""
    value = next((e.value for e in finding.evidence if e.fact is fact and e.unit == "ms"), None)
    return float(value) if isinstance(value, (int, float)) else None


def _mean_step(report: Report, rank: int) -> float | None:
    """Mean typical step of a rank, ms: impacts are means over these, so a share needs the mean too."""
    left_out = report.summary.step_time_ms.left_out
    own = [row.duration_ms for row in report.steps if row.rank == rank and row.step not in left_out]
    return sum(own) / len(own) if own else None


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
    of_run = family is not None and family.of_run
    return of_run or finding.proof(Fact.RECORDED) is not None
