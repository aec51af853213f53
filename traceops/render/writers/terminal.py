"""Blocks of a Document as lines on a terminal; elsewhere the same lines without colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from traceops.core.findings import Finding
from traceops.render import document
from traceops.render.cells import Table
from traceops.render.finding_blocks import evidence_lines
from traceops.render.printer import Printer, wrapped_printer

if TYPE_CHECKING:
    from traceops.render.console import WrappedPrinter

MARK = {"error": "✖", "warning": "▲", "info": "●", "clear": "✔"}
STYLE = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "clear": "bold green"}
_SPAN = {"bold": "bold", "soft": "dim", "": "", "code": "", "quote": "", "name": "bold"}
_SPAN |= {"cost slower": "red", "cost faster": "green"}
_LOOK = {"": "", "soft": "dim", "bold": "bold", **{f"level-{level}": style for level, style in STYLE.items()}}


def write_terminal(
    blocks: Sequence[document.Block], file: TextIO, *, widths: tuple[int, int] | None = None, captions: bool = False
) -> None:
    """Print the blocks in order. What is folded on a page is printed; charts and drawings have no lines, aligned steps
    what is pointed out in them.

    widths: lines are broken at words, at least and at most so wide, as suits a job's log; without, the terminal breaks
    them. A table's columns of numbers stand to the right, the others to the left, its note below it; a column of the
    look 'bar' is cut where space is short. Lines to copy are never broken. captions: of tables are printed above them.
    """
    printer = Printer(file) if widths is None else wrapped_printer(file, widths)
    for block in blocks:
        if captions and isinstance(block, document.TableBlock) and block.table.caption:
            printer.line((f"{block.table.caption}:", "dim"))
        _write(printer, block, "")


def _write(printer: Printer | WrappedPrinter, block: document.Block, indent: str) -> None:
    """What no terminal shows (charts, drawings) is left out."""
    match block:
        case document.Text():
            _write_text(printer, block, indent)
        case document.Heading():
            printer.line((indent + block.text, "bold"))
        case document.Items():
            for number, item in enumerate(block.items, 1):
                for one in item:
                    _write(printer, one, f"{indent}{number}. " if block.ordered else f"{indent}- ")
        case document.TableBlock():
            _write_table(printer, block.table)
        case document.Facts():
            for label, cell in block.facts:
                printer.line((f"{indent}{label}: ", "dim"), (cell.text, ""))
        case document.Code():
            for line in block.lines:
                printer.whole(indent + line, _LOOK.get(block.look, ""))
        case document.FindingBlock():
            _write_finding(printer, block.finding, indent)
        case document.Fold():
            for inner in block.blocks:
                _write(printer, inner, indent)
        case document.Answer():
            _write_answer(printer, block, indent)
        case document.AlignedSteps():
            for lane in block.lanes:
                for mark in filter(lambda mark: mark.text, lane.marks):
                    printer.line((f"{indent}{lane.label.splitlines()[0]}: {mark.text}", ""), hanging=2)


def _write_text(printer: Printer | WrappedPrinter, block: document.Text, indent: str) -> None:
    look = _LOOK.get(block.look, "")
    first, further = block.indent
    lead = indent + " " * first
    words = [(span.text, _SPAN.get(span.style, "") or look) for span in block.spans]
    if lead and words:
        words[0] = (lead + words[0][0], words[0][1])
    printer.line(*words, hanging=further)


def _write_answer(printer: Printer | WrappedPrinter, block: document.Answer, indent: str) -> None:
    for label, said in block.lines:
        printer.line((f"{indent}{label}:", "bold"))
        for one in said:
            _write(printer, one, f"{indent}  ")
    for cost in block.costs:
        printer.line((f"{indent}{cost.label}: ", "dim"), (cost.text, "bold"))


def _write_table(printer: Printer | WrappedPrinter, table: Table) -> None:
    if not isinstance(printer, Printer):
        printer.table(table, _LOOK)
        return
    left = [place for place, column in enumerate(table.columns) if not column.number]
    bars = next((place for place, column in enumerate(table.columns) if column.css == "bar"), None)
    header = [column.label for column in table.columns]
    rows = [[cell.text for cell in row] for row in table.rows]
    printer.table(header, rows, left, table.note, bars)


def _write_finding(printer: Printer | WrappedPrinter, found: Finding, indent: str) -> None:
    style = STYLE[found.severity]
    printer.line(
        (f"{indent}{MARK[found.severity]} {found.rule} ", style),
        (f"{found.title}. ", f"{style} bold"),
        (found.message, style),
        hanging=2,
    )
    for line in evidence_lines(found):
        printer.line((f"{indent}    {line}", "dim"), hanging=6)
    if found.advice and found.severity != "info":
        printer.line((f"{indent}    → {found.advice}", ""), hanging=6)
