"""compare.html: a Comparison as a document, and that as one self-contained page that works offline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from traceops.compare.model import CaptureInfo, Change, Comparison, Explanation, MetricChange, OutlierStep, metric_of
from traceops.compare.sentence import headline
from traceops.core.findings import Evidence, Finding
from traceops.core.text import one_line
from traceops.core.units import UNKNOWN
from traceops.render import document
from traceops.render.cells import Cell, Table, name, table_of, word
from traceops.render.comparison import figures, text
from traceops.render.comparison.text import WORDS, say
from traceops.render.document import text as paragraph
from traceops.render.finding_blocks import checks_block, finding_block, unit_text
from traceops.render.report.figures import Figure
from traceops.render.report.terms import TERMS
from traceops.render.writers.html import write_html

MOST_CHANGES = 100  # of a kind
MOST_OUTLIERS = 100
MOST_CAPTURES = 200
MOST_EVIDENCE = 20  # of an explanation


def metrics_table(comparison: Comparison) -> Table:
    """A row a metric that is no bucket of the ledger, gated ones first."""
    metrics = [metric for metric in text.known(comparison.metrics) if not text.is_bucket(metric)]
    cells: dict[str, Callable[[MetricChange], Cell]] = {
        "label": lambda m: _plain(one_line(m.label, 120)),
        "base": lambda m: _plain(text.base_text(m)),
        "head": lambda m: _plain(text.head_text(m)),
        "change": lambda m: _plain(text.effect_text(m)),
        "limit": lambda m: Cell(text.threshold_text(m)),
        "mde_pct": lambda m: Cell("" if m.mde_pct is None else f"{m.mde_pct:.2g} %"),
        "p": lambda m: Cell("" if m.p is None else "<0.0001" if m.p < 1e-4 else f"{m.p:.2g}"),
        "samples": lambda m: Cell(f"{m.samples.base} / {m.samples.head}"),
        "outcome": _outcome_cell,
        "reason": lambda m: Cell(text.reason_text(m), css="word"),
    }
    return table_of("compare_metrics", metrics, make=cells, facts={"times": text.times_text(comparison.power)})


def _plain(said: str) -> Cell:
    return Cell(UNKNOWN, "not known", "unknown") if said == UNKNOWN else Cell(said)


def _outcome_cell(metric: MetricChange) -> Cell:
    mark = text.MARK[metric.outcome]
    gated = metric.threshold_pct is not None
    css = f"outcome {text.LEVEL[metric.outcome]}" if gated else "outcome"
    return Cell(f"{mark} {text.outcome_text(metric)}" if gated else text.outcome_text(metric), css=css)


def _optional_ms(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(text.amount(value, "ms"))


_MOST_REASONS = 2
_MOST_LABEL = 40
_MOST_FINDINGS = 50  # of new ones, and of those that are gone
_MOST_NAME = 500  # characters of a change that an explanation rests on


def render_comparison_html(comparison: Comparison, *, plotlyjs: str = "none") -> bytes:
    """The page in UTF-8. `plotlyjs`: as `write_html` takes it. Everything that came from a trace is escaped, and a
    content security policy admits the page's own scripts only. Raises ValueError for another `plotlyjs`."""
    return write_html(describe(comparison), plotlyjs=plotlyjs)


def describe(comparison: Comparison) -> document.Document:
    """A comparison as a document: the verdict, facts, and a section for each thing there is to say."""
    base, head = text.side_names(comparison)
    short, details = headline(comparison)
    intro: list[document.Block] = [paragraph(details)] if details else []
    if comparison.refusals:
        lines = [paragraph(document.bold(WORDS["refused"]), f" {why}") for why in comparison.refusals]
        intro.append(document.items(lines, "refusals"))
    if (answer := _answer(comparison)) is not None:
        intro.append(answer)
    intro.append(document.Facts(tuple(_facts(comparison))))
    if comparison.warnings:
        intro.append(document.items(comparison.warnings, "notes"))
    chart = _chart("intervals", figures.interval_figure(comparison))
    new = [*comparison.findings, *comparison.new_findings]
    blocks = _finding_blocks(new)
    if len(new) > _MOST_FINDINGS:
        blocks.append(document.soft(say("more_findings", more=len(new) - _MOST_FINDINGS)))
    if not new:
        blocks.append(paragraph(WORDS["no_findings"]))
    if comparison.gone_findings:
        blocks += [document.Heading("Gone since base"), *_finding_blocks(comparison.gone_findings)]
    made = (
        document.Section("metrics", "Metrics", (*chart, document.TableBlock(metrics_table(comparison)))),
        _why(comparison),
        _changes(comparison),
        document.Section("findings", "Findings", tuple(blocks)),
        _steps(comparison),
        _method(comparison),
    )
    return document.Document(
        title=f"{base} → {head}",
        heading=document.spans(document.Span(base, "name"), " → ", document.Span(head, "name")),
        command="traceops compare", verdict=document.Headline(text.VERDICT_LEVEL[comparison.verdict], short),
        intro=tuple(intro), sections=tuple(section for section in made if section is not None), footer=WORDS["footer"],
        styles=("summary.css", "compare.css"),
    )  # fmt: skip


