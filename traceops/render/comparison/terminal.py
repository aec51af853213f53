"""A comparison on the terminal: the verdict, the metrics, why, what changed, and the report's path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from traceops.compare.model import OUTCOMES, Change, Comparison, MetricChange
from traceops.compare.sentence import headline
from traceops.core.claims import phrases
from traceops.core.findings import Finding
from traceops.core.text import one_line, short_name
from traceops.render.cells import Cell, Column, Table
from traceops.render.comparison import text
from traceops.render.comparison.text import WORDS, say
from traceops.render.document import Block, Code, TableBlock, Text
from traceops.render.document import text as text_block
from traceops.render.writers.terminal import MARK, write_terminal

_WIDTHS = (40, 110)  # lines longer than that are hard to read in a log
_MOST_EXPLANATIONS, _MOST_CHANGES, _MOST_REMARKS = 8, 6, 5
_FIRST_EXPLANATIONS, _FIRST_REMARKS, _FIRST_MOVERS, _FIRST_METRICS = 3, 2, 3, 6  # where not all is asked for
_NAME = 44
_MOST_CHARACTERS, _MOST_OF_VERDICT, _SHORT = 400, 1000, 200
_BLANK = text_block("")
_RUNNER_COMMAND = re.compile(
    r"::(?=error|warning|notice|debug|group|endgroup|add-|remove-|set-|save-|stop-|echo|internal-)", re.IGNORECASE
)


def print_comparison(comparison: Comparison, file: TextIO, written: Path | None, *, verbose: bool = False) -> None:
    """The verdict first, for people who read a job's log: a card of about 25 lines, all of it if verbose. `written` is
    where the whole report lies."""
    level = text.VERDICT_LEVEL[comparison.verdict]
    short, details = headline(comparison)
    blocks: list[Block] = [_line(f"{MARK[level]} {short}", f"level-{level}", limit=_MOST_OF_VERDICT)]
    if details:
        limit = _MOST_OF_VERDICT if verbose else _MOST_CHARACTERS
        blocks.append(_line(details, "soft", (2, 2), limit=limit))
    for refusal in comparison.refusals:
        blocks.append(_line(f"{MARK['warning']} {WORDS['refused']} {refusal}", "level-warning"))
    for side, word in ((comparison.base, "base"), (comparison.head, "head")):
        blocks.append(
            _line(f"{word}: {text.side_text(side)}", "soft", (0, 6), limit=_MOST_CHARACTERS if verbose else _SHORT)
        )
    known = text.known(comparison.gated)
    judged = known if verbose else sorted(known, key=lambda metric: OUTCOMES.index(metric.outcome))[:_FIRST_METRICS]
    if shown := [*judged, *text.movers(comparison, 5 if verbose else _FIRST_MOVERS)]:
        blocks += [_BLANK, _metrics(shown)]
    told = judged if verbose else [m for m in judged if m.outcome != "unchanged" or m.metric == "step_time"]
    blocks += _reasons(told, comparison.power, details)
    blocks += _explanations(comparison, verbose)
    if verbose:
        blocks += _changes(comparison)
        blocks += _findings(WORDS["new"], comparison.new_findings)
        blocks += _findings(WORDS["gone"], comparison.gone_findings)
    else:
        blocks += _counted(comparison)
    blocks += _remarks(comparison, verbose)
    if written is not None:
        blocks.append(Code((f"Report: {written}",), look=""))
    write_terminal(blocks, file, widths=_WIDTHS)


def _counted(comparison: Comparison) -> Iterator[Block]:
    """How many of each kind changed, and which findings are new or gone, in a line each."""
    kinds = Counter(change.kind for change in comparison.changes)
    counts = [
        f"{kinds[kind]} {one}{'s' if kinds[kind] > 1 else ''}" for kind, (_, one) in text.KINDS.items() if kinds[kind]
    ]
    new, gone = (
        [f"{finding.rule} {finding.title}" for finding in findings[:_FIRST_REMARKS]]
        + ([f"{len(findings) - _FIRST_REMARKS} more"] if len(findings) > _FIRST_REMARKS else [])
        for findings in (comparison.new_findings, comparison.gone_findings)
    )
    if lines := phrases("views", "compare", "counted", changed=counts, new=new, gone=gone):
        yield _BLANK
        yield from (_line(line, "soft", limit=_SHORT) for line in lines)


def _metrics(metrics: Sequence[MetricChange]) -> TableBlock:
    rows = []
    for metric in metrics:
        limit = text.threshold_text(metric)
        outcome = f"{text.MARK[metric.outcome]} {text.outcome_text(metric)}, limit {limit}" if limit else ""
        values = (text.base_text(metric), text.head_text(metric), text.effect_text(metric))
        css = f"level-{text.LEVEL[metric.outcome]}" if limit else ""
        rows.append((_cell(metric.label, 40), *map(_cell, values), Cell(outcome, css=css)))
    columns = (
        Column("metric", "metric", number=False), Column("base", "base", css="nowrap"),
        Column("head", "head", css="nowrap"), Column("change", "change", number=False),
        Column("outcome", "", number=False, css="nowrap"),
    )  # fmt: skip
    return TableBlock(Table("", columns, tuple(rows)))


def _reasons(metrics: Sequence[MetricChange], power: float, details: str) -> Iterator[Block]:
    """Why each gated metric came out as it did, unless the details have that, and what would have been found."""
    for metric in metrics:
        parts = [part for part in (text.reason_text(metric), text.found_text(metric, power)) if part]
        news = [part for part in parts if part.lower() not in details.lower()]
        if news and (metric.outcome != "unchanged" or len(parts) > 1):
            yield _line(f"{metric.label}: {'; '.join(news)}.", "soft")


def _explanations(comparison: Comparison, verbose: bool) -> Iterator[Block]:
    if not comparison.explanations:
        return
    yield _BLANK
    yield _line(WORDS["explained"], "bold", (0, 0))
    most, limit = (_MOST_EXPLANATIONS, _MOST_CHARACTERS) if verbose else (_FIRST_EXPLANATIONS, _SHORT)
    for number, reason in enumerate(comparison.explanations[:most], 1):
        yield _line(f"{number}. {text.cost_text(reason)} {reason.text}", indent=(1, 4), limit=limit)
    if verbose:
        yield from _more(len(comparison.explanations) - most, "reasons")


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
    digits = milliseconds.endswith("a step")
    return (
        Column("status", "", number=False, css="nowrap whole"),
        Column("name", "name", number=False, css="nowrap"),
        Column("count", "a step", css="nowrap whole"),
        Column("ms", milliseconds, number=digits, css="nowrap whole" if digits else "nowrap"),
        Column("detail", "", number=False, css="nowrap"),
    )


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
    yield _line(f"{title}:", "bold", (0, 0))
    for finding in findings[:_MOST_REMARKS]:
        sentence = f"{MARK[finding.severity]} {finding.rule} {finding.title}. {finding.message}"
        yield _line(sentence, f"level-{finding.severity}")
    yield from _more(len(findings) - _MOST_REMARKS, "in the report")


def _remarks(comparison: Comparison, verbose: bool) -> Iterator[Block]:
    """What differs and may matter; verbose: also outliers, and what the reader should know."""
    kinds = [
        ("Outlier", "", [text.outlier_text(outlier) for outlier in comparison.outliers]),
        ("Warning", "level-warning", list(comparison.warnings)),
        ("Note", "soft", list(comparison.notes)),
    ]
    shown = [kind for kind in kinds if kind[2] and (verbose or kind[0] == "Warning")]
    if shown and verbose:
        yield _BLANK
    most = _MOST_REMARKS if verbose else _FIRST_REMARKS
    for kind, look, lines in shown:
        for line in lines[:most]:
            yield _line(f"{WORDS.get(kind, kind)}: {line}", look, limit=_MOST_CHARACTERS if verbose else _SHORT)
        yield from _more(len(lines) - most, "in the report")
    if not verbose:
        yield _line(WORDS["all"], "soft")


def _more(count: int, where: str) -> Iterator[Block]:
    if count > 0:
        yield text_block(say("more_rows", count=count, where=where), look="soft", indent=(2, 2))


def _cell(said: str, limit: int = 200) -> Cell:
    return Cell(_harmless(said, limit))


def _line(said: str, look: str = "", indent: tuple[int, int] = (0, 2), limit: int = _MOST_CHARACTERS) -> Text:
    return text_block(_harmless(said, limit), look=look, indent=indent)


def _harmless(said: str, limit: int) -> str:
    """One line that a CI runner does not take for a command to it, wherever it is broken."""
    one = one_line(said, limit).replace("##[", "## [")
    return _RUNNER_COMMAND.sub(": :", one)
