"""A comparison on the terminal: the verdict, the metrics, why, what changed, and the report's path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.table import Table
from rich.text import Text

from traceops.compare.model import Change, Comparison, MetricChange
from traceops.core.findings import Finding
from traceops.core.short_text import one_line, short_name
from traceops.render.comparison import method_text, text
from traceops.render.console import PlainConsole, ascii_ranges, plain, say
from traceops.render.writers.terminal import MARK, STYLE

_WIDTHS = (60, 110)  # lines longer than that are hard to read in a log
_MOST_EXPLANATIONS, _MOST_CHANGES, _MOST_REMARKS = 8, 6, 5
_NAME = 44
_MOST_CHARACTERS, _MOST_OF_VERDICT = 400, 1000
_RUNNER_COMMAND = re.compile(
    r"::(?=error|warning|notice|debug|group|endgroup|add-|remove-|set-|save-|stop-|echo|internal-)",
    re.IGNORECASE,
)


def print_comparison(comparison: Comparison, file: TextIO, written: Path | None = None) -> None:
    """The verdict first, for people who read a job's log; `written` is where the whole report lies."""
    console = PlainConsole(file=file, highlight=False)
    console.width = min(max(console.width if console.is_terminal else _WIDTHS[1], _WIDTHS[0]), _WIDTHS[1])
    level = text.VERDICT_LEVEL[comparison.verdict]
    _say(console, f"{MARK[level]} {comparison.sentence}", STYLE[level], hanging=2, limit=_MOST_OF_VERDICT)
    for refusal in comparison.refusals:
        _say(
            console,
            f"{MARK['warning']} Compared although they differ: {refusal}",
            STYLE["warning"],
            hanging=2,
        )
    for side, word in ((comparison.base, "base"), (comparison.head, "head")):
        _say(console, f"{word}: {method_text.side_text(side)}", "dim", hanging=6)
    known = text.known(comparison.gated)
    shown = [*known, *text.movers(comparison)]
    if shown:
        console.print()
        console.print(_metrics(shown))
    _reasons(console, known, comparison.power)
    _explanations(console, comparison)
    _changes(console, comparison)
    _findings(console, "New findings:", comparison.new_findings)
    _findings(console, "Findings that are gone:", comparison.gone_findings)
    _remarks(console, comparison)
    if written is not None:
        console.print(plain(f"Report: {ascii_ranges(str(written))}"), soft_wrap=True)