def _answer(comparison: Comparison) -> document.Answer | None:
    """Both step times as bars, why they differ, and how sure that is; None where the step of a side is not known."""
    step = metric_of(comparison.metrics, "step_time")
    if step is None or step.base is None or step.head is None:
        return None
    lines: list[tuple[str, tuple[document.Block, ...]]] = []
    same_way = [one for one in comparison.explanations if one.ms * (step.change or 0.0) > 0]
    if same_way and _moved(step):  # what noise could have done has no reason
        sentences = tuple(paragraph(text.sentence_of(one.text)) for one in same_way[:_MOST_REASONS])
        lines.append(("Why", sentences))
    variables = [
        f"{change.name}: {change.base_value or 'not set'} → {change.head_value or 'not set'}"
        for change in comparison.changes
        if change.kind == "environment"
    ]
    if variables:
        more = max(len(variables) - _MOST_REASONS, 0)
        differs = say("environment", shown="; ".join(variables[:_MOST_REASONS]), more=more or None)
        lines.append(("Differs", (paragraph(differs),)))
    outcome = text.outcome_text(step)
    sure = say("sure", outcome=outcome[:1].upper() + outcome[1:], reason=step.reason)
    lines.append(("Confidence", (paragraph(sure),)))
    base, head = text.side_names(comparison)
    look: Literal["now", "then", "worse"] = "now"  # red where it is slower, green where it is faster
    if _moved(step):
        look = "worse" if (step.change_pct or 0.0) > 0 else "then"
    changed = f"{text.head_text(step)} ({text.effect_text(step)})"
    before = document.Cost(base[:_MOST_LABEL], step.base, text.base_text(step))
    return document.Answer(tuple(lines), (before, document.Cost(head[:_MOST_LABEL], step.head, changed, look=look)))


def _moved(step: MetricChange) -> bool:
    """Whether the step time changed, as far as was judged; with too few steps, whether it looks so."""
    if step.outcome in ("regression", "improvement", "waived"):
        return True
    return step.p is None and abs(step.change_pct or 0.0) >= (step.threshold_pct or 0.0) > 0


def _chart(name: str, figure: Figure | None) -> tuple[document.Block, ...]:
    """A figure below what explains it; nothing without one."""
    return () if figure is None else (document.soft(WORDS[name]), document.Chart(name, WORDS[f"{name}_chart"], figure))


def _why(comparison: Comparison) -> document.Section | None:
    """The explanations, then the ledger of both sides, a row a bucket of the step; None without either."""
    blocks: list[document.Block] = []
    if comparison.explanations:
        blocks.append(document.items([_explanation(e) for e in comparison.explanations], "reasons", ordered=True))

    def milliseconds(metric: MetricChange) -> str:
        if metric.base is None or metric.head is None:
            return UNKNOWN
        return text.signed(metric.head - metric.base, "ms").removesuffix(" ms")

    if ledger := [metric for metric in text.ledger_rows(comparison) if text.is_bucket(metric)]:
        cells: dict[str, Callable[[MetricChange], Cell]] = {
            "bucket": lambda m: Cell(m.label, TERMS[m.metric].definition, "swatch", colour=TERMS[m.metric].colour),
            "base": lambda m: _plain(text.base_text(m)),
            "head": lambda m: _plain(text.head_text(m)),
            "ms": lambda m: _plain(milliseconds(m)),
            "pct": lambda m: _plain(text.change_text(m)),
            "interval": lambda m: _plain(text.interval_text(m)),
        }
        table = document.TableBlock(table_of("compare_ledger", ledger, make=cells))
        blocks += [*_chart("waterfall", figures.waterfall_figure(comparison)), table]
    return document.Section("why", "Why", tuple(blocks)) if blocks else None


def _explanation(reason: Explanation) -> list[document.Block]:
    """What it costs, the sentence, and folded what it rests on."""
    cost = document.Span(text.cost_text(reason), "cost slower" if reason.ms > 0 else "cost faster")
    blocks: list[document.Block] = [paragraph(cost, " " if cost.text else "", reason.text)]
    changes = [
        document.code(f"{change.status}: {text.change_name(change)}"[:_MOST_NAME])
        for change in reason.changes[:MOST_EVIDENCE]
    ]
    rests_on: list[document.Block] = [document.items(changes)] if changes else []
    if reason.evidence:
        cells: dict[str, Callable[[Evidence], Cell]] = {
            "metric": lambda e: name(e.metric, 90),
            "value": lambda e: _plain(f"{_value(e)}{unit_text(e)}"),
        }
        table = table_of("compare_evidence", reason.evidence, make=cells, most=MOST_EVIDENCE)
        rests_on.append(document.TableBlock(table, "narrow"))
    return [*blocks, document.fold(WORDS["rests_on"], *rests_on)] if rests_on else blocks


