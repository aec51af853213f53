"""The one sentence a report opens with: the worst finding, or who is waited for, or a clean bill."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from msgspec import UNSET

from traceops.core.facts import Fact
from traceops.core.findings import Check, Finding
from traceops.core.rank_text import ranks_in, ranks_text, runs_text
from traceops.core.step_words import StepWords
from traceops.core.units import ms_text
from traceops.render.document import Headline, Level
from traceops.render.report.coverage import efficiency_of, unjudged_sentence, why_unrated
from traceops.render.report.stragglers import (
    STRAGGLERS,
    Cure,
    group_clause,
    joint_cure,
    late_together,
    mean_of_ranks,
    step_ms,
    straggler_clause,
    straggler_cure,
    stragglers_judged,
    who_text,
)
from traceops.render.report.waiting import WAIT_INFO_PCT, WAIT_WARNING_PCT, waiting_of
from traceops.render.report.whole_run import share_pct, undisturbed_of, unlike_run
from traceops.report.model import Report
from traceops.rules import hangs
from traceops.rules.activity import NO_COMMUNICATION_SEEN
from traceops.rules.compute import LOW_PCT
from traceops.rules.idle import BLOCKED_ON_DEVICE, HOST_BOUND, INPUT_BOUND
from traceops.rules.idle_findings import held_mostly
from traceops.rules.profiler_cost import PROFILER_COST
from traceops.rules.registry import Family, family_of, rule_of
from traceops.rules.slow_group import SLOW_GROUP
from traceops.rules.validity import MISSING_RANKS

# The verdict on a run in which nothing serious was found: what it is like, and what nobody judged.


_MOSTLY_PCT = 50.0  # of a step, from which compute that nobody rated is no clean bill
_MOST_IDS = 2  # of a family's rules that a sentence names
_MOST_UNJUDGED = 7  # families or rules that a sentence names


def nothing_timed(report: Report) -> bool:
    """Whether no step, window or run has any length: then no share of it says anything."""
    timed = undisturbed_of(report) is not None or report.whole_run is not UNSET
    return not (timed or mean_of_ranks(report) or report.summary.unprofiled_step_time_ms)


def clean_bill(report: Report) -> Headline:
    """What a step is like, and what could not be judged: without that it is clear, else a remark."""
    if nothing_timed(report):
        return Headline("info", f"No step time was recorded, so nothing could be judged.{_unjudged_text(report)}")
    step, compute = mean_of_ranks(report), report.summary.ledger_pct.compute
    waiting, recorded, unrated = report.summary.ledger_pct.comm_wait or 0.0, "", ""
    undisturbed = undisturbed_of(report)
    if undisturbed is not None:
        step, recorded = undisturbed.step_ms, " without recording"
        compute, waiting = (share_pct(undisturbed, part) for part in ("compute_ms", "comm_wait_ms"))
    parts = [] if step is None else [f"{report.summary.step_words.a} takes {ms_text(step)} ms{recorded}"]
    if compute is not None:
        unrated = why_unrated(report) if compute >= _MOSTLY_PCT else ""
        parts.append(f"{compute:.0f} % of it compute" + (f", not rated because {unrated}" if unrated else ""))
    if (efficiency := efficiency_of(report)) is not None:
        parts.append(f"kernels at {efficiency:.0f} % of attainable speed{_where_slow(report, efficiency)}")
    if waiting >= WAIT_WARNING_PCT:
        parts.append(f"{waiting:.0f} % waiting for each other")
    about = f": {', '.join(parts)}" if parts else ""
    notes = len(report.findings)
    seen = f" {notes} finding{'s' if notes > 1 else ''} of severity info below." if notes else ""
    unlike = unlike_run(report)
    seen = _unlike_text(report) + unlike + _nothing_recognised(report) + seen
    unjudged = unjudged_sentence(report)
    found = "Nothing serious found in what could be judged" if unjudged else "Nothing serious found"
    if report.summary.first_steps:
        found += f" {'of' if unjudged else 'in'} the program's first steps"
    judged = f" {unjudged}" if unjudged else ""
    return Headline(
        "info"
        if report.summary.first_steps or notes or unjudged or unrated or unlike or waiting >= WAIT_WARNING_PCT
        else "clear",
        f"{found}{about}.{judged}{seen}{_unjudged_text(report)}",
    )


def _where_slow(report: Report, efficiency: float) -> str:
    """Which operators take most of the time that slow kernels lose."""
    if report.compute is UNSET or efficiency >= LOW_PCT:
        return ""
    known = [
        (row.ms - row.attainable_ms, row.name) for row in report.compute.operators if row.attainable_ms is not None
    ]
    names = dict.fromkeys(name for lost, name in sorted(known, reverse=True)[:3] if lost > 0)
    return f" (most of the rest in {', '.join(names)})" if names else ""


def _nothing_recognised(report: Report) -> str:
    """That what is called compute may be communication."""
    found = next((f for f in report.findings if f.rule == NO_COMMUNICATION_SEEN.id), None)
    return "" if found is None else f" {found.message.partition('. ')[0]}."


def _unlike_text(report: Report) -> str:
    """That some steps are not what the sentence before speaks of."""
    unlike = report.summary.step_time_ms.unlike
    if not unlike:
        return ""
    took = [  # as TO-T001 has it
        statistics.median(row.duration_ms for row in report.steps if row.step == step) for step in unlike
    ]
    one = len(unlike) == 1
    which = f"step{'' if one else 's'} {ranks_text(unlike, 4)}"
    return f" That is the typical step: {which} {'takes' if one else 'take up to'} {ms_text(max(took))} ms."


def nothing_else(report: Report) -> str:
    return f"No rule fired above info.{_unjudged_text(report)}"


def _unjudged_text(report: Report) -> str:
    named = not_evaluated(report.checks)
    left = len(named) - _MOST_UNJUDGED
    shown = named if left <= 1 else [*named[:_MOST_UNJUDGED], f"{left} more below"]
    return f" Not evaluated: {', '.join(shown)}." if named else ""


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


# What a step takes, and would take with the cause of a finding gone: for the sentence and for the two bars.


_REPLAYED = {  # evidence that is the impact -> the change that was replayed
    Fact.SAVED_BY_EVEN_STAGES: "with the same work shared evenly",
    Fact.SAVED_AT_PEERS_PACE: "at its peers' pace",
    Fact.SAVED_AT_REFERENCE: "with the links at their reference",
    Fact.SAVED_WITH_NCCL: "with NCCL",
    Fact.SAVED_AT_THEIR_PACE: "at their peers' pace",
    Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY: "with the work shared evenly",
}
_MEASURED = (Fact.BUCKET, Fact.EXPOSED_COPIES)  # evidence that is what a finding measured


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
    step = evidence_ms(finding, Fact.STEP) or mean_of_ranks(report)
    if step is None or finding.impact_ms > step or _of_other_steps(report, finding):
        return None
    return Cure(step, step, "", step - finding.impact_ms)


def _of_other_steps(report: Report, finding: Finding) -> bool:
    """Whether none of the finding's steps counts in the step that the report tells."""
    typical = set(report.run.steps) - report.summary.step_time_ms.left_out
    return bool(finding.steps) and typical.isdisjoint(finding.steps)


