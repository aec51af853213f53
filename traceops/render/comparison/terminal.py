"""A comparison on the terminal: the verdict, the metrics, why, what changed, and the report's path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from traceops.compare.model import Change, Comparison, MetricChange
from traceops.compare.sentence import headline
from traceops.core.findings import Finding
from traceops.core.text import one_line, short_name
from traceops.render.cells import Cell, Column, Table
from traceops.render.comparison import text
from traceops.render.document import Block, Code, TableBlock, Text
from traceops.render.document import text as text_block
from traceops.render.writers.terminal import MARK, write_terminal

_WIDTHS = (40, 110)  # lines longer than that are hard to read in a log
_MOST_EXPLANATIONS, _MOST_CHANGES, _MOST_REMARKS = 8, 6, 5
_NAME = 44
_MOST_CHARACTERS, _MOST_OF_VERDICT = 400, 1000
_BLANK = text_block("")
_RUNNER_COMMAND = re.compile(
    r"::(?=error|warning|notice|debug|group|endgroup|add-|remove-|set-|save-|stop-|echo|internal-)", re.IGNORECASE
)


def print_comparison(comparison: Comparison, file: TextIO, written: Path | None) -> None:
    """The verdict first, for people who read a job's log; `written` is where the whole report lies."""
    write_terminal(describe_summary(comparison, written), file, widths=_WIDTHS)


def describe_summary(comparison: Comparison, written: Path | None = None) -> list[Block]:
    """What the terminal says of a comparison; `written` is where all of it lies."""
    level = text.VERDICT_LEVEL[comparison.verdict]
    short, details = headline(comparison)
    blocks: list[Block] = [_line(f"{MARK[level]} {short}", f"level-{level}", limit=_MOST_OF_VERDICT)]
    if details:
        blocks.append(_line(details, "soft", (2, 2), limit=_MOST_OF_VERDICT))
    for refusal in comparison.refusals:
        blocks.append(_line(f"{MARK['warning']} Compared although they differ: {refusal}", "level-warning"))
    for side, word in ((comparison.base, "base"), (comparison.head, "head")):
        blocks.append(_line(f"{word}: {text.side_text(side)}", "soft", (0, 6)))
    known = text.known(comparison.gated)
    if shown := [*known, *text.movers(comparison)]:
        blocks += [_BLANK, _metrics(shown)]
    blocks += _reasons(known, comparison.power)
    blocks += _explanations(comparison)
    blocks += _changes(comparison)
    blocks += _findings("New findings:", comparison.new_findings)
    blocks += _findings("Findings that are gone:", comparison.gone_findings)
    blocks += _remarks(comparison)
    if written is not None:
        blocks.append(Code((f"Report: {written}",), look=""))
    return blocks


def _metrics(metrics: Sequence[MetricChange]) -> TableBlock:
    rows = []
    for metric in metrics:
        gated = metric.threshold_pct is not None
        limit = text.threshold_text(metric)
        outcome = f"{text.MARK[metric.outcome]} {text.outcome_text(metric)}, limit {limit}" if limit else ""
        rows.append(
            (
                _cell(metric.label, 40),
                _cell(text.base_text(metric)),
                _cell(text.head_text(metric)),
                _cell(text.effect_text(metric)),
                Cell(outcome, css=f"level-{text.LEVEL[metric.outcome]}" if gated else ""),
            )
        )
    columns = (
        Column("metric", "metric", number=False),
        Column("base", "base", css="nowrap"),
        Column("head", "head", css="nowrap"),
        Column("change", "change", number=False),
        Column("outcome", "", number=False, css="nowrap"),
    )
    return TableBlock(Table("", columns, tuple(rows)))


def _reasons(metrics: Sequence[MetricChange], power: float) -> Iterator[Block]:
    """Why each gated metric came out as it did, and what would have been found."""
    for metric in metrics:
        parts = [part for part in (text.reason_text(metric), text.found_text(metric, power)) if part]
        if parts and (metric.outcome != "unchanged" or len(parts) > 1):
            yield _line(f"{metric.label}: {'; '.join(parts)}.", "soft")


