"""Blocks of a Document as Markdown that GitHub and GitLab show as it is, within a number of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceops.render.answer import AlignedSteps
from traceops.render.document import (
    Answer,
    Block,
    Checks,
    Code,
    Facts,
    FindingBlock,
    Fold,
    Heading,
    Items,
    Span,
    TableBlock,
    Terms,
    Text,
)
from traceops.render.markdown_text import code, prose, table

_MOST = 600  # characters of a paragraph
_CLOSE = "</details>"


@dataclass(frozen=True)
class Part:
    """A folded part: lines that always stand, then rows of which as many are kept as there is room for."""

    title: str
    opening: tuple[str, ...]
    rows: tuple[str, ...]  # the first of them; no more than these are ever shown
    total: int
    more: str = ""  # the file that has all rows


def write_markdown(blocks: Sequence[Block], *, limit: int) -> list[str]:
    """Lines of the blocks, of at most `limit` bytes; what does not fit is left out from the end.

    Everything is escaped: no mention, reference, link or HTML of a trace takes effect. Charts and drawings have no
    lines.
    """
    return fitting([line for block in blocks for line in _lines(block)], limit)


def folded(part: Part, limit: int) -> list[str]:
    """The part as lines of at most `limit` bytes, and how many of its rows were left out; nothing if too small."""
    start = ["", f"<details><summary>{part.title}</summary>", "", *part.opening]
    left_out = f"{part.total} more in {part.more}."
    room = limit - size([*start, "", left_out, "", _CLOSE])
    rows = fitting(part.rows, room)
    if room < 0 or (not rows and part.opening):
        return []
    rest = part.total - len(rows)
    return [*start, *rows, "", *([f"{rest} more in {part.more}.", ""] if rest else []), _CLOSE]


def fitting(rows: Sequence[str], limit: int) -> list[str]:
    """The first rows that together take no more than `limit` bytes."""
    kept = []
    for row in rows:
        limit -= size([row])
        if limit < 0:
            break
        kept.append(row)
    return kept


def size(lines: Sequence[str]) -> int:
    """Bytes of the lines with their breaks."""
    return sum(len(line.encode("utf-8", "replace")) + 1 for line in lines)


def _lines(block: Block) -> list[str]:
    if isinstance(block, Text):
        return [words(block.spans), ""]
    if isinstance(block, Heading):
        return [f"{'#' * block.level} {prose(block.text, _MOST)}", ""]
    if isinstance(block, Items):
        return [*(_item(item, block.ordered, number) for number, item in enumerate(block.items, 1)), ""]
    if isinstance(block, TableBlock):
        return _table(block)
    if isinstance(block, Facts):
        return [*(f"- {prose(label, _MOST)}: {prose(cell.text, _MOST)}" for label, cell in block.facts), ""]
    if isinstance(block, Code):
        return ["```", *(line.replace("```", "` ` `") for line in block.lines), "```", ""]
    if isinstance(block, FindingBlock):
        found = block.finding
        return [
            f"- **{found.severity}** {prose(found.rule, 20)} {prose(found.title, 120)}: {prose(found.message, 400)}"
        ]
    if isinstance(block, Checks):
        return [f"- {prose(check.rule, 20)}: {check.status}" for check in block.checks]
    if isinstance(block, Terms):
        return [
            *(f"- {prose(term.label, _MOST)}: {prose(term.definition, _MOST)}" for term in block.terms),
            "",
        ]
    if isinstance(block, Fold):
        return [line for inner in block.blocks for line in _lines(inner)]
    if isinstance(block, Answer):
        told = [
            (label, " ".join(line for one in said for line in _lines(one) if line))
            for label, said in block.lines
        ]
        told += [(cost.label, prose(cost.text, _MOST)) for cost in block.costs]
        return [*(f"- **{prose(label, 80)}**: {said}" for label, said in told), ""]
    if isinstance(block, AlignedSteps):
        marks = [
            (lane.label.splitlines()[0], mark.text)
            for lane in block.lanes
            for mark in lane.marks
            if mark.text
        ]
        return [*(f"- {prose(label, 80)}: {prose(said, _MOST)}" for label, said in marks), ""]
    return []


def words(spans: Sequence[Span]) -> str:
    """Spans as one escaped line."""
    made = []
    for span in spans:
        if span.style == "code":
            made.append(code(span.text))
        elif span.style == "bold" and span.text.strip():
            made.append(f"**{prose(span.text, _MOST)}**")
        else:
            made.append(_inside(span.text))
    return "".join(made)


def _inside(text: str) -> str:
    """Prose that keeps the spaces between spans."""
    said = prose(text, _MOST)
    return f"{' ' if text[:1] == ' ' else ''}{said}{' ' if text[-1:] == ' ' and said else ''}"


def _item(item: Sequence[Block], ordered: bool, number: int) -> str:
    said = " ".join(line for block in item for line in _lines(block) if line)
    return f"{f'{number}.' if ordered else '-'} {said}"


def _table(block: TableBlock) -> list[str]:
    columns = block.table.columns
    header = tuple(prose(column.label, 80) for column in columns)
    rows = [[prose(cell.full or cell.text, 200) for cell in row] for row in block.table.rows]
    right = tuple(place for place, column in enumerate(columns) if column.number)
    return [*table(header, rows, right), ""]
