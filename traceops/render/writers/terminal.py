"""Blocks of a Document as lines on a terminal; elsewhere the same lines without colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from traceops.render.document import Block, Code, Facts, FindingBlock, Fold, Heading, Items, TableBlock, Text
from traceops.render.evidence_text import evidence_lines
from traceops.render.printer import Printer

MARK = {"error": "✖", "warning": "▲", "info": "●", "clear": "✔"}
STYLE = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "clear": "bold green"}
_SPAN = {"bold": "bold", "soft": "dim", "": "", "code": "", "quote": "", "name": "bold"}
_LOOK = {"soft": "dim", "bold": "bold", **{f"level-{level}": style for level, style in STYLE.items()}}


def write_terminal(blocks: Sequence[Block], file: TextIO, *, indent: str = "") -> None:
    """Print the blocks in order. Charts and drawings have no lines; what is folded on a page is printed.

    A table's columns of numbers stand to the right, the others to the left, its note below it; a column of the look
    'bar' is cut where space is short.
    """
    printer = Printer(file)
    for block in blocks:
        _write(printer, block, indent)


def _write(printer: Printer, block: Block, indent: str) -> None:
    if isinstance(block, Text):
        look = _LOOK.get(block.look, "")
        lead = [(indent, "")] if indent else []
        printer.line(*lead, *((span.text, _SPAN.get(span.style, "") or look) for span in block.spans))
    elif isinstance(block, Heading):
        printer.line((indent + block.text, "bold"))
    elif isinstance(block, Items):
        for number, item in enumerate(block.items, 1):
            for one in item:
                _write(printer, one, f"{indent}{number}. " if block.ordered else f"{indent}- ")
    elif isinstance(block, TableBlock):
        table = block.table
        left = [place for place, column in enumerate(table.columns) if not column.number]
        bars = next((place for place, column in enumerate(table.columns) if column.css == "bar"), None)
        header = [column.label for column in table.columns]
        rows = [[cell.text for cell in row] for row in table.rows]
        printer.table(header, rows, left, table.note, bars)
    elif isinstance(block, Facts):
        for label, cell in block.facts:
            printer.line((f"{indent}{label}: ", "dim"), (cell.text, ""))
    elif isinstance(block, Code):
        for line in block.lines:
            printer.line((indent + line, ""))
    elif isinstance(block, FindingBlock):
        found = block.finding
        style = STYLE[found.severity]
        printer.line(
            (f"{indent}{MARK[found.severity]} {found.rule} ", style),
            (f"{found.title}. ", f"{style} bold"),
            (found.message, style),
        )
        for line in evidence_lines(found):
            printer.line((f"{indent}    {line}", "dim"))
        if found.severity != "info":
            printer.line((f"{indent}    → {found.advice}", ""))
    elif isinstance(block, Fold):
        for inner in block.blocks:
            _write(printer, inner, indent)