def _replayed(report: Report, finding: Finding) -> Cure | None:
    """Of a rule whose impact is what the replay predicts: its evidence says so."""
    how = next((_REPLAYED[e.fact] for e in finding.evidence if e.fact in _REPLAYED), None)
    step, saved = step_ms(report), finding.impact_ms
    if how is None or step is None or saved is None or saved > step:
        return None
    best = finding.number(Fact.SAVED_AT_REFERENCE_AND_NO_HOST_LATE)
    return Cure(step, step - saved, how, None if best is None else step - best)


def rule_cure(report: Report, finding: Finding) -> Cure | None:
    """What a rule's own words for a cure stand for: the impact, off the step of the rank that it is measured on."""
    rule, step, saved = rule_of(finding.rule), measured_step(report, finding), finding.impact_ms
    if rule is None or not rule.cured or step is None or saved is None or saved > step:
        return None
    on_all = finding.proof(Fact.OTHER_LOADER) is not None
    return Cure(step, step - saved, f"{rule.cured} on all ranks" if on_all else rule.cured)


def measured_step(report: Report, finding: Finding) -> float | None:
    """The step that a finding's times are a part of, ms: its own evidence, else the mean step of its worst rank."""
    if not finding.ranks:
        return None
    whole = evidence_ms(finding, Fact.STEP)
    worst = next((e.rank for e in finding.evidence if e.rank is not None), finding.ranks[0])
    return whole if whole is not None else mean_step(report, worst)


