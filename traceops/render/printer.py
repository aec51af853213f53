"""Styled lines and tables of a command's output: by rich on a terminal, as plain text elsewhere."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TextIO

from traceops.core.plain_text import printable

if TYPE_CHECKING:
    from traceops.render.console import WrappedPrinter


def wrapped_printer(file: TextIO, widths: tuple[int, int]) -> WrappedPrinter:
    """Prints lines that are broken at words, at least and at most so wide."""
    from traceops.render import console

    return console.WrappedPrinter(file, widths)


_GAP = "  "  # between columns
_WIDTH = 80  # of what is no terminal, as rich takes it


class Printer:
    """Prints to a terminal in colour, anywhere else without: there rich need not be imported.

    A part of a line is its text, which nobody has looked at, and rich's name of a style.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._console = None
        # rich decides, and may know better than the file: FORCE_COLOR and TTY_COMPATIBLE are for it.
        if file.isatty() or not os.environ.keys().isdisjoint(("FORCE_COLOR", "TTY_COMPATIBLE")):
            from traceops.render.console import PlainConsole

            self._console = PlainConsole(file=file, highlight=False, soft_wrap=True)

    def line(self, *parts: tuple[str, str], hanging: int = 0) -> None:
        """A line; on a terminal that is not wide enough several, broken at words, the further ones indented."""
        shown = [(printable(text), style) for text, style in parts]
        if self._console is None:
            self._file.write("".join(text for text, _ in shown) + "\n")
        else:
            from traceops.render.console import broken_at_words

            for line in broken_at_words(shown, self._console.width, hanging):
                self._console.print(line)

    def whole(self, text: str, style: str = "") -> None:
        """A line as it is, so that it can be copied; a terminal that is not wide enough breaks it itself."""
        if self._console is None:
            self.line((text, style))
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
        rows = [[printable(cell) for cell in row] for row in rows]
        if self._console is not None:
            from traceops.render.console import rich_table

            self._console.print(rich_table(header, rows, left, caption))
            return
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        if bars is not None:
            others = sum(widths) - widths[bars] + len(_GAP) * (len(widths) - 1)
            widths[bars] = min(widths[bars], max(_WIDTH - others, 1))
        for row in (header, *rows):
            cells = [
                _cut(cell, width).ljust(width) if place in left else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self._file.write(_GAP.join(cells) + "\n")
        if caption:
            self._file.write(caption + "\n")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
