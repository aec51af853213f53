"""compare.html: one self-contained page that works offline, from a Comparison."""

from __future__ import annotations

from typing import Any

from traceops.compare.model import Comparison, Explanation
from traceops.core.rank_text import ranks_text
from traceops.render import page
from traceops.render.cells import Cell, number
from traceops.render.comparison import figures, method_text, tables, text
from traceops.render.page import word
from traceops.render.report import detail_tables
from traceops.render.report.terms import COLUMNS
from traceops.rules.registry import RULES

_MOST_FINDINGS = 50  # of new ones, and of those that are gone


def render_comparison_html(comparison: Comparison, *, plotlyjs: str = "inline") -> bytes:
    """The page in UTF-8. `plotlyjs` is 'inline' (works offline, about 1.6 MB) or 'cdn' (small, needs the network).

    Everything that came from a trace is escaped, and a content security policy admits the page's own
    scripts only. Raises ValueError for another `plotlyjs`.
    """
    styles = ("summary.css", "compare.css")
    return page.chart_page("compare.html.j2", styles, _charts(comparison), plotlyjs, _content(comparison))


def _charts(comparison: Comparison) -> dict[str, Any]:
    """Plotly figures by the id of the element they are drawn into; empty charts are left out."""
    made = {
        "intervals": figures.interval_figure(comparison),
        "waterfall": figures.waterfall_figure(comparison),
        "steps": figures.steps_figure(comparison),
    }
    return {key: figure for key, figure in made.items() if figure is not None}


def _content(comparison: Comparison) -> dict[str, Any]:
    new = [*comparison.findings, *comparison.new_findings]
    return {
        "comparison": comparison,
        "level": text.VERDICT_LEVEL[comparison.verdict],
        "facts": _facts(comparison),
        "metrics_table": tables.metrics_table(comparison),
        "ledger_table": tables.ledger_table(comparison),
        "explanations": [_explanation(reason) for reason in comparison.explanations],
        "changes": [
            table for kind in text.KINDS if (table := tables.changes_table(comparison, kind)) is not None
        ],
        "findings": [(f, detail_tables.evidence_table(f)) for f in new[:_MOST_FINDINGS]],
        "more_findings": max(len(new) - _MOST_FINDINGS, 0),
        "gone": [(f, detail_tables.evidence_table(f)) for f in comparison.gone_findings[:_MOST_FINDINGS]],
        "outliers_table": tables.outliers_table(comparison),
        "method": method_text.method(comparison),
        "captures": [
            tables.captures_table(comparison.base, "base"),
            tables.captures_table(comparison.head, "head"),
        ],
        "rule_titles": {rule.id: rule.title for rule in RULES},
        "definitions": COLUMNS,
        "number": number,
        "ranks_text": ranks_text,
    }


def _explanation(reason: Explanation) -> dict[str, Any]:
    return {
        "text": reason.text,
        "ms": text.cost_text(reason),
        "slower": reason.ms > 0,
        "evidence": tables.evidence_table(reason.evidence),
        "changes": [
            f"{change.status}: {text.change_name(change)}"[:500]
            for change in reason.changes[: tables.MOST_EVIDENCE]
        ],
    }


def _facts(comparison: Comparison) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    base, head = comparison.base, comparison.head
    facts = [
        ("Base", word(method_text.commits_text(base) or base.label)),
        ("Head", word(method_text.commits_text(head) or head.label)),
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