def lost_ms(finding: Finding) -> float:
    """What the finding measured, ms a step (or window): its cure may save less, which is its impact."""
    measured = next((e.value for e in finding.evidence if e.fact in _MEASURED), None)
    return float(measured) if isinstance(measured, (int, float)) else finding.impact_ms or 0.0


def evidence_ms(finding: Finding, fact: Fact) -> float | None:
    """A time of the finding's evidence, ms."""
    value = next((e.value for e in finding.evidence if e.fact is fact and e.unit == "ms"), None)
    return float(value) if isinstance(value, (int, float)) else None


def mean_step(report: Report, rank: int) -> float | None:
    """Mean typical step of a rank, ms: impacts are means over these, so a share needs the mean too."""
    left_out = report.summary.step_time_ms.left_out
    own = [row.duration_ms for row in report.steps if row.rank == rank and row.step not in left_out]
    return sum(own) / len(own) if own else None


_LEAST_SAVED_MS = 0.01  # less is no saving
_MAY_WAIT = ("comm_wait_ms", "comm_unmatched_ms")  # of the undisturbed step
_MUCH = 0.2  # of a finding, or of what a step would take without it: the profiler's part of it
_LEAVE_THE_HOST = (INPUT_BOUND.id, BLOCKED_ON_DEVICE.id)  # what their cures leave may be the host's
_ALL = 0.95  # of what ranks wait: a cure saves it
_MOSTLY = 0.75  # of all waiting: whom ranks wait for


def verdict(report: Report) -> Headline:
    """What to act on first. Pure: says nothing that the report's own numbers do not hold.

    A hang comes before everything else. Then findings of severity warning or error, then a straggler that
    is only a remark. Where nobody could judge stragglers, waiting that takes `WAIT_INFO_PCT` of the step
    names the rank that causes most of it; where they were judged, waiting alone accuses nobody. Else a
    clean bill that names what nobody judged.
    """
    if hang_leads(report):
        assert report.hang is not None
        from traceops.report.hang_text import hang_level, hang_sentence

        others = sum(finding.rule not in hangs.BY_ID for finding in report.findings)
        more = f" {others} more finding{'s' if others > 1 else ''} below." if others else ""
        return Headline(hang_level(report.hang), f"{hang_sentence(report.hang)}{more}")
    lead = lead_finding(report)
    # Stages of a pipeline wait for each other without anybody being late.
    waiting = None if stragglers_judged(report) or report.pipelines else waiting_of(report)
    undisturbed = undisturbed_of(report)
    if undisturbed is not None and share_pct(undisturbed, *_MAY_WAIT) < WAIT_INFO_PCT:
        waiting = None  # it is the profiler's
    if lead is not None and lead.severity != "info":
        first = lead
        clause, covered = _lead(report, first)
        sentence = f"{clause} ({_label(first)})."
        others = len(report.findings) - covered
        if waiting and waiting.pct >= WAIT_WARNING_PCT:
            if waiting.rank in first.ranks and len(first.ranks) < len(report.ranks):
                sentence += _of_recorded(report, first, _others_wait(report, first.ranks))
            else:
                sentence += f" {waiting.sentence()}"
        elif first.rule not in STRAGGLERS:
            waits = _for_these(report, first) or _for_one_plain(report) or _mostly_for_one(report)
            sentence += _of_recorded(report, first, waits)
        sentence += _as_recorded(report, first) + _unlike_run(report, first)
        if first.rule == MISSING_RANKS.id and (unjudged := unjudged_sentence(report)):
            sentence += f" {unjudged}"
        if others:
            sentence += f" {others} more finding{'s' if others > 1 else ''} below."
        return Headline(first.severity, sentence)
    if lead is not None:
        rest = _as_recorded(report, lead) if undisturbed is not None else ""
        rest += f"{_unlike_run(report, lead)} {nothing_else(report)}"
        return Headline("info", f"{_lead(report, lead)[0]} ({_label(lead)}).{rest}")
    if waiting and waiting.pct >= WAIT_INFO_PCT:
        level: Level = "warning" if waiting.pct >= WAIT_WARNING_PCT else "info"
        return Headline(level, f"{waiting.sentence()} {nothing_else(report)}")
    return clean_bill(report)


def hang_leads(report: Report) -> bool:
    """Whether a hang's cause is what to act on first."""
    return report.hang is not None and bool(report.hang.roots)


