"""Styled lines and tables of a command's output, as wide as its terminal: by rich there, as plain text elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TextIO

from traceops.core.plain_text import printable
from traceops.core.shown_text import USUAL_WIDTH, as_shown, broken_at_words, width_of
from traceops.render.text_table import table_lines

if TYPE_CHECKING:
    from traceops.render.console import WrappedPrinter


def wrapped_printer(file: TextIO, widths: tuple[int, int]) -> WrappedPrinter:
    """Prints lines that are broken at words, at least and at most so wide."""
    from traceops.render import console

    return console.WrappedPrinter(file, widths)


class Printer:
    """Prints to a terminal in colour, anywhere else without, at most 80 columns wide: there rich need not be imported.

    A part of a line is its text, which nobody has looked at, and rich's name of a style.
    """

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

            self._console.print(plain(text, style))

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        left: Collection[int],
        caption: str = "",
        bars: int | None = None,
    ) -> None:
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
