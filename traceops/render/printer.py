"""Styled lines and tables of a command's output, as wide as its terminal: by rich there, as plain text elsewhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from msgspec import Struct

from traceops.core.text import USUAL_WIDTH, as_shown, broken_at_words, printable, width_of

# Tables as lines of text no wider than a terminal.

GAP = "  "  # between columns
_PIECES = re.compile(r"[^\s_:,/<>(]*[\s_:,/<>(]+|[^\s_:,/<>(]+")
_LEAST_BAR = 4
_LEAST_TEXT = 8  # columns that words keep, where they have so many


class Lines(Struct, frozen=True):
    """A table as text: lines of its header, and of its rows."""

    header: list[str]
    rows: list[str]


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int], width: int, bars: int | None = None,
    more: str = "…",
) -> list[Lines]:  # fmt: skip
    """A table as lines, columns to the right but for those in `left`. Without space, `bars` are drawn shorter (text in
    them is cut, which `more` shows) or left out first; then headers are broken at words, then words in cells of `left`.
    Numbers are never broken: where there are too many, the columns stand in several tables, each with the first one,
    whose cells are then whole if they take no more than a third of the width."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    names = widths[0]
    over = _over(widths, width)
    if over > 0 and bars is not None:
        if widths[bars] - over < _LEAST_BAR:
            places = [place for place in range(len(widths)) if place != bars]
            return table_lines(*_of(places, header, rows, left), width)
        whole, widths[bars] = widths[bars], widths[bars] - over
        rows = [_with_bar(row, bars, widths[bars] / whole) for row in rows]
        over = 0
    over = _narrow(widths, [_least_width(title, place, rows) for place, title in enumerate(header)], over)
    if over > 0:
        words = [place in left for place in range(len(widths))]
        least = [min(w, _LEAST_TEXT) if may else w for w, may in zip(widths, words, strict=True)]
        over = _narrow(widths, least, over)
    if over > 0 and len(widths) > 2:
        widths[0] = max(widths[0], min(names, width // 3))
        fits = len(widths) - 1
        while fits > 2 and _over(widths[:fits], width) > 0:
            fits -= 1
        first = table_lines(*_of(range(fits), header, rows, left), width)
        return first + table_lines(*_of([0, *range(fits, len(widths))], header, rows, left), width)
    made = [_row(row, widths, left, bars, more) for row in (header, *rows)]
    return [Lines(made[0], [line for lines in made[1:] for line in lines])]


def _with_bar(row: Sequence[str], place: int, scale: float) -> Sequence[str]:
    """The row with its bar drawn shorter; other text is cut later."""
    bar = row[place]
    return row if bar.strip("█") else [*row[:place], "█" * round(len(bar) * scale), *row[place + 1 :]]


def _of(
    places: Sequence[int], header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int]
) -> tuple[list[str], list[list[str]], list[int]]:
    """Some columns of a table, in this order."""
    return (
        [header[place] for place in places],
        [[row[place] for place in places] for row in rows],
        [at for at, place in enumerate(places) if place in left],
    )


def _over(widths: Sequence[int], width: int) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1) - width


def _narrow(widths: list[int], least: Sequence[int], over: int) -> int:
    """Take `over` from the widest columns, none below its least; returns what is still too much."""
    while over > 0:
        place = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i] - least[i]))
        if widths[place] <= least[place]:
            break
        widths[place] -= 1
        over -= 1
    return over


def _least_width(title: str, place: int, rows: Sequence[Sequence[str]]) -> int:
    """Of a column whose title may be broken at words and whose cells may not."""
    return max(*(len(row[place]) for row in rows), *(len(word) for word in title.split()), 0, 0)


def _row(cells: Sequence[str], widths: Sequence[int], left: Collection[int], bars: int | None, more: str) -> list[str]:
    broken = [
        [_cut(cell, width, more)] if place == bars else _broken(cell, width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return [
        GAP.join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in zip_longest(*broken, fillvalue="")
    ]


def _broken(cell: str, width: int) -> list[str]:
    """Lines of a cell: broken behind blanks and signs of a name, or anywhere in what is still too wide."""
    if len(cell) <= width:
        return [cell]
    lines = [""]
    for piece in _PIECES.findall(cell):
        if len(lines[-1]) + len(piece.rstrip()) > width and lines[-1]:
            lines.append("")
        rest = lines.pop() + piece
        while len(rest.rstrip()) > width:
            lines.append(rest[:width])
            rest = rest[width:]
        lines.append(rest)
    return [line.rstrip() for line in lines]


def _cut(text: str, most: int, more: str) -> str:
    return text if len(text) <= most else f"{text[: most - len(more)]}{more}"


if TYPE_CHECKING:
    from traceops.render.console import WrappedPrinter


def wrapped_printer(file: TextIO, widths: tuple[int, int]) -> WrappedPrinter:
    """Prints lines that are broken at words, at least and at most so wide."""
    from traceops.render import console

    return console.WrappedPrinter(file, widths)


class Printer:
    """Prints to a terminal in colour, anywhere else without, at most 80 columns wide: there rich need not be imported.
    A part of a line is its text, which nobody has looked at, and rich's name of a style."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._width = width_of(file)  # None: nobody sees it as it is
        self._console = None
        # rich decides, and may know better than the file: FORCE_COLOR and TTY_COMPATIBLE are for it.
        if file.isatty() or not os.environ.keys().isdisjoint(("FORCE_COLOR", "TTY_COMPATIBLE")):
            from traceops.render.console import PlainConsole

            self._console = PlainConsole(file=file, highlight=False, soft_wrap=True)

    def line(self, *parts: tuple[str, str], hanging: int = 0) -> None:
        """A line; where there is not so much room several, broken at words, the further ones indented."""
        shown = [(self._signs(text), style) for text, style in parts]
        if self._console is None:
            for line in broken_at_words("".join(text for text, _ in shown), self._width, hanging):
                self._file.write(line + "\n")
        else:
            from traceops.render.console import styled_lines

            for styled in styled_lines(shown, self._width, hanging):
                self._console.print(styled)

    def whole(self, text: str, style: str = "") -> None:
        """A line as it is, so that it can be copied; a terminal that is not wide enough breaks it itself."""
        if self._console is None:
            self._file.write(printable(text) + "\n")
        else:
            from traceops.render.console import plain

            shown = plain(text, style)
            shown.highlight_regex("█+", "blue")
            self._console.print(shown)

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int], caption: str = "",
        bars: int | None = None,
    ) -> None:  # fmt: skip
        """Columns under their names, to the right but for those in `left`; without space, `bars` are cut off."""
        names = [self._signs(name) for name in header]
        shown = [[self._signs(cell) for cell in row] for row in rows]
        width = self._width or USUAL_WIDTH
        for part in table_lines(names, shown, left, width, bars, self._signs("…")):
            for line in part.header:
                self.whole(line, "dim")
            for line in part.rows:
                self.whole(line)
        if caption:
            self.line((caption, "dim italic"))

    def _signs(self, text: str) -> str:
        """What is printed of a text, sign for sign."""
        return as_shown(printable(text), self._file)


def say(text: str, *, hanging: int = 2) -> None:
    """A sentence of a command's output, broken at words where its terminal is narrow; what is folded is indented."""
    Printer(sys.stdout).line((text, ""), hanging=hanging)