def lead_finding(report: Report) -> Finding | None:
    """The finding that the verdict opens with: the first serious one, else a straggler; None in a clean bill."""
    if hang_leads(report):
        return None
    serious = next((f for f in report.findings if f.severity != "info"), None)
    return serious or next((f for f in report.findings if f.rule in STRAGGLERS), None)


def _label(finding: Finding) -> str:
    """'TO-S001, error', and the confidence where it is low."""
    return f"{finding.rule}, {finding.severity}{', low confidence' if finding.confidence == 'low' else ''}"


def _as_recorded(report: Report, first: Finding) -> str:
    """That the profiler made the steps much longer, where the sentence before speaks of such steps."""
    if (estimated := report.summary.recording_ms) is not None:
        return _as_estimated(report, first, estimated)
    plain = report.summary.stretched_from_ms
    if plain is None or first.rule == PROFILER_COST.id or is_unrecorded(first):
        return ""
    undisturbed, waits = undisturbed_of(report), ""
    if undisturbed is not None:
        plain = undisturbed.step_ms
        if first.rule in STRAGGLERS and share_pct(undisturbed, *_MAY_WAIT) < WAIT_INFO_PCT:
            waits = ", in which ranks hardly wait for each other"
    return f" The profiler stretches these steps: without it one takes {ms_text(plain)} ms{waits}."


def _as_estimated(report: Report, first: Finding, recording_ms: float) -> str:
    """How much of a finding, or of what is left of the step without its cause, recording may be, where that is much.

    Where more time is not judged for that than the finding is about, it is told as such. Beside missing ranks it is
    told anyway.
    """
    if first.rule == MISSING_RANKS.id:
        return ""
    unjudged = report.summary.unjudged
    if unjudged and unjudged[0].rule == HOST_BOUND.id and recording_ms > (first.impact_ms or 0.0):
        return f" {unjudged_sentence(report, with_cure=False)}".rstrip()
    if (own := evidence_ms(first, Fact.RECORDING_AT_MOST)) is not None:
        whole, most = lost_ms(first), own
    elif (cure := rule_cure(report, first)) is not None and first.rule in _LEAVE_THE_HOST:
        whole, most = cure.then_ms, recording_ms
    else:
        return ""
    return (
        f" Of the {ms_text(whole)} ms, up to {ms_text(most)} may be recording itself." if most >= _MUCH * whole else ""
    )


def _unlike_run(report: Report, first: Finding) -> str:
    family = family_of(first.rule)
    return unlike_run(report) if family is not None and family.of_recorded else ""


def is_unrecorded(finding: Finding) -> bool:
    """Whether it speaks of steps without the profiler."""
    family = family_of(finding.rule)
    of_run = family is not None and family.of_run
    return of_run or finding.proof(Fact.RECORDED) is not None


def _of_recorded(report: Report, first: Finding, waits: str) -> str:
    """A sentence about the recorded steps' waiting, beside a finding: it may be of steps without the profiler."""
    undisturbed, step = undisturbed_of(report), mean_of_ranks(report)
    if not waits or not is_unrecorded(first) or step is None or waits == _for_one_plain(report):
        return waits
    if undisturbed is not None and share_pct(undisturbed, *_MAY_WAIT) < WAIT_INFO_PCT:
        return ""
    said = waits.strip()
    return f" In the recorded steps of {ms_text(step)} ms, {said[0].lower()}{said[1:]}"


def _for_these(report: Report, first: Finding) -> str:
    """That the others wait for the ranks that a finding is about: several of them cause most of the waiting."""
    own = {rank for finding in late_together(report, first) for rank in finding.ranks}
    waits = [row.comm_wait_ms for row in report.ranks if row.rank not in own and row.comm_wait_ms is not None]
    caused = sum(row.late_share or 0.0 for row in report.ranks if row.rank in own)
    waiting = waiting_of(report)
    if len(own) < 2 or not waits or waiting is None or waiting.pct < WAIT_WARNING_PCT or caused < _MOSTLY:
        return ""
    who = "The other rank waits" if len(waits) == 1 else f"The other {len(waits)} ranks wait"
    return f" {who} {ms_text(statistics.median(waits))} ms {report.summary.step_words.per}, most of it for them."


