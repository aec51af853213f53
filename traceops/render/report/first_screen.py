"""What a reader sees first: where, why, what to do, how sure, what it costs, and the steps that prove it.

Nothing is said here that the findings, their evidence and the replay do not say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import UNSET

from traceops.core.facts import Fact
from traceops.core.findings import Check, Evidence, Finding, count_checks
from traceops.core.rank_text import first_steps_text, ranks_text, who_first
from traceops.core.step_words import StepWords
from traceops.core.text import short_name
from traceops.core.units import ms_text, percent_text, us_text
from traceops.measure.ledger import BUCKETS
from traceops.render.answer import SURE, AlignedSteps, Cost, Mark, Piece, PieceKind, StepLane
from traceops.render.document import Answer, Block, Fold, Span, Text, code, fold, items, soft, spans, text
from traceops.render.report.cross_figures import thinned
from traceops.render.report.stragglers import (
    STRAGGLERS,
    Cure,
    because_of,
    late_together,
    mean_of_ranks,
    out_of_step,
    place_text,
    who_text,
)
from traceops.render.report.terms import TERMS
from traceops.render.report.then_text import unfit_note
from traceops.render.report.verdict import cure_of, hang_leads, is_unrecorded, lead_finding
from traceops.render.report.whole_run import undisturbed_of
from traceops.report.alike import alike_spent
from traceops.report.model import Report
from traceops.report.tables import TimelineRow
from traceops.rules.bandwidth import LOW_BANDWIDTH
from traceops.rules.explained import explains
from traceops.rules.slow_group import SLOW_GROUP

# The picture that proves the verdict: one step of the rank to blame, of one that waits, and of the others.


MOST_PIECES = 300  # of a lane; shorter runs join the kind that takes most of a cell
_MOST_BLAMED = 3  # ranks with a lane each; of more, one stands for all
_MOST_OTHERS = 3
_WAIT = "comm_wait"
_WORTH = 0.02  # of the step: time that is worth a mark
_JOINED = 0.03  # of the step: stretches less apart are one
_SHARE = 0.1  # of a kind's time: a stretch that is worth a mark
_MOST_MARKS = 6
_MOST_TEXT = 50  # characters below a mark: a page of 400 px holds no more
_DENSE = 0.5  # of a joined stretch, that the kind must take

Rows = Sequence[TimelineRow]


def aligned_steps(report: Report, lead: Finding | None) -> AlignedSteps | None:
    """The longest recorded step: a lane for each rank to blame, one victim, and one for each kind of the others.

    None where the tables hold no such step. Marks: what a blamed rank spends more time in than the victim, and the
    victim's longest waiting.
    """
    by_rank: dict[int, list[TimelineRow]] = defaultdict(list)
    for row in report.tables.timeline:
        by_rank[row.rank].append(row)
    if not by_rank:
        return None
    blamed = _blamed(report, lead, by_rank)
    end = max(row.start_ms + row.duration_ms for rows in by_rank.values() for row in rows)
    others = [rank for rank in by_rank if rank not in blamed]
    victim = _victim(others, by_rank, end) if blamed else None
    peer: Rows = by_rank[victim] if victim is not None else ()
    when = report.summary.step_words.choose("in this step", "in the window")
    found = None if lead is None else lead.proof(Fact.BUCKET)
    bucket = found.subject if found is not None and isinstance(found.subject, str) else None
    lanes = [
        _blamed_lane(_label(report, ranks, ranks[0]), by_rank[ranks[0]], victim, peer, bucket, end, when)
        for ranks in _groups(by_rank, blamed)
    ]
    if victim is not None:
        marks = _wait_marks(by_rank[victim], end, when)
        lanes.append(StepLane(f"rank {victim}\nwaits" if marks else f"rank {victim}", _pieces(by_rank[victim]), marks))
    rest = [rank for rank in others if rank != victim]
    for ranks, example in _kinds(by_rank, rest)[:_MOST_OTHERS]:
        marks = () if blamed else _wait_marks(by_rank[example], end, when)
        lanes.append(StepLane(_label(report, ranks, example), _pieces(by_rank[example]), marks))
    used = {piece.key for lane in lanes for piece in lane.pieces}
    kinds = tuple(PieceKind(key, term.label, term.colour) for key, term in TERMS.items() if key in used)
    return AlignedSteps("aligned", _said(report, lanes), tuple(lanes), end, kinds)


def caption(report: Report, steps: AlignedSteps) -> str:
    """Which step it is, how well the clocks agree, and who is not shown."""
    step = report.tables.timeline[0].step
    several = len({row.step for row in report.steps if row.step is not None}) > 1
    said = "The window" if step is None else f"Step {step}{', the longest that was recorded' if several else ''}"
    clocks = report.summary.clocks
    if len(steps.lanes) > 1 and clocks is not None and clocks.residual_p95_us is not None:
        said += f", on one clock (within {us_text(clocks.residual_p95_us)})"
    drawn = len({row.rank for row in report.tables.timeline})
    if drawn < len(report.ranks):
        said += f". Of {len(report.ranks)} ranks, {drawn} have a row here"
    return f"{said}."


def _said(report: Report, lanes: Sequence[StepLane]) -> str:
    """For those who cannot see it."""
    step = report.tables.timeline[0].step
    told = [f"{lane.label}: {', '.join(mark.text for mark in lane.marks if mark.text)}" for lane in lanes if lane.marks]
    named = "; ".join(one.replace("\n", " ") for one in told) or f"{len(lanes)} rows"
    return f"{'The window' if step is None else f'Step {step}'} on one time axis in ms. {named}"


def _blamed(report: Report, lead: Finding | None, by_rank: Mapping[int, Rows]) -> list[int]:
    """The ranks that the verdict accuses; none where it speaks of all of them."""
    if lead is None:
        return []
    together = late_together(report, lead)
    ranks = sorted({rank for finding in together for rank in finding.ranks if rank in by_rank})
    return ranks if len(ranks) < len(report.ranks) else []


def _groups(by_rank: Mapping[int, Rows], blamed: Sequence[int]) -> list[tuple[int, ...]]:
    """Lanes of the blamed ranks: one each, or one for a kind of them."""
    if len(blamed) <= _MOST_BLAMED:
        return [(rank,) for rank in blamed]
    return [(example, *(rank for rank in ranks if rank != example)) for ranks, example in _kinds(by_rank, blamed)][
        :_MOST_BLAMED
    ]


def _kinds(by_rank: Mapping[int, Rows], ranks: Collection[int]) -> list[tuple[tuple[int, ...], int]]:
    """(ranks that are alike in this very step, the one that stands for them), the largest kind first."""
    spent = {rank: [_time(by_rank[rank], bucket) for bucket in BUCKETS] for rank in sorted(ranks)}
    return [(kind.ranks, kind.example) for kind in alike_spent(spent)]


def _victim(others: Iterable[int], by_rank: Mapping[int, Rows], end: float) -> int | None:
    """The rank that waits most in this step."""
    waits = {rank: _time(by_rank[rank], _WAIT) for rank in others}
    worst = max(waits, key=lambda rank: (waits[rank], -rank), default=None)
    return worst if worst is not None and waits[worst] >= _WORTH * end else None


def _blamed_lane(
    label: str, own: Rows, victim: int | None, peer: Rows, bucket: str | None, end: float, when: str
) -> StepLane:
    """Marked: the bucket that the finding is about, else that in which the rank spends most more than the victim."""
    more = {name: _time(own, name) - _time(peer, name) for name in BUCKETS if name != _WAIT}
    chosen = bucket if bucket in more else max(more, key=lambda name: more[name])
    if more[chosen] < _WORTH * end:
        return StepLane(label, _pieces(own), (), True)
    peers = _time(peer, chosen)
    beside = "" if victim is None else f" (rank {victim}: {f'{ms_text(peers)} ms' if peers else 'none'})"
    said = f"{TERMS[chosen].label}: {ms_text(_time(own, chosen))} ms"
    whole = f"{said} {when}{beside}"
    said = whole if len(whole) <= _MOST_TEXT else f"{said}{beside}"  # the caption tells the step
    return StepLane(label, _pieces(own), _marks(own, chosen, said, end), True)


def _wait_marks(rows: Rows, end: float, when: str) -> tuple[Mark, ...]:
    waits = _time(rows, _WAIT)
    if waits < _WORTH * end:
        return ()
    return _marks(rows, _WAIT, f"waits {ms_text(waits)} ms {when}", end)


def _marks(rows: Rows, kind: str, said: str, end: float) -> tuple[Mark, ...]:
    """The stretches that hold most of a kind; the largest has the words."""
    found = dense_stretches(rows, kind, end)
    worth = [one for one in found if one[2] >= _SHARE * _time(rows, kind)][:_MOST_MARKS]
    return tuple(
        Mark(start, stop, "" if place else said, TERMS[kind].colour) for place, (start, stop, _) in enumerate(worth)
    )


def dense_stretches(rows: Rows, kind: str, end: float) -> list[tuple[float, float, float]]:
    """(from, to, ms of the kind) of each stretch with a kind, the most first.

    Runs less than 3 % of the step apart are one stretch, as long as half of it is of that kind.
    """
    found: list[tuple[float, float, float]] = []
    for row in sorted((row for row in rows if row.kind == kind), key=lambda row: row.start_ms):
        stop = row.start_ms + row.duration_ms
        if found:
            begun, ended, spent = found[-1][0], found[-1][1], found[-1][2] + row.duration_ms
            if row.start_ms - ended <= _JOINED * end and spent >= _DENSE * (stop - begun):
                found[-1] = (begun, stop, spent)
                continue
        found.append((row.start_ms, stop, row.duration_ms))
    return sorted(found, key=lambda one: -one[2])


def _pieces(rows: Rows) -> tuple[Piece, ...]:
    ordered = sorted(rows, key=lambda row: row.start_ms)
    return tuple(Piece(row.kind, row.start_ms, row.duration_ms) for row in thinned(ordered, MOST_PIECES))


def _label(report: Report, ranks: Sequence[int], example: int) -> str:
    """'rank 3', 'ranks 0, 2: alike', 'rank 0 and 190 alike', 'both ranks: alike'."""
    if len(ranks) == 1:
        return f"rank {example}"
    if len(ranks) == len(report.ranks):
        return "both ranks:\nalike" if len(ranks) == 2 else f"all {len(ranks)} ranks:\nalike"
    if len(ranks) < 4:
        return f"ranks {ranks_text(ranks, 2)}:\nalike"
    return f"rank {example} and\n{len(ranks) - 1} alike"


def _time(rows: Rows, kind: str) -> float:
    return sum(row.duration_ms for row in rows if row.kind == kind)


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
    if together[0].rule not in (*STRAGGLERS, SLOW_GROUP.id) or not because_of(together[0]):
        return (text(together[0].message), *_lines_of_code(together[0]))
    blocks: list[Block] = []
    for finding in together[:3]:
        clause = because_of(finding)
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
        if e.fact is Fact.LINE and e.file is not None
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
    late, chance = finding.proof(Fact.LATE_STEPS), finding.proof(Fact.CHANCE)
    if late is not None and isinstance(late.value, str):
        told.append(f"late in {late.value} steps")
    if chance is not None and isinstance(chance.value, (int, float)) and chance.value <= (chance.threshold or 0.0):
        told.append(f"by luck alone this would be seen in {percent_text(100 * chance.value)} of cases")
    error = report.summary.replay.error_pct if report.summary.replay is not None else None
    if error is not None and cure is not None and finding.rule in (*STRAGGLERS, SLOW_GROUP.id):
        told.append(f"the replay is within {percent_text(error)} of what was measured")
    compares = finding.rule in (*STRAGGLERS, SLOW_GROUP.id, LOW_BANDWIDTH.id)
    unfit = unfit_note(report) if compares else ""
    if unfit:
        told.insert(0, unfit)
    sure = SURE["low" if unfit else finding.confidence]
    return f"{sure}. {told[0][:1].upper()}{'; '.join(told)[1:]}." if told else f"{sure}."


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
