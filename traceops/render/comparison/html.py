"""compare.html: a Comparison as a document, and that as one self-contained page that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from traceops.compare.model import Comparison, Explanation, MetricChange, metric_of
from traceops.core.findings import Finding
from traceops.render.answer import Cost
from traceops.render.cells import Cell
from traceops.render.comparison import figures, method_text, tables, text
from traceops.render.document import (
    Answer,
    Block,
    Chart,
    Document,
    Facts,
    Heading,
    Headline,
    Section,
    Span,
    TableBlock,
    Term,
    Terms,
    bold,
    code,
    fold,
    items,
    soft,
    spans,
)
from traceops.render.document import text as paragraph
from traceops.render.finding_blocks import checks_block, finding_block
from traceops.render.page import word
from traceops.render.writers.html import write_html

_MOST_REASONS = 2
_MOST_LABEL = 40
_MOST_FINDINGS = 50  # of new ones, and of those that are gone
_MOST_NAME = 500  # characters of a change that an explanation rests on
_INTERVALS = (
    "A bar is the interval of one metric by itself; whether noise could do it is judged over all of them together. A "
    "red tick is where a change for the worse fails. Parts of the step are in percent of the step."
)
_WATERFALL = (
    "Where a profiled step goes: from base to head, one part of the step at a time. The axis does not begin at 0."
)
_CHANGES = (
    "Counts and milliseconds of one step, mean over ranks. Times of kernels on several streams add up to more than "
    "the step."
)


def render_comparison_html(comparison: Comparison, *, plotlyjs: str = "none") -> bytes:
    """The page in UTF-8. `plotlyjs`: as `write_html` takes it.

    Everything that came from a trace is escaped, and a content security policy admits the page's own
    scripts only. Raises ValueError for another `plotlyjs`.
    """
    return write_html(describe(comparison), plotlyjs=plotlyjs)


def describe(comparison: Comparison) -> Document:
    """A comparison as a document: the verdict, facts, and a section for each thing there is to say."""
    base, head = text.side_names(comparison)
    made = (
        _metrics(comparison),
        _why(comparison),
        _changes(comparison),
        _findings(comparison),
        _steps(comparison),
        _method(comparison),
    )
    return Document(
        title=f"{base} → {head}",
        heading=spans(Span(base, "name"), " → ", Span(head, "name")),
        command="traceops compare",
        verdict=Headline(text.VERDICT_LEVEL[comparison.verdict], comparison.sentence),
        intro=tuple(_intro(comparison)),
        sections=tuple(section for section in made if section is not None),
        footer="all numbers are in compare.json, compare_metrics.csv and compare_changes.csv beside this page",
        styles=("summary.css", "compare.css"),
    )


def _intro(comparison: Comparison) -> list[Block]:
    blocks: list[Block] = []
    if comparison.refusals:
        lines = [paragraph(bold("Compared although they differ:"), f" {why}") for why in comparison.refusals]
        blocks.append(items(lines, "refusals"))
    if (answer := _answer(comparison)) is not None:
        blocks.append(answer)
    blocks.append(Facts(tuple(_facts(comparison))))
    if comparison.warnings:
        blocks.append(items(comparison.warnings, "notes"))
    return blocks


def _answer(comparison: Comparison) -> Answer | None:
    """Both step times as bars, why they differ, and how sure that is; None where the step of a side is not known."""
    step = metric_of(comparison.metrics, "step_time")
    if step is None or step.base is None or step.head is None:
        return None
    lines: list[tuple[str, tuple[Block, ...]]] = []
    same_way = [one for one in comparison.explanations if one.ms * (step.change or 0.0) > 0]
    if same_way and _moved(step):  # what noise could have done has no reason
        said = tuple(paragraph(text.sentence_of(one.text)) for one in same_way[:_MOST_REASONS])
        lines.append(("Why", said))
    told = [
        f"{change.name}: {change.base_value or 'not set'} → {change.head_value or 'not set'}"
        for change in comparison.changes
        if change.kind == "environment"
    ]
    if told:
        more = f"; {len(told) - _MOST_REASONS} more" if len(told) > _MOST_REASONS else ""
        lines.append(("Differs", (paragraph(f"{'; '.join(told[:_MOST_REASONS])}{more}."),)))
    sure = f"{text.outcome_text(step)[:1].upper()}{text.outcome_text(step)[1:]}"
    lines.append(("How sure", (paragraph(f"{sure}{f': {step.reason}' if step.reason else ''}."),)))
    base, head = text.side_names(comparison)
    return Answer(
        tuple(lines),
        (
            Cost(base[:_MOST_LABEL], step.base, text.base_text(step)),
            Cost(head[:_MOST_LABEL], step.head, f"{text.head_text(step)} ({text.effect_text(step)})", look=_look(step)),
        ),
    )


def _moved(step: MetricChange) -> bool:
    """Whether the step time changed, as far as was judged; with too few steps, whether it looks so."""
    if step.outcome in ("regression", "improvement", "waived"):
        return True
    return step.p is None and abs(step.change_pct or 0.0) >= (step.threshold_pct or 0.0) > 0


def _look(step: MetricChange) -> Literal["now", "then", "worse"]:
    """Red where it is slower, green where it is faster, as far as it moved."""
    if not _moved(step):
        return "now"
    return "worse" if (step.change_pct or 0.0) > 0 else "then"


def _metrics(comparison: Comparison) -> Section:
    blocks: list[Block] = []
    if (figure := figures.interval_figure(comparison)) is not None:
        label = (
            "Dots with bars: each metric's change in percent and its interval, with the limit marked; the table below "
            "has the numbers"
        )
        blocks += [soft(_INTERVALS), Chart("intervals", label, figure)]
    return Section("metrics", "Metrics", (*blocks, TableBlock(tables.metrics_table(comparison))))


def _why(comparison: Comparison) -> Section | None:
    """The explanations, then the ledger of both sides; None without either."""
    blocks: list[Block] = []
    if comparison.explanations:
        blocks.append(items([_explanation(e) for e in comparison.explanations], "reasons", ordered=True))
    ledger = tables.ledger_table(comparison)
    if ledger is not None:
        if (figure := figures.waterfall_figure(comparison)) is not None:
            label = (
                "Waterfall: what each part of the step adds or takes from base to head, ms; the table below has the "
                "numbers"
            )
            blocks += [soft(_WATERFALL), Chart("waterfall", label, figure)]
        blocks.append(TableBlock(ledger))
    return Section("why", "Why", tuple(blocks)) if blocks else None


def _explanation(reason: Explanation) -> list[Block]:
    """What it costs, the sentence, and folded what it rests on."""
    cost = Span(text.cost_text(reason), "cost slower" if reason.ms > 0 else "cost faster")
    blocks: list[Block] = [paragraph(cost, " " if cost.text else "", reason.text)]
    evidence = tables.evidence_table(reason.evidence)
    changes = [
        code(f"{change.status}: {text.change_name(change)}"[:_MOST_NAME])
        for change in reason.changes[: tables.MOST_EVIDENCE]
    ]
    rests_on: list[Block] = [items(changes)] if changes else []
    if evidence is not None:
        rests_on.append(TableBlock(evidence, "narrow"))
    return [*blocks, fold("What this rests on", *rests_on)] if rests_on else blocks


def _changes(comparison: Comparison) -> Section | None:
    made = [tables.changes_table(comparison, kind) for kind in text.KINDS]
    known = [TableBlock(table) for table in made if table is not None]
    return Section("changes", "What changed", (soft(_CHANGES), *known)) if known else None


def _findings(comparison: Comparison) -> Section:
    new = [*comparison.findings, *comparison.new_findings]
    blocks = _finding_blocks(new)
    if len(new) > _MOST_FINDINGS:
        blocks.append(soft(f"{len(new) - _MOST_FINDINGS} more in compare.json."))
    if not new:
        blocks.append(paragraph("Nothing regressed, and head's report finds nothing that base's does not."))
    if comparison.gone_findings:
        blocks += [Heading("Gone since base"), *_finding_blocks(comparison.gone_findings)]
    return Section("findings", "Findings", tuple(blocks))


def _finding_blocks(findings: Sequence[Finding]) -> list[Block]:
    return [finding_block(finding) for finding in findings[:_MOST_FINDINGS]]


def _steps(comparison: Comparison) -> Section | None:
    blocks: list[Block] = []
    if (figure := figures.steps_figure(comparison)) is not None:
        label = "Dots: duration of every step of every capture, ms, base and head in their colours"
        blocks.append(soft("A dot a step, a column a capture, from left to right as they were taken."))
        blocks.append(Chart("steps", label, figure))
    if (outliers := tables.outliers_table(comparison)) is not None:
        blocks.append(TableBlock(outliers, "narrow"))
    return Section("steps", "Steps", tuple(blocks)) if blocks else None


def _method(comparison: Comparison) -> Section:
    terms = tuple(Term(label, value) for label, value in method_text.method(comparison))
    blocks: list[Block] = [Terms(terms)]
    for heading, lines in (("Unchanged", comparison.unchanged), ("Notes", comparison.notes)):
        if lines:
            blocks += [Heading(heading), items(lines, "notes")]
    blocks += [
        TableBlock(tables.captures_table(side, name))
        for side, name in ((comparison.base, "base"), (comparison.head, "head"))
    ]
    if comparison.checks:
        blocks.append(checks_block(comparison.checks, "What each rule says"))
    return Section("method", "How it was compared", tuple(blocks))


def _facts(comparison: Comparison) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    base, head = comparison.base, comparison.head
    facts = [
        ("Base", word(method_text.commits_text(base) or text.side_name(base))),
        ("Head", word(method_text.commits_text(head) or text.side_name(head))),
        ("Captures", Cell(f"{len(base.captures)} / {len(head.captures)}", "base / head")),
        ("Compared", Cell("pair by pair" if comparison.paired else "as two groups")),
        ("Confidence", Cell(f"{100 * comparison.confidence:g} %")),
    ]
    for label, key in (
        ("Ranks", "world_size"), ("Device", "device"), ("Backend", "backend"), ("Strategy", "strategy"),
        ("torch", "torch_version"), ("NCCL", "nccl_version"),
    ):  # fmt: skip
        facts.append((label, _both(base.run.get(key), head.run.get(key))))
    return facts


def _both(base: Any, head: Any) -> Cell:
    """One value where the sides agree, else both."""
    return word(head) if base == head else Cell(f"{word(base).text} → {word(head).text}", css="bad")