def _mostly_for_one(report: Report) -> str:
    """Whom the ranks wait for, where one causes most of it and is no straggler: its cure would save little."""
    waiting = waiting_of(report)
    if waiting is None or waiting.rank is None or waiting.pct < WAIT_WARNING_PCT or not stragglers_judged(report):
        return ""
    row = next((row for row in report.what_if if row.ranks == (waiting.rank,)), None)
    if (waiting.share or 0.0) < _MOSTLY or row is None or None in (row.step_time_ms, row.predicted_step_time_ms):
        return ""
    saved = max((row.step_time_ms or 0.0) - (row.predicted_step_time_ms or 0.0), 0.0)
    words = report.summary.step_words
    waits = f" Ranks wait {ms_text(waiting.ms)} ms {words.per} for each other, most of it for rank {waiting.rank}"
    if undisturbed_of(report) is not None:
        return f"{waits}."  # what its cure saves where hosts are not slowed, the recorded steps do not tell
    if saved >= _ALL * waiting.ms:  # its cure saves what they wait, or more
        return f"{waits}; at its peers' pace {words.a} would be {ms_text(saved)} ms shorter."
    shorter = f"only {ms_text(saved)} ms shorter" if saved >= _LEAST_SAVED_MS else "no shorter"
    return f"{waits}, but at its peers' pace {words.a} would be {shorter}."


def _for_one_plain(report: Report) -> str:
    """Whom the ranks wait for without the profiler, as its own finding below says."""
    late = [one for one in report.findings if one.rule in STRAGGLERS and one.severity != "info"]
    cure = straggler_cure(report, late[0]) if len(late) == 1 else None
    if cure is None or not is_unrecorded(late[0]):
        return ""
    words, step = report.summary.step_words, f"{ms_text(cure.now_ms)} ms"
    return (
        f" Rank {late[0].ranks[0]} makes the others wait: at its peers' pace {words.a} would take "
        f"{ms_text(cure.then_ms)} instead of {step}."
    )


def _others_wait(report: Report, blamed: Sequence[int]) -> str:
    """What the ranks that are not to blame wait, median over them."""
    waits = {row.rank: row.comm_wait_ms for row in report.ranks if row.rank not in blamed}
    known = [ms for ms in waits.values() if ms is not None]
    if not known:
        return ""
    who = f"Rank {next(iter(waits))} waits" if len(waits) == 1 else "The others wait"
    return f" {who} {ms_text(statistics.median(known))} ms {report.summary.step_words.per} in collectives."


def _lead(report: Report, finding: Finding) -> tuple[str, int]:
    """The finding in one clause, and how many findings that clause covers.

    A rule without a clause of its own speaks through its message.
    """
    if finding.rule in STRAGGLERS:
        return straggler_clause(report, finding)
    if finding.rule == SLOW_GROUP.id:
        return group_clause(report, finding)
    missing = report.run.missing
    if finding.rule == MISSING_RANKS.id and missing and finding.cause is None:
        world = report.run.world_size
        count = ranks_in(missing)
        verb = "ranks has" if count == 1 else "ranks have"
        some_unused = any(other.proof(Fact.NOT_USED) for other in report.findings)
        return (
            f"{count} of {world} {verb} no {'usable ' * some_unused}trace ({runs_text(missing, 4)}), so nothing is "
            f"known of {'it' if count == 1 else 'them'}",
            1,
        )
    rule = rule_of(finding.rule)
    loses = rule.loses if rule else None
    if finding.impact_ms is None or not finding.ranks or loses is None:
        return finding.message.rstrip(".") if finding.headline is UNSET else finding.headline, 1
    one, several = loses
    who, verb = who_text(finding.ranks, len(report.ranks)), one if len(finding.ranks) == 1 else several
    lost, cure, words = lost_ms(finding), rule_cure(report, finding), report.summary.step_words
    clause = f"{who} {verb} {ms_text(lost)} ms{_of_step(lost, measured_step(report, finding), words)}"
    if rule is HOST_BOUND and (held := held_mostly(finding, lost)):
        clause += f", {ms_text(float(held.value or 0))} ms of it in {held.subject}"
    if cure is None:
        return clause, 1
    return f"{clause}; {cure.how} {words.a} would take {ms_text(cure.then_ms)} ms ({cure.pct:.0f} % less)", 1


def _of_step(lost_ms: float, step_ms: float | None, words: StepWords) -> str:
    """' of each 54.9 ms step', unless the cost is not known to be a part of that step."""
    whole = None if step_ms is None or lost_ms > step_ms else words.each_of(f"{ms_text(step_ms)} ms")
    return f" {words.per}" if whole is None else f" of {whole}"