def _metrics(metrics: Sequence[MetricChange]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, right in (("metric", False), ("base", True), ("head", True), ("change", False), ("", False)):
        table.add_column(title, justify="right" if right else "left", no_wrap=title in ("base", "head", ""))
    for metric in metrics:
        style = STYLE[text.LEVEL[metric.outcome]] if metric.threshold_pct is not None else ""
        limit = text.threshold_text(metric)
        outcome = f"{text.MARK[metric.outcome]} {text.outcome_text(metric)}" + (
            f", limit {limit}" if limit else ""
        )
        table.add_row(
            _cell(metric.label, 40),
            _cell(text.base_text(metric)),
            _cell(text.head_text(metric)),
            _cell(text.effect_text(metric)),
            plain(outcome if limit else "", style),
        )
    return table


def _reasons(console: PlainConsole, metrics: Sequence[MetricChange], power: float) -> None:
    """Why each gated metric came out as it did, and what would have been found."""
    for metric in metrics:
        parts = [part for part in (text.reason_text(metric), text.found_text(metric, power)) if part]
        if parts and (metric.outcome != "unchanged" or len(parts) > 1):
            _say(console, f"{metric.label}: {'; '.join(parts)}.", "dim", hanging=2)


def _explanations(console: PlainConsole, comparison: Comparison) -> None:
    if not comparison.explanations:
        return
    console.print()
    _say(console, "Why, in ms a step:", "bold")
    for number, reason in enumerate(comparison.explanations[:_MOST_EXPLANATIONS], 1):
        _say(console, f" {number}. {text.cost_text(reason)} {reason.text}", hanging=4)
    _more(console, len(comparison.explanations) - _MOST_EXPLANATIONS, "reasons")


def _changes(console: PlainConsole, comparison: Comparison) -> None:
    """A table a kind of change, those that cost or save most first."""
    for kind, (title, _) in text.KINDS.items():
        changes = text.important_first([change for change in comparison.changes if change.kind == kind])
        if not changes:
            continue
        console.print()
        console.print(plain(f"{title}, changed: {len(changes)}", "bold"))
        table = Table(box=None, pad_edge=False, show_header=kind != "environment", header_style="dim")
        titles = (
            ("", "name", "a step", text.milliseconds_title(kind), "")
            if kind != "environment"
            else ("", "", "", "")
        )
        rows = [_change_cells(change) for change in changes[:_MOST_CHANGES]]
        for column, heading in enumerate(titles):
            digits = kind != "environment" and heading.endswith("a step")
            table.add_column(
                heading,
                no_wrap=True,
                justify="right" if digits else "left",
                min_width=max(len(heading), *(len(row[column]) for row in rows))
                if digits or not column
                else None,
            )
        for row in rows:
            table.add_row(*(_cell(cell, 60) for cell in row))
        console.print(table)
        _more(console, len(changes) - _MOST_CHANGES, "in the report")


def _change_cells(change: Change) -> tuple[str, ...]:
    if change.kind == "environment":
        return (change.status, change.name, text.value_text(change.base_value),
                f"→ {text.value_text(change.head_value)}")  # fmt: skip
    name = short_name(one_line(change.name or change.head_name, 8192), _NAME)
    if change.status == "renamed":
        name = f"{short_name(name, _NAME // 2)} → {short_name(one_line(change.head_name, 8192), _NAME // 2)}"
    return (
        change.status,
        name,
        text.count_text(change),
        text.milliseconds_text(change),
        change.detail,
    )


def _findings(console: PlainConsole, title: str, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    console.print()
    console.print(plain(title, "bold"))
    for finding in findings[:_MOST_REMARKS]:
        line = f"{MARK[finding.severity]} {finding.rule} {finding.title}. {finding.message}"
        _say(console, line, STYLE[finding.severity], hanging=2)
    _more(console, len(findings) - _MOST_REMARKS, "in the report")


def _remarks(console: PlainConsole, comparison: Comparison) -> None:
    """Outliers, what differs and may matter, and what the reader should know."""
    if comparison.outliers or comparison.warnings or comparison.notes:
        console.print()
    for kind, style, lines in (
        ("Outlier step, left in", "", [method_text.outlier_text(outlier) for outlier in comparison.outliers]),
        ("Warning", STYLE["warning"], comparison.warnings),
        ("Note", "dim", comparison.notes),
    ):
        for line in lines[:_MOST_REMARKS]:
            _say(console, f"{kind}: {line}", style, hanging=2)
        _more(console, len(lines) - _MOST_REMARKS, "in the report")


def _more(console: PlainConsole, count: int, where: str) -> None:
    if count > 0:
        console.print(plain(f"  … {count} more {where}", "dim"))


def _cell(said: str, limit: int = 200) -> Text:
    return plain(ascii_ranges(_harmless(said, limit)))


def _say(
    console: PlainConsole, said: str, style: str = "", hanging: int = 0, limit: int = _MOST_CHARACTERS
) -> None:
    indent = len(said) - len(said.lstrip(" "))
    say(console, " " * indent + _harmless(said, limit), style, hanging)


def _harmless(said: str, limit: int) -> str:
    """One line that a CI runner does not take for a command to it, wherever it is broken."""
    one = one_line(said, limit).replace("##[", "## [")
    return _RUNNER_COMMAND.sub(": :", one)
