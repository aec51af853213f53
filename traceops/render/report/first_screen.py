"""What a reader sees first: where, why, what to do, how sure, what it costs, and the steps that prove it.

Nothing is said here that the findings, their evidence and the replay do not say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import UNSET

from traceops.core.findings import Check, Evidence, Finding, count_checks
from traceops.core.rank_text import first_steps_text, ranks_text, who_first
from traceops.core.short_text import short_name
from traceops.core.step_words import StepWords
from traceops.core.units import ms_text, percent_text
from traceops.render.answer import Cost
from traceops.render.document import Answer, Block, Fold, Span, Text, code, fold, items, soft, spans, text
from traceops.render.report.aligned import aligned_steps, caption
from traceops.render.report.cures import cure_of
from traceops.render.report.stragglers import (
    STRAGGLERS,
    Cure,
    late_together,
    mean_of_ranks,
    out_of_step,
    place_text,
    who_text,
    words_of,
)
from traceops.render.report.undisturbed import undisturbed_of
from traceops.render.report.verdict import hang_leads, is_unrecorded, lead_finding
from traceops.render.sure import SURE
from traceops.report.model import Report
from traceops.rules.explained import explains
from traceops.rules.slow_group import SLOW_GROUP, clause_of

_GREW = 0.1  # of what the cure saves: evidence that grew by less is no reason
_MOST_GREW = 2
_SAME = 0.05  # of a gain: how far two rules may differ that are about one thing
_MOST_ADVICE = 400  # characters, in whole sentences
_MOST_REASONS = 12


def first_screen(report: Report) -> tuple[Block, ...]:
    """The blocks between the verdict and the sections."""
    lead = lead_finding(report)
    blocks: list[Block] = [_answer(report, lead)]
    steps = None if hang_leads(report) else aligned_steps(report, lead)
    if steps is not None:
        blocks += [steps, soft(caption(report, steps))]
    return (*blocks, *_folded(report, lead))


def finding_id(report: Report, finding: Finding) -> str:
    """Where links find a finding of this report."""
    return f"finding-{report.findings.index(finding) + 1}"


def _answer(report: Report, lead: Finding | None) -> Answer:
    if hang_leads(report):
        return _of_hang(report)
    if lead is None:
        return _of_clean_bill(report)
    together = late_together(report, lead)
    cure = cure_of(report, lead)
    lines: list[tuple[str, tuple[Block, ...]]] = []
    if where := _where(report, together):
        lines.append(("Where", (text(where),)))
    lines.append(("Why", _why(together, report.summary.step_words)))
    if advice := _advice(lead):
        lines.append(("Do", (text(advice),)))
    lines.append(("How sure", (text(_how_sure(report, lead, cure)),)))
    lines.append(("Proof", (text(Span(f"{lead.rule} and its evidence", href=f"#{finding_id(report, lead)}")),)))
    return Answer(tuple(lines), _costs(cure, report.summary.step_words), _rests_on(report, cure, is_unrecorded(lead)))


def _where(report: Report, together: Sequence[Finding]) -> str:
    """'Rank 1 on node-3, in step 4', 'All 4 ranks'."""
    ranks = sorted({rank for finding in together for rank in finding.ranks})
    if not ranks:
        return ""
    said = who_text(ranks, len(report.ranks))
    place = place_text(report, ranks)
    if 4 < len(ranks) < len(report.ranks):
        said += f": {ranks_text(ranks, 6, counted=False)}"
    if place:
        said += f", {place}"
    hosts = list(dict.fromkeys(row.host for row in report.ranks if row.rank in set(ranks) and row.host))
    if not place and len(ranks) < len(report.ranks) and 1 <= len(hosts) <= 2:
        said += f" on {' and '.join(host[:40] for host in hosts)}"
    steps, known = set(together[0].steps), set(report.run.steps)
    if len(together) == 1 and steps and known and steps != known:
        own = first_steps_text(sorted(steps), 6)
        of = f" of {ranks_text(sorted(known), 4)}" if steps < known else ""
        said += f", in step{'s' if len(steps) > 1 else ''} {own}{of}"
    elif len(together) == 1 and steps and len(steps) > 1:
        said += f", in all {len(steps)} steps"
    return said


def _why(together: Sequence[Finding], step: StepWords) -> tuple[Block, ...]:
    """The cause in words, what grew, and the line of code where it is known."""
    if together[0].rule not in (*STRAGGLERS, SLOW_GROUP.id):
        return (text(together[0].message), *_lines_of_code(together[0]))
    blocks: list[Block] = []
    for finding in together[:3]:
        group = finding.rule == SLOW_GROUP.id
        clause = clause_of(finding) if group else words_of(finding).clause
        whose = f"{who_first(finding.ranks, 4)}: " if len(together) > 1 and finding.ranks else ""
        clause = clause if whose else clause[:1].upper() + clause[1:]
        grew = [_grew_text(one, step) for one in _grew(finding)]
        said = f"{whose}{clause}{': ' + '; '.join(grew) if grew else ''}."
        blocks += [text(said), *_lines_of_code(finding)]
    return tuple(blocks)


def _grew(finding: Finding) -> list[Evidence]:
    """What took longer than on the peers by a good part of what the cure saves."""
    least = _GREW * (finding.impact_ms or 0.0)
    known = [e for e in finding.evidence if e.grown is not UNSET and isinstance(e.value, (int, float))]
    return [e for e in known if float(e.value or 0.0) - (e.peers or 0.0) > least][:_MOST_GREW]


def _grew_text(one: Evidence, step: StepWords) -> str:
    name = short_name(str(one.grown), 60)
    spent = f"{name} takes {ms_text(float(one.value or 0.0))} ms {step.per}"
    if one.peers is None:
        return spent
    return f"{spent}, on its peers {ms_text(one.peers) + ' ms' if one.peers else 'none'}"


def _lines_of_code(finding: Finding) -> list[Text]:
    """Quoted lines: 'train.py:41' and the line itself."""
    return [
        text(Span(f"{(e.file or '').rpartition('/')[2]}:{e.line}  ", "soft", title=e.file or ""), code(str(e.value)))
        for e in finding.evidence
        if e.metric == "line" and e.file is not None
    ][:2]


def _advice(finding: Finding) -> str:
    kept = ""
    for sentence in finding.advice.split(". "):
        if kept and len(kept) + len(sentence) > _MOST_ADVICE:
            break
        kept += sentence if sentence.endswith(".") else f"{sentence}. "
    return kept.strip()


def _how_sure(report: Report, finding: Finding, cure: Cure | None) -> str:
    """The confidence in words, and what it rests on."""
    told = []
    late, chance = (_evidence(finding, metric) for metric in ("late steps", "chance"))
    if late is not None and isinstance(late.value, str):
        told.append(f"late in {late.value} steps")
    if chance is not None and isinstance(chance.value, (int, float)) and chance.value <= (chance.threshold or 0.0):
        told.append(f"by luck alone this would be seen in {percent_text(100 * chance.value)} of cases")
    error = report.summary.replay.error_pct if report.summary.replay is not None else None
    if error is not None and cure is not None and finding.rule in (*STRAGGLERS, SLOW_GROUP.id):
        told.append(f"the replay is within {percent_text(error)} of what was measured")
    sure = SURE[finding.confidence]
    return f"{sure}. {told[0][:1].upper()}{'; '.join(told)[1:]}." if told else f"{sure}."


def _evidence(finding: Finding, metric: str) -> Evidence | None:
    return next((e for e in finding.evidence if e.metric == metric), None)


def _costs(cure: Cure | None, words: StepWords) -> tuple[Cost, ...]:
    """Two bars: a step (or window) now and with the cause gone."""
    if cure is None or cure.now_ms <= 0:
        return ()
    unit = "A late step" if cure.late else words.a.capitalize()
    now = Cost(f"{unit} now", cure.now_ms, f"{ms_text(cure.now_ms)} ms")
    least = cure.least_ms
    if least is None:
        less = f"{ms_text(cure.then_ms)} ms" + (f" ({cure.pct:.0f} % less)" if cure.pct >= 0.5 else "")
        return now, Cost(_when_fixed(cure), cure.then_ms, less, look="then")
    most = 100 * (cure.now_ms - least) / cure.now_ms
    said = f"{ms_text(least)} to {ms_text(cure.then_ms)} ms (at most {most:.0f} % less)"
    return now, Cost(_when_fixed(cure), cure.then_ms, said, least, "then")


def _when_fixed(cure: Cure) -> str:
    return f"Fixed, {cure.how}" if cure.how else "Fixed"


def _rests_on(report: Report, cure: Cure | None, unrecorded: bool) -> str:
    """What the bars are of: steps with the profiler or without, and what the second one is."""
    if cure is None:
        return ""
    said = "" if cure.how else "At most what it costs can be saved; how much is not predicted."
    plain = report.summary.stretched_from_ms
    if unrecorded:
        said += " Without the profiler."
    elif plain is not None:
        said += f" With the profiler; without it a step takes {ms_text(plain)} ms."
    return said.strip()


def _of_hang(report: Report) -> Answer:
    from traceops.render.hang.answer import hang_answer  # most reports have none

    assert report.hang is not None
    return hang_answer(report.hang, "#hang") or Answer(())


def _of_clean_bill(report: Report) -> Answer:
    counts, step, undisturbed = count_checks(report.checks), mean_of_ranks(report), undisturbed_of(report)
    step, words = step if undisturbed is None else undisturbed.step_ms, report.summary.step_words
    lines: list[tuple[str, tuple[Block, ...]]] = []
    tried = () if out_of_step(report) else report.what_if
    most = max(tried, key=lambda row: row.saved_pct or 0.0, default=None)
    if most is not None and most.predicted_step_time_ms is not None and (most.saved_pct or 0.0) >= 1:
        recorded = " as recorded" if report.summary.stretched_from_ms is not None else ""
        said = f"'{most.change}' would save most: {most.saved_pct:.0f} % of {words.the}{recorded}, by the replay."
        lines.append(("At best", (text(said, " ", Span("All changes", href="#what-if"), "."),)))
    judged = f"{counts.clear} rules are clear, {counts.fired} have a remark, "
    judged += f"{counts.not_evaluated} could not be judged."
    lines.append(("Checked", (text(judged),)))
    costs = () if step is None else (Cost(words.a.capitalize(), step, f"{ms_text(step)} ms"),)
    rests = _rests_on(report, Cure(step, step, "as it is"), undisturbed is not None) if step else ""
    return Answer(tuple(lines), costs, rests)


def _folded(report: Report, lead: Finding | None) -> list[Block]:
    """Consequences, other findings, and what nobody judged: a line each."""
    told = [] if lead is None else late_together(report, lead)
    others = [finding for finding in report.findings if finding not in told]
    caused = [finding for finding in others if any(explains(one, finding) for one in told)]
    same = [finding for finding in others if finding not in caused and _is_same(report, told, finding)]
    rest = [finding for finding in others if finding not in (*caused, *same)]
    folds = (
        (same, "The same, by another rule"),
        (caused, "Consequences"),
        (rest, "Other findings" if lead else "Remarks"),
    )
    blocks: list[Block] = [_findings_fold(report, found, name) for found, name in folds if found]
    unjudged = [check for check in report.checks if check.status == "not_evaluated" and check.unjudged is UNSET]
    if unjudged:
        blocks.append(_unjudged_fold(unjudged))
    return blocks


def _is_same(report: Report, told: Sequence[Finding], found: Finding) -> bool:
    """Whether a finding names the same few ranks as what is told, and the same gain."""
    ranks, lost = {rank for one in told for rank in one.ranks}, sum(one.impact_ms or 0.0 for one in told)
    if not ranks or len(ranks) == len(report.ranks) or set(found.ranks) != ranks or found.impact_ms is None:
        return False
    return found.severity != "info" and abs(found.impact_ms - lost) <= _SAME * lost


def _findings_fold(report: Report, found: Sequence[Finding], name: str) -> Fold:
    titles = "; ".join(dict.fromkeys(finding.title for finding in found))
    lines = [
        text(Span(finding.rule, href=f"#{finding_id(report, finding)}"), f" ({finding.severity}) ", finding.message)
        for finding in found
    ]
    return fold((f"{name} ({len(found)}): ", Span(titles[:200], "soft")), items(lines))


def _unjudged_fold(checks: Sequence[Check]) -> Fold:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for check in checks:
        by_reason[check.reason or "no reason was given"].append(check.rule)
    ordered = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
    lines = [text(*spans(f"{', '.join(rules)}: {reason}")) for reason, rules in ordered[:_MOST_REASONS]]
    if len(ordered) > _MOST_REASONS:
        lines.append(text(f"{len(ordered) - _MOST_REASONS} more reasons under ", Span("Checks", href="#checks"), "."))
    count = f"Not checked ({len(checks)} rule{'s' if len(checks) > 1 else ''}): "
    return fold((count, Span("why, rule by rule", "soft")), items(lines))
