"""Makes the card of a report from its lead finding, what fixing it saves, and what could be judged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET
from msgspec.structs import replace

from traceops.core.claims import Claim, first_phrase
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.text import short_name
from traceops.core.units import ms_text
from traceops.core.words import WINDOW
from traceops.hangs.json_types import HangJson
from traceops.render.document import Answer, Block, Cost, Headline, Level, Span, Style, Text, Words, text
from traceops.render.finding_blocks import unit_text, value_text
from traceops.render.report.compute import efficiency_of
from traceops.render.report.coverage import MOST_UNJUDGED_PCT, Unjudged, least_note, too_short, unfit_note, unjudged_of
from traceops.render.report.lead import (
    STRAGGLERS,
    WAIT_INFO_PCT,
    WAIT_WARNING_PCT,
    Cure,
    cure_of,
    hang_leads,
    headline_of,
    is_unrecorded,
    late_together,
    lead_finding,
    mean_of_ranks,
    nothing_timed,
    stragglers_judged,
    waiting_of,
)
from traceops.render.report.whole_run import share_pct, undisturbed_of, unlike_run
from traceops.report.model import Card, Report
from traceops.report.step_times import UndisturbedRows
from traceops.rules.compute import BOUNDS
from traceops.rules.registry import FAMILIES
from traceops.rules.stragglers import SLOW_GROUP
from traceops.rules.validity import KERNELS_MISSING
from traceops.words.catalogue import texts

LONGEST = 90  # characters of a headline
_MOST_ACTION = 120
_LEAST_CLAUSE = 20
_MOST_ACTIONS = 2
_MOST_UNCHECKED = 3  # groups of checks that a line names
_LEAST_SAVED_PCT = 0.5
_LEAST_JUDGED_PCT = 50.0  # of a step, below which it is not the absence of a problem that was found
_OF_SEVERAL = ("TO-S", "TO-B", "TO-O", "TO-C")  # checks of what ranks do together
_REPLAYED = (*STRAGGLERS, SLOW_GROUP.id)
_MAY_WAIT = ("comm_wait_ms", "comm_unmatched_ms")


class NoProblem(Claim, frozen=True, kw_only=True):
    """No rule fired above a remark. judged: percent of the step, where much was not. unrated, slow: its kernels.
    unjudged: percent of compute, where it is most of what was not judged."""

    family = "card"
    kind = "no_problem"
    judged: float | None = None
    compute: float | None = None
    efficiency: float | None = None
    unrated: bool = False
    slow: bool = False
    unjudged: float | None = None


class NothingTimed(Claim, frozen=True, kw_only=True):
    """No rule fired, and none could: a clean bill of no time is none. spans: a short window, ms."""

    family = "card"
    kind = "nothing_timed"
    spans: float | None = None


class WaitForEachOther(Claim, frozen=True, kw_only=True):
    """Ranks wait, and no rule could judge for which. rank: the one that causes most of it."""

    family = "card"
    kind = "wait_for_each_other"
    waiting: float
    rank: int | None = None


class LateTogether(Claim, frozen=True, kw_only=True):
    """Several ranks are late, each for a reason of its own."""

    family = "card"
    kind = "late_together"
    count: int
    of: int
    every: bool = False
    saved: float | None = None  # ms of the step, with all of them in time


def card_of(report: Report, hang: HangJson | None = None) -> Card:
    """What to act on first. hang: of a report that was read, as `Report.hang` is None there."""
    if report.hang is not None and hang_leads(report):
        from traceops.report.hang_json import hang_json  # most reports have none

        hang = hang_json(report.hang)
    if hang is not None and hang.roots:
        return _of_hang(report, hang)
    if told := told_first(report):
        return _of_finding(report, told)
    level, claim = without_finding(report)
    undisturbed = undisturbed_of(report)
    return Card(
        level=level, headline=shortened(claim.headline()),
        actions=(claim.part(f"do.{claim.do}"),) if isinstance(claim, Unjudged) else (),
        now_ms=mean_of_ranks(report) if undisturbed is None else undisturbed.step_ms, judged_pct=judged_pct(report),
        not_checked=not_checked(report), without_profiler=_without_profiler(report, undisturbed is not None),
        caveat=_caveat(report), window=report.summary.step_words is WINDOW,
    )  # fmt: skip


def told_first(report: Report) -> list[Finding]:
    """The findings that the card is about: one, or ranks that are late together; none where nothing serious fired."""
    if report.hang is not None and hang_leads(report):
        return [finding for finding in report.findings if finding.rule == report.hang.roots[0].rule][:1]
    lead = lead_finding(report)
    return [] if lead is None else late_together(report, lead)


def _caveat(report: Report) -> Literal["first_steps", "unlike_run"] | None:
    if report.summary.first_steps:
        return "first_steps"
    return "unlike_run" if unlike_run(report) else None


def _of_hang(report: Report, hang: HangJson) -> Card:
    root = hang.roots[0]
    found = next((finding for finding in report.findings if finding.rule == root.rule), None)
    proof = root.evidence[0] if root.evidence else None
    return Card(
        level=hang.level, headline=shortened(root.message if found is None else headline_of(found)),
        confidence=root.confidence, actions=() if found is None else actions_of(found.advice),
        proof="" if proof is None else _cut(f"{proof.what}: {proof.value}", _MOST_ACTION), rule=root.rule,
    )  # fmt: skip


def _without_profiler(report: Report, unrecorded: bool) -> bool | None:
    return True if unrecorded else None if report.summary.stretched_from_ms is None else False


def _of_finding(report: Report, told: Sequence[Finding]) -> Card:
    lead = told[0]
    cure, unfit = _cure(report, lead), bool(unfit_note(report))
    late = {rank for finding in told for rank in finding.ranks}
    window, of = report.summary.step_words is WINDOW, len(report.ranks)
    saved = None if cure is None or cure.least_ms is not None else cure.now_ms - cure.then_ms
    several = LateTogether(count=len(late), of=of, every=len(late) == of, saved=saved, window=window)
    worth = cure if cure is not None and cure.now_ms > 0 and _saved_pct(cure) >= _LEAST_SAVED_PCT else None
    # The step before and after a fix of kernels is one without the profiler.
    paced = lead.rule.startswith("TO-K") and report.summary.plain_ms is not None
    return Card(
        level=lead.severity, headline=shortened(several.headline() if len(told) > 1 else headline_of(lead)),
        now_ms=mean_of_ranks(report) if cure is None else cure.now_ms,
        fixed_ms=None if worth is None else worth.then_ms, fixed_least_ms=None if worth is None else worth.least_ms,
        saved_pct=None if worth is None else _saved_pct(worth), confidence="low" if unfit else lead.confidence,
        reason=first_phrase("card", "words", "unfit") if unfit else _reason(report, lead),
        actions=actions_of(lead.advice), judged_pct=None if lead.rule.startswith("TO-K") else judged_pct(report),
        not_checked=not_checked(report), proof=_proof(lead), rule=lead.rule,
        without_profiler=_without_profiler(report, is_unrecorded(lead) or paced),
        caveat=_caveat(report), window=window,
    )  # fmt: skip


def _cure(report: Report, lead: Finding) -> Cure | None:
    """What fixing it saves; where a hidden loader or host may hold the step up, the prediction is the best case."""
    cure = cure_of(report, lead)
    if cure is None or cure.least_ms is not None or lead.rule not in _REPLAYED or not least_note(report):
        return cure
    return replace(cure, then_ms=cure.now_ms, least_ms=cure.then_ms)


def _saved_pct(cure: Cure) -> float:
    return cure.pct if cure.least_ms is None else 100 * (cure.now_ms - cure.least_ms) / cure.now_ms


def without_finding(report: Report) -> tuple[Level, NoProblem | NothingTimed | WaitForEachOther | Unjudged]:
    """What is said where no rule fired above a remark."""
    waiting, undisturbed = waiting_of(report), undisturbed_of(report)
    window = report.summary.step_words is WINDOW
    calm = undisturbed is not None and share_pct(undisturbed, *_MAY_WAIT) < WAIT_INFO_PCT
    accused = not calm and not stragglers_judged(report) and not report.pipelines
    if accused and waiting is not None and waiting.pct >= WAIT_INFO_PCT:
        level: Level = "warning" if waiting.pct >= WAIT_WARNING_PCT else "info"
        return level, WaitForEachOther(waiting=waiting.ms, rank=waiting.rank, window=window)
    if (untimed := _untimed(report)) is not None:
        return "info", untimed
    found = _no_problem(report, undisturbed)
    little = found.judged is not None and found.judged < _LEAST_JUDGED_PCT
    if little and found.unjudged is None and (unknown := unjudged_of(report)) is not None:
        return "info", unknown
    waits = waiting is not None and not calm and waiting.pct >= WAIT_WARNING_PCT
    doubtful = found.judged is not None or waits or found.unrated or found.slow or _caveat(report) is not None
    return "info" if doubtful else "clear", found


def _untimed(report: Report) -> NothingTimed | None:
    if nothing_timed(report):
        return NothingTimed()
    return NothingTimed(spans=mean_of_ranks(report)) if too_short(report) else None


def _no_problem(report: Report, undisturbed: UndisturbedRows | None) -> NoProblem:
    judged, efficiency = judged_pct(report), efficiency_of(report)
    much = judged is not None and judged < 100 - MOST_UNJUDGED_PCT
    open_compute = judged is not None and judged < _LEAST_JUDGED_PCT and report.summary.unjudged[0].why == "unrated"
    compute = report.summary.ledger_pct.compute if undisturbed is None else share_pct(undisturbed, "compute_ms")
    return NoProblem(
        judged=judged if much else None, compute=compute, efficiency=efficiency,
        unjudged=compute if open_compute else None,
        unrated=efficiency is None and compute is not None and compute > MOST_UNJUDGED_PCT,
        slow=efficiency is not None and efficiency < BOUNDS.attainable_pct, window=report.summary.step_words is WINDOW,
    )  # fmt: skip


def judged_pct(report: Report) -> float | None:
    """Percent of the step that rules could judge, on the rank with least; None without a step or what runs in it."""
    unseen = any(
        found.rule == KERNELS_MISSING.id and len(found.ranks) == len(report.ranks) for found in report.findings
    )
    if unseen or _untimed(report) is not None or not any(row.duration_ms for row in report.steps):
        return None
    return max(100.0 - sum(one.pct for one in report.summary.unjudged), 0.0)


def not_checked(report: Report) -> tuple[str, ...]:
    """Groups of rules of which none could be judged; on one rank without those of several."""
    groups = []
    for family in FAMILIES:
        own = [check for check in report.checks if check.unjudged is UNSET and check.rule.startswith(family.prefix)]
        alone = report.run.world_size == 1 and family.prefix in _OF_SEVERAL
        if own and not alone and all(check.status == "not_evaluated" for check in own):
            groups.append(family.about)
    return tuple(groups)


def _reason(report: Report, lead: Finding) -> str:
    """'3 of 3 steps'."""
    late, known = lead.proof(Fact.LATE_STEPS), report.run.steps
    if late is not None and isinstance(late.value, str):
        return f"{late.value} steps"
    seen = set(lead.steps) & set(known)
    return f"{len(seen)} of {len(known)} steps" if seen else ""


def _proof(lead: Finding) -> str:
    """The time that grew most, the line that the host is in, or the first number."""
    grown = [one for one in lead.evidence if isinstance(one.grown, str) and isinstance(one.value, (int, float))]
    if grown:
        most = max(grown, key=lambda one: float(one.value or 0.0) - (one.peers or 0.0))
        return _grown_text(most, lead)
    line = next((f": {one.value}" for one in lead.evidence if one.fact is Fact.LINE), "")
    host = next((one for one in lead.evidence if one.fact is Fact.HOST_IN), None) if line else None
    first = host or next((one for one in lead.evidence if one.value is not None and one.file is None), None)
    if first is None:
        return ""
    sentence = f"{first.metric} {value_text(first)}{unit_text(first)}{line if host else ''}"
    return _cut(sentence, _MOST_ACTION)


def _grown_text(one: Evidence, lead: Finding) -> str:
    rank = one.rank if one.rank is not None else lead.ranks[0] if lead.ranks else None
    whose = "" if rank is None else f" on rank {rank}"
    others = "" if one.peers is None else f", {ms_text(one.peers) if one.peers else 0} on others"
    return f"{short_name(str(one.grown), 60)} {ms_text(float(one.value or 0.0))} ms{whose}{others}"


# Sentences made short.

_BRACKETS = re.compile(r"\s*\([^()]*\)")
_CLAUSE = re.compile(r"(?:[;:,]| that| which| while| with) ")
# How a sentence begins that gives a reason.
_STATES = re.compile(r"(The|A|An|It|Its|This|These|They|Each|All|[\w-]+'s)\s")
_SENTENCE = re.compile(r"(?<=[^.]\w)\. |(?<=[)%’”'\"])\. ")


def shortened(sentence: str) -> str:
    """The first sentence without brackets and full stop, cut at a clause, else at a word, where it is too long."""
    said = sentence
    while (plain := _BRACKETS.sub("", said)) != said:
        said = plain
    said = " ".join(_SENTENCE.split(said)[0].replace("(", "").replace(")", "").split()).rstrip(".")
    return _cut(said, LONGEST)


def actions_of(advice: str) -> tuple[str, ...]:
    """The first sentences of advice that say what to do, each cut where it is long; the finding has all of it."""
    sentences = [one.strip().rstrip(".") for one in _SENTENCE.split(advice) if one.strip()]
    orders = [one for one in sentences if not _STATES.match(one)] or sentences
    return tuple(_cut(one, _MOST_ACTION) for one in orders[:_MOST_ACTIONS])


def _cut(said: str, limit: int) -> str:
    if len(said) <= limit:
        return said
    clauses = [at for found in _CLAUSE.finditer(said[: limit + 2]) if (at := found.start()) >= _LEAST_CLAUSE]
    if whole := [at for at in clauses if said[:at].count("(") == said[:at].count(")")]:
        kept = said[: whole[-1]]
        head, colon, first = kept.rpartition(": ")
        return head if colon and "," not in first and said[len(kept)] == "," else kept  # one of several is no list
    return f"{said[: limit - 1].rpartition(' ')[0] or said[: limit - 1]}…"


# The card in blocks: a page's, and a terminal's lines.

_BAR = 16
_LABEL = 9


def headline(card: Card) -> Headline:
    """What a document opens with."""
    return Headline(card.level, f"{card.headline}.")


def judged_line(card: Card) -> str:
    """'Judged 58 % of the step · not checked: fabric, hangs'."""
    the = "window" if card.window else "step"
    every = len(card.not_checked)
    named = card.not_checked[: every if every == _MOST_UNCHECKED + 1 else _MOST_UNCHECKED]
    more = every - len(named)
    parts = [] if card.judged_pct is None else [f"Judged {card.judged_pct:.0f} % of the {the}"]
    if named:
        parts.append(f"not checked: {', '.join(named)}{f' and {more} more' if more > 0 else ''}")
    if card.without_profiler is not None and card.fixed_ms is not None:
        parts.append(f"times {'without' if card.without_profiler else 'with'} the profiler")
    if card.caveat is not None:
        parts.append(texts("card", "words")[f"caveat.{card.caveat}"])
    return (line := " · ".join(parts))[:1].upper() + line[1:]


def confidence_text(card: Card) -> str:
    """'high (3 of 3 steps)'."""
    return "" if card.confidence is None else f"{card.confidence}{f' ({card.reason})' if card.reason else ''}"


def fixed_text(card: Card) -> str:
    """'23.3 ms (57 % less)'; a range where only a bound is known."""
    if card.fixed_ms is None or card.saved_pct is None:
        return ""
    least = None if card.fixed_least_ms is None else ms_text(card.fixed_least_ms)
    saved = f"{'about ' if (card.rule or '').startswith('TO-K') else ''}{card.saved_pct:.0f}"  # by estimate
    return first_phrase("card", "words", "fixed", least=least, ms=ms_text(card.fixed_ms), saved=saved)


def costs_of(card: Card) -> tuple[Cost, ...]:
    """The two bars: now, and fixed."""
    if card.now_ms is None:
        return ()
    unit = "Window" if card.window else "Step"
    now = Cost(f"{unit} now" if card.fixed_ms is not None else unit, card.now_ms, f"{ms_text(card.now_ms)} ms")
    if card.fixed_ms is None:
        return (now,)
    return now, Cost("Fixed", card.fixed_ms, fixed_text(card), card.fixed_least_ms, "then")


def card_answer(card: Card, proof_at: str = "") -> Answer:
    """The card below the headline, on a page. proof_at: where links find its finding."""
    lines: list[tuple[str, tuple[Block, ...]]] = []
    if card.actions:
        lines.append(("Do", tuple(text(f"{action}.") for action in card.actions)))
    if card.confidence is not None:
        lines.append(("Confidence", (text(confidence_text(card)),)))
    if card.rule is not None:
        lines.append(("Proof", (text(card.proof + " " * bool(card.proof), Span(card.rule, href=proof_at)),)))
    if judged := judged_line(card):
        lines.append(("Coverage", (text(judged),)))
    return Answer(tuple(lines), costs_of(card))


def card_lines(card: Card) -> list[Text]:
    """The card on a terminal."""
    from traceops.render.writers.terminal import MARK

    lines = [text(f"{MARK[card.level]} {card.headline}.", look=f"level-{card.level}", indent=(0, 2))]
    actions = [text(f"{number}  {action}", indent=(2, 5)) for number, action in enumerate(card.actions, 1)]
    if card.rule is None:
        return lines + actions + ([text(said, look="soft", indent=(2, 2))] if (said := judged_line(card)) else [])
    sure = f"Confidence: {confidence_text(card)}"
    if card.fixed_ms is not None and card.now_ms:
        least = card.fixed_ms if card.fixed_least_ms is None else card.fixed_least_ms
        width = max(len(ms_text(card.now_ms)), len(ms_text(least)))
        now = _bar_line(card.now_ms, 1.0, width, Span("now".ljust(_LABEL)), "cost slower")
        fixed = _bar_line(least, least / card.now_ms, width, Span("fixed".ljust(_LABEL)), "cost faster")
        lines.append(text(*now, f"Fix it: {fixed_text(card)}", indent=(2, 4)))
        lines.append(text(*fixed, sure, indent=(2, 4)))
    else:
        lines.append(text(sure, indent=(2, 4)))
    lines += actions
    proof = "Proof: " + "  ".join(filter(None, (card.proof, card.rule)))
    return lines + [text(said, look="soft", indent=(0, 2)) for said in (judged_line(card), proof) if said]


def _bar_line(ms: float, part: float, width: int, label: Span, style: Style) -> tuple[Words, ...]:
    length = max(round(_BAR * part), 1)
    return f"{ms_text(ms):>{width}} ms ", Span("█" * length, style), " " * (_BAR - length + 1), label
