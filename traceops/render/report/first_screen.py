"""What a reader sees first: where, why, what to do, how sure, what it costs, and the steps that prove it. Nothing is
said here that the findings, their evidence and the replay do not say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import UNSET

from traceops.core.claims import phrases
from traceops.core.facts import Fact
from traceops.core.findings import Check, Finding
from traceops.core.rank_text import ranks_text
from traceops.core.units import ms_text, us_text
from traceops.measure.ledger import BUCKETS
from traceops.render.document import (
    AlignedSteps,
    Answer,
    Block,
    Fold,
    Mark,
    Piece,
    PieceKind,
    Span,
    StepLane,
    fold,
    items,
    soft,
    text,
)
from traceops.render.report.card import card_answer
from traceops.render.report.cross_figures import thinned
from traceops.render.report.lead import hang_leads, late_together, lead_finding
from traceops.render.report.terms import TERMS, say
from traceops.report.detail import alike_spent
from traceops.report.model import Card, Report
from traceops.report.tables import TimelineRow
from traceops.rules.explained import explains

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
    """The longest recorded step: a lane for each rank to blame, one victim, and one for each kind of the others. None
    where the tables hold no such step. Marks: what a blamed rank spends more time in than the victim, and the victim's
    longest waiting."""
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
    lanes += _other_lanes(
        report, by_rank, [rank for rank in others if rank != victim], victim, blamed=bool(blamed), end=end, when=when
    )
    used = {piece.key for lane in lanes for piece in lane.pieces}
    kinds = tuple(PieceKind(key, term.label, term.colour) for key, term in TERMS.items() if key in used)
    return AlignedSteps("aligned", _said(report, lanes), tuple(lanes), end, kinds)


def _other_lanes(
    report: Report, by_rank: Mapping[int, Rows], rest: Sequence[int], victim: int | None, *, blamed: bool, end: float,
    when: str,
) -> list[StepLane]:  # fmt: skip
    """The victim, and one rank of each kind of the others; their waiting is marked where no rank is blamed for it."""
    lanes = []
    if victim is not None:
        marks = _wait_marks(by_rank[victim], end, when)
        lanes.append(StepLane(f"rank {victim}\nwaits" if marks else f"rank {victim}", _pieces(by_rank[victim]), marks))
    for ranks, example in _kinds(by_rank, rest)[:_MOST_OTHERS]:
        marks = () if blamed else _wait_marks(by_rank[example], end, when)
        lanes.append(StepLane(_label(report, ranks, example), _pieces(by_rank[example]), marks))
    return lanes


def caption(report: Report, steps: AlignedSteps) -> str:
    """Which step it is, how well the clocks agree, and who is not shown."""
    several = len({row.step for row in report.steps if row.step is not None}) > 1
    step, clocks = report.tables.timeline[0].step, report.summary.clocks
    residual = clocks.residual_p95_us if len(steps.lanes) > 1 and clocks is not None else None
    drawn = len({row.rank for row in report.tables.timeline})
    first, *rest = phrases(
        "page", "first_screen", "caption", whole=step is None, step=step, several=several,
        clock=None if residual is None else us_text(residual), drawn=drawn,
        ranks=len(report.ranks) if drawn < len(report.ranks) else None,
    )  # fmt: skip
    return " ".join((first, *rest))


def _said(report: Report, lanes: Sequence[StepLane]) -> str:
    """For those who cannot see it."""
    step = report.tables.timeline[0].step
    marked = [
        f"{lane.label}: {', '.join(mark.text for mark in lane.marks if mark.text)}" for lane in lanes if lane.marks
    ]
    named = "; ".join(one.replace("\n", " ") for one in marked) or f"{len(lanes)} rows"
    return say("first_screen", "label", when="The window" if step is None else f"Step {step}", named=named)


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
    sentence = f"{TERMS[chosen].label}: {ms_text(_time(own, chosen))} ms"
    whole = f"{sentence} {when}{beside}"
    sentence = whole if len(whole) <= _MOST_TEXT else f"{sentence}{beside}"  # the caption tells the step
    return StepLane(label, _pieces(own), _marks(own, chosen, sentence, end), True)


def _wait_marks(rows: Rows, end: float, when: str) -> tuple[Mark, ...]:
    if (waits := _time(rows, _WAIT)) < _WORTH * end:
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
    """(from, to, ms of the kind) of each stretch with a kind, the most first. Runs less than 3 % of the step apart are
    one stretch, as long as half of it is of that kind."""
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


_SAME = 0.05  # of a gain: how far two rules may differ that are about one thing
_MOST_REASONS = 12


def first_screen(report: Report, card: Card) -> tuple[Block, ...]:
    """The blocks between the card's headline and the sections."""
    lead = lead_finding(report)
    blocks: list[Block] = [answer_of(report, card)]
    steps = None if hang_leads(report) else aligned_steps(report, lead)
    if steps is not None:
        blocks += [steps, soft(caption(report, steps))]
    return (*blocks, *_folded(report, lead))


def finding_id(report: Report, finding: Finding) -> str:
    """Where links find a finding of this report."""
    return f"finding-{report.findings.index(finding) + 1}"


def answer_of(report: Report, card: Card) -> Answer:
    """The card below its headline; of a hang what its own page opens with."""
    if report.hang is not None and hang_leads(report):
        from traceops.render.hang.html import hang_answer

        return hang_answer(report.hang, "#hang") or Answer(())
    lead = lead_finding(report)
    return card_answer(card, "" if lead is None else f"#{finding_id(report, lead)}")


def _folded(report: Report, lead: Finding | None) -> list[Block]:
    """Consequences, other findings, and what nobody judged: a line each."""
    told = [] if lead is None else late_together(report, lead)
    others = [finding for finding in report.findings if finding not in told]
    caused = [finding for finding in others if any(explains(one, finding) for one in told)]
    same = [finding for finding in others if finding not in caused and _is_same(report, told, finding)]
    rest = [finding for finding in others if finding not in (*caused, *same)]
    folds = ((same, "same"), (caused, "caused"), (rest, "others" if lead else "remarks"))
    blocks: list[Block] = [_findings_fold(report, found, say("first_screen", key)) for found, key in folds if found]
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
        by_reason[check.reason or say("first_screen", "no_reason")].append(check.rule)
    ordered = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
    lines = [text(f"{', '.join(rules)}: {reason}") for reason, rules in ordered[:_MOST_REASONS]]
    if (more := len(ordered) - _MOST_REASONS) > 0:
        lines.append(text(say("first_screen", "more_reasons", more=more) + " ", Span("Checks", href="#checks"), "."))
    count = say("first_screen", "not_checked", count=len(checks))
    return fold((f"{count} ", Span(say("first_screen", "why"), "soft")), items(lines))