def _explanations(comparison: Comparison) -> Iterator[Block]:
    if not comparison.explanations:
        return
    yield _BLANK
    yield _line("Why, in ms a step:", "bold", (0, 0))
    for number, reason in enumerate(comparison.explanations[:_MOST_EXPLANATIONS], 1):
        yield _line(f"{number}. {text.cost_text(reason)} {reason.text}", indent=(1, 4))
    yield from _more(len(comparison.explanations) - _MOST_EXPLANATIONS, "reasons")


def _changes(comparison: Comparison) -> Iterator[Block]:
    """A table a kind of change, those that cost or save most first."""
    for kind, (title, _) in text.KINDS.items():
        changes = text.important_first([change for change in comparison.changes if change.kind == kind])
        if not changes:
            continue
        yield _BLANK
        yield _line(f"{title}, changed: {len(changes)}", "bold", (0, 0))
        rows = [tuple(_cell(said, 60) for said in _change_cells(c)) for c in changes[:_MOST_CHANGES]]
        columns = _ENVIRONMENT if kind == "environment" else _timed(text.milliseconds_title(kind))
        yield TableBlock(Table("", columns, tuple(rows)))
        yield from _more(len(changes) - _MOST_CHANGES, "in the report")


_ENVIRONMENT = tuple(
    Column(key, "", number=False, css="nowrap whole" if key == "status" else "nowrap")
    for key in ("status", "name", "base", "head")
)


def _timed(milliseconds: str) -> tuple[Column, ...]:
    """Columns of what takes time: numbers a step stand to the right and are never cut."""
    columns = [
        Column("status", "", number=False, css="nowrap whole"),
        Column("name", "name", number=False, css="nowrap"),
    ]
    for key, label in (("count", "a step"), ("ms", milliseconds)):
        digits = label.endswith("a step")
        columns.append(Column(key, label, number=digits, css="nowrap whole" if digits else "nowrap"))
    return (*columns, Column("detail", "", number=False, css="nowrap"))


def _change_cells(change: Change) -> tuple[str, ...]:
    if change.kind == "environment":
        return (change.status, change.name, text.value_text(change.base_value),
                f"→ {text.value_text(change.head_value)}")  # fmt: skip
    name = short_name(one_line(change.name or change.head_name, 8192), _NAME)
    if change.status == "renamed":
        name = f"{short_name(name, _NAME // 2)} → {short_name(one_line(change.head_name, 8192), _NAME // 2)}"
    return (change.status, name, text.count_text(change), text.milliseconds_text(change), change.detail)


def _findings(title: str, findings: Sequence[Finding]) -> Iterator[Block]:
    if not findings:
        return
    yield _BLANK
    yield _line(title, "bold", (0, 0))
    for finding in findings[:_MOST_REMARKS]:
        said = f"{MARK[finding.severity]} {finding.rule} {finding.title}. {finding.message}"
        yield _line(said, f"level-{finding.severity}")
    yield from _more(len(findings) - _MOST_REMARKS, "in the report")


def _remarks(comparison: Comparison) -> Iterator[Block]:
    """Outliers, what differs and may matter, and what the reader should know."""
    if comparison.outliers or comparison.warnings or comparison.notes:
        yield _BLANK
    for kind, look, lines in (
        ("Outlier step, left in", "", [text.outlier_text(outlier) for outlier in comparison.outliers]),
        ("Warning", "level-warning", comparison.warnings),
        ("Note", "soft", comparison.notes),
    ):
        for line in lines[:_MOST_REMARKS]:
            yield _line(f"{kind}: {line}", look)
        yield from _more(len(lines) - _MOST_REMARKS, "in the report")


def _more(count: int, where: str) -> Iterator[Block]:
    if count > 0:
        yield text_block(f"… {count} more {where}", look="soft", indent=(2, 2))


def _cell(said: str, limit: int = 200) -> Cell:
    return Cell(_harmless(said, limit))


def _line(said: str, look: str = "", indent: tuple[int, int] = (0, 2), limit: int = _MOST_CHARACTERS) -> Text:
    return text_block(_harmless(said, limit), look=look, indent=indent)


def _harmless(said: str, limit: int) -> str:
    """One line that a CI runner does not take for a command to it, wherever it is broken."""
    one = one_line(said, limit).replace("##[", "## [")
    return _RUNNER_COMMAND.sub(": :", one)