def _value(evidence: Evidence) -> str:
    if (value := evidence.value) is None:
        return UNKNOWN
    return value[:200] if isinstance(value, str) else f"{value:g}"


def _changes(comparison: Comparison) -> document.Section | None:
    """A table a kind of change, what costs or saves most first; None where nothing changed."""
    cells: dict[str, Callable[[Change], Cell]] = {
        "name": lambda c: name(text.change_name(c), 100),
        "status": lambda c: Cell(c.status),
        "count": lambda c: Cell(text.count_text(c)),
        "base_ms": lambda c: _optional_ms(c.base_ms),
        "head_ms": lambda c: _optional_ms(c.head_ms),
        "delta_ms": lambda c: Cell(text.milliseconds_text(c)),
        "base_value": lambda c: name(text.value_text(c.base_value), 100),
        "head_value": lambda c: name(text.value_text(c.head_value), 100),
        "detail": lambda c: name(c.detail, 80) if c.detail else Cell(""),
    }
    tables = []
    for kind, (title, one) in text.KINDS.items():
        if changes := text.important_first([change for change in comparison.changes if change.kind == kind]):
            facts = {"changed": f"{title}, changed: {len(changes)}", "kind": one.capitalize()}
            facts["milliseconds"] = text.milliseconds_title(kind)
            table = "compare_environment" if kind == "environment" else "compare_changes"
            tables.append(document.TableBlock(table_of(table, changes, make=cells, facts=facts, most=MOST_CHANGES)))
    return document.Section("changes", "What changed", (document.soft(WORDS["changes"]), *tables)) if tables else None


def _finding_blocks(findings: Sequence[Finding]) -> list[document.Block]:
    return [finding_block(finding) for finding in findings[:_MOST_FINDINGS]]


def _steps(comparison: Comparison) -> document.Section | None:
    blocks = [*_chart("steps", figures.steps_figure(comparison))]
    if comparison.outliers:  # steps far from their capture's median
        cells: dict[str, Callable[[OutlierStep], Cell]] = {
            "capture": lambda o: name(f"{o.side}: {o.capture}"),
            "step": lambda o: Cell(str(o.step)),
            "profiled": lambda o: Cell("yes" if o.profiled else "no"),
            "ms": lambda o: _plain(text.amount(o.ms, "ms")),
            "median_ms": lambda o: _plain(text.amount(o.median_ms, "ms")),
        }
        table = table_of("compare_outliers", comparison.outliers, make=cells, most=MOST_OUTLIERS)
        blocks.append(document.TableBlock(table, "narrow"))
    return document.Section("steps", "Steps", tuple(blocks)) if blocks else None


def _method(comparison: Comparison) -> document.Section:
    terms = tuple(document.Term(label, value) for label, value in text.method(comparison))
    blocks: list[document.Block] = [document.Terms(terms)]
    for heading, lines in (("Unchanged", comparison.unchanged), ("Notes", comparison.notes)):
        if lines:
            blocks += [document.Heading(heading), document.items(lines, "notes")]
    captures: dict[str, Callable[[CaptureInfo], Cell]] = {
        "name": lambda c: name(c.name),
        "path": lambda c: name(c.path, 60),
        "started_ns": lambda c: _plain(text.started_text(c.started_ns)),
        "commit": lambda c: (
            Cell(f"{c.commit[:10]}{' + changes' if c.dirty else ''}", c.commit) if c.commit else _plain(UNKNOWN)
        ),
        "steps": lambda c: Cell(str(c.steps)),
        "unprofiled_steps": lambda c: Cell(str(c.unprofiled_steps)),
    }
    for side, title in ((comparison.base, "base"), (comparison.head, "head")):
        facts = {"side": title}
        table = table_of("compare_captures", side.captures, make=captures, facts=facts, most=MOST_CAPTURES)
        blocks.append(document.TableBlock(table))
    if comparison.checks:
        blocks.append(checks_block(comparison.checks, WORDS["rules"]))
    return document.Section("method", WORDS["how"], tuple(blocks))


def _facts(comparison: Comparison) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    base, head = comparison.base, comparison.head
    facts = [
        ("Base", word(text.commits_text(base) or text.side_name(base))),
        ("Head", word(text.commits_text(head) or text.side_name(head))),
        ("Captures", Cell(f"{len(base.captures)} / {len(head.captures)}", "base / head")),
        ("Compared", Cell("pair by pair" if comparison.paired else "as two groups")),
        ("Confidence", Cell(f"{100 * comparison.confidence:g} %")),
    ]
    for label, key in (
        ("Ranks", "world_size"), ("Device", "device"), ("Backend", "backend"), ("Strategy", "strategy"),
        ("torch", "torch_version"), ("NCCL", "nccl_version"),
    ):  # fmt: skip
        before, after = base.run.get(key), head.run.get(key)
        both = Cell(f"{word(before).text} → {word(after).text}", css="bad")
        facts.append((label, word(after) if before == after else both))
    return facts
