"""A hang on the terminal: the cause in a sentence, its proof, the ranks, and what to try next."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from msgspec.structs import replace

from traceops.core.findings import Finding
from traceops.core.rank_text import ranks_text, who_first, who_runs
from traceops.core.text import first_words
from traceops.hangs.model import HOW_IT_ENDED, Diagnosis, Root
from traceops.render.cells import Cell, Column, Table
from traceops.render.document import Block, Code, Span, TableBlock, text
from traceops.render.finding_blocks import finding_block
from traceops.render.hang.tables import say
from traceops.render.writers.terminal import MARK, write_terminal
from traceops.report import hang_text
from traceops.report.hang_text import RankGroup, merged_ranks, seen_left_out, seen_lines, what_would_decide

_WIDTHS = (40, 100)  # lines longer than that are hard to read in a log
_MOST_LINES = 16
_FIRST_LINES, _FIRST_ROOTS = 6, 3  # where not all is asked for
_FIRST_EVIDENCE, _FIRST_ADVICE = 1, 150  # and of causes after the first
_LIKED_LINES = 8  # with more, ranks that are nearly alike share a line
_MOST_EVIDENCE = 6
_MOST_PROBLEMS = 5
_MOST_NOTES = 5
_MOST_ADVICE = 400  # characters
_MOST_SEEN = 300


def print_cause(diagnosis: Diagnosis, file: TextIO) -> None:
    """The first cause, what it rests on, and what to do about it; nothing where there is none. Memory that ran out is
    told without the lines it was read from: they repeat its numbers, and more is to come."""
    first = diagnosis.roots[:1]
    out_of_memory = any(root.crash is not None and root.crash.kind == "gpu_memory" for root in first)
    shown = [replace(root, evidence=()) if out_of_memory else root for root in first]
    blocks = [block for root in shown for block in _root(root, set(), _MOST_EVIDENCE)]
    write_terminal(blocks, file, widths=_WIDTHS)


def print_diagnosis(
    diagnosis: Diagnosis, file: TextIO, written: Path | None = None, beside: Sequence[Finding] = (), *,
    verbose: bool = True,
) -> None:  # fmt: skip
    """The cause first, for people who read a job's log over ssh; `written` is where the whole report lies. beside:
    findings on the machines and links, which come after the causes. Unless verbose it is a card of about 25 lines: the
    first cause whole, of others what they are."""
    level = hang_text.hang_level(diagnosis)
    blocks: list[Block] = []
    if not diagnosis.roots:
        sentence = f"{MARK[level]} {hang_text.hang_sentence(diagnosis)}"
        blocks.append(text(sentence, look=f"level-{level}", indent=(0, 2)))
    advised: set[str] = set()
    for number, root in enumerate(diagnosis.roots if verbose else diagnosis.roots[:_FIRST_ROOTS]):
        if number:
            blocks.append(text(""))
        blocks += _root(root, advised, _MOST_EVIDENCE if verbose or not number else _FIRST_EVIDENCE)
    if not verbose and len(diagnosis.roots) > _FIRST_ROOTS:
        blocks.append(text(say("more_causes", more=len(diagnosis.roots) - _FIRST_ROOTS), look="soft", indent=(2, 2)))
    for finding in beside:
        blocks += [text(""), finding_block(finding)]
    if diagnosis.ranks:
        blocks += [text(""), _ranks(diagnosis, _MOST_LINES if verbose else _FIRST_LINES)]
        blocks += [text("")] * verbose
    if diagnosis.roots:
        stall, read = hang_text.stall_text(diagnosis), f"Read: {hang_text.read_text(diagnosis)}."
        blocks.append(text(f"{stall}. {read}" if stall else read))
        if unknown := hang_text.unknown_ranks(diagnosis):
            blocks.append(text(say("unknown", unknown=who_runs(unknown, 12))))
    blocks += _seen(diagnosis)
    if not diagnosis.roots and not diagnosis.evidence.ends:
        reasons: dict[str, list[str]] = {}
        for rule, reason in diagnosis.not_evaluated.items():
            reasons.setdefault(reason, []).append(rule)
        for reason, rules in reasons.items():
            sentence = f"Not evaluated: {', '.join(sorted(rules))}, {reason}"
            blocks.append(text(sentence, look="soft", indent=(0, 2)))
    blocks += _remarks(diagnosis)
    if written is not None:
        blocks.append(Code((f"Report: {written}",), look=""))
    write_terminal(blocks, file, widths=_WIDTHS)


def _root(root: Root, advised: set[str], most: int) -> Iterator[Block]:
    sentence = f"{MARK['error']} {hang_text.root_sentence(root)}"
    if most > _FIRST_EVIDENCE:
        yield text(sentence, look="level-error", indent=(0, 2))
        yield text(f"Confidence: {root.confidence}  ", Span(root.rule, "soft"), indent=(2, 4))
    else:
        yield text(f"{sentence} ", Span(root.rule, "soft"), look="level-error", indent=(0, 2))
    news = [line for what, value in root.evidence if (line := _news(what, value, sentence))]
    for line in news[:most]:
        yield text(line, indent=(4, 6))
    if len(news) > most:
        yield text(say("more_evidence", more=len(news) - most), look="soft", indent=(4, 0))
    advice = hang_text.root_advice(root)
    if advice and advice not in advised:
        advised.add(advice)
        limit = _MOST_ADVICE if most > _FIRST_EVIDENCE else _FIRST_ADVICE
        yield text(f"→ {textwrap.shorten(advice, limit, placeholder=' …')}", indent=(4, 6))


def _news(what: str, value: str, said: str) -> str:
    """A line of evidence, without what the cause has said: then its place alone, or nothing where it has none."""
    plain = " ".join(value.split()).rstrip(". ")
    if (what == HOW_IT_ENDED and plain in said) or f"{what} {plain}" in said:
        return ""
    return what if plain in said and ":" in what else f"{what}: {value}"


def _ranks(diagnosis: Diagnosis, most: int) -> TableBlock:
    """A line for equal ranks, causes first; columns that nobody fills are left out."""
    groups = merged_ranks(diagnosis, _LIKED_LINES)
    shown, rest = groups[:most], groups[most:]
    columns = {
        Column("rank", "rank", number=False, css="fold"): [ranks_text(group.ranks, 4) for group in shown],
        Column("state", "state", number=False, css="nowrap fold"): [hang_text.state_text(group) for group in shown],
        Column("step", "step", css="nowrap fold"): [_value(group, "step") for group in shown],
        Column("in", "in", number=False, css="fold"): [hang_text.operations_text(group) for group in shown],
        Column("at", "at, or doing", number=False, css="fold"): [hang_text.place_text(group) for group in shown],
        Column("on", "waits for", number=False, css="fold"): [ranks_text(group.waits_for, 4) for group in shown],
    }
    filled = {column: cells for column, cells in columns.items() if any(cells)}
    rows = tuple(
        tuple(Cell(said, css="" if group.root is None else "level-error") for said in row)
        for group, row in zip(shown, zip(*filled.values(), strict=True), strict=True)
    )
    left = sum(len(group.ranks) for group in rest)
    note = say("more_ranks", more=left or None)
    return TableBlock(Table("", tuple(filled), rows, note=note))


def _seen(diagnosis: Diagnosis) -> Iterator[Block]:
    """What logs tell of trouble besides the causes, and what would decide where there is none."""
    also = "Also seen" if diagnosis.roots else "Seen"
    sentence = "" if diagnosis.roots else hang_text.hang_sentence(diagnosis)
    for event, said_by in seen_lines(diagnosis):
        if hang_text.quoted_line(diagnosis, event, said_by) in sentence:
            continue
        by = f"{who_first(said_by)}: " if said_by else ""
        said = first_words(event.text, _MOST_SEEN)
        yield text(f"{also}: {hang_text.shown_path(diagnosis, event.path)}:{event.line}: {by}{said}", indent=(0, 2))
    if left := seen_left_out(diagnosis):
        yield text(say("more_messages", more=left), look="soft")
    if wanted := what_would_decide(diagnosis):
        yield text(f"→ {wanted}", indent=(0, 2))


def _value(group: RankGroup, key: str) -> str:
    if key in group.differ:
        return "differs"
    value = group.shared(key)
    return "" if value is None else str(value)


def _remarks(diagnosis: Diagnosis) -> Iterator[Block]:
    """What could not be read, and what the reader should know of what was."""
    problems, notes = diagnosis.evidence.problems, diagnosis.notes
    for path, what in problems[:_MOST_PROBLEMS]:
        sentence = f"Not used: {hang_text.shown_path(diagnosis, path)}: {what}"
        yield text(sentence, look="level-warning", indent=(0, 2))
    if len(problems) > _MOST_PROBLEMS:
        yield text(say("more_files", more=len(problems) - _MOST_PROBLEMS))
    sentence = hang_text.hang_sentence(diagnosis)
    notes = tuple(note for note in notes if note not in sentence)
    for note in notes[:_MOST_NOTES]:
        yield text(f"Note: {note}", look="soft", indent=(0, 2))
    if len(notes) > _MOST_NOTES:
        yield text(say("more_notes", more=len(notes) - _MOST_NOTES), look="soft")
