"""What the commands print through rich: text that is only text, and lines broken at words."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from traceops.core.text import as_shown, broken_at_words, printable, width_of
from traceops.render.cells import Table as Described


class PlainConsole(Console):
    def on_broken_pipe(self) -> None:
        """Let the command end as if all had been read; rich would exit with 1, which means findings."""
        raise BrokenPipeError


def plain(text: str, style: str = "") -> Text:
    """Text from a trace or a path: no markup, and no control characters that would steer the terminal."""
    return Text(printable(text), style=style)


def styled_lines(parts: Sequence[tuple[str, str]], width: int | None, hanging: int) -> list[Text]:
    """Parts of a line, each a text and a style, as `broken_at_words` breaks them."""
    whole = Text.assemble(*parts)
    text = whole.plain
    lines, at = [], 0
    for number, line in enumerate(broken_at_words(text, width, hanging)):
        words = line if number == 0 else line.lstrip(" ")
        at = text.index(words, at)
        piece = whole[at : at + len(words)]
        lines.append(piece if number == 0 else Text(" " * (len(line) - len(words))) + piece)
        at += len(words)
    return lines


_LEAST_TABLE = 60  # below that rich cuts numbers and leaves columns out


class WrappedPrinter:
    """Prints lines broken at words, for people who read a job's log. widths: a line is at least and at most so wide,
    whatever the terminal is."""

    def __init__(self, file: TextIO, widths: tuple[int, int]) -> None:
        least, most = widths
        self._file = file
        self._console = PlainConsole(file=file, highlight=False)
        self._console.width = min(max(width_of(file) or most, least), most)

    def line(self, *parts: tuple[str, str], hanging: int = 0) -> None:
        """Text in the style of its first part; further lines are indented by `hanging`, so that it stays one item."""
        text = "".join(part for part, _ in parts)
        style = parts[0][1] if parts else ""
        lines = textwrap.wrap(
            self._signs(text).strip(), self._console.width, initial_indent=" " * (len(text) - len(text.lstrip(" "))),
            subsequent_indent=" " * hanging, break_on_hyphens=False,
        )  # fmt: skip
        for line in lines or [""]:
            self._console.print(plain(line, style), soft_wrap=True)

    def whole(self, text: str, style: str = "") -> None:
        """A line as it is, not broken, so that it can be copied."""
        self._console.print(plain(text, style), soft_wrap=True)

    def table(self, table: Described, styles: Mapping[str, str]) -> None:
        """Columns as their `css` says: 'nowrap' keeps a cell on a line, 'fold' breaks it anywhere, 'whole' cuts none.
        styles: of cells, by their `css`. A header without words is left out."""
        shown = Table(
            box=None, pad_edge=False, header_style="dim", caption_justify="left",
            caption=self._signs(table.note) or None, show_header=any(column.label for column in table.columns),
        )  # fmt: skip
        rows = [[self._signs(cell.text) for cell in row] for row in table.rows]
        for place, column in enumerate(table.columns):
            widest = max(map(len, (column.label, *(row[place] for row in rows))))
            shown.add_column(
                self._signs(column.label),
                justify="right" if column.number else "left",
                no_wrap="nowrap" in column.css,
                overflow="fold" if "fold" in column.css or self._signs("…") != "…" else "ellipsis",
                min_width=widest if "whole" in column.css else None,
            )
        for row, cells in zip(rows, table.rows, strict=True):
            looks = [styles.get(cell.css, "") for cell in cells]
            if len(set(looks)) == 1:
                shown.add_row(*map(Text, row), style=looks[0])
            else:
                shown.add_row(*(Text(text, look) for text, look in zip(row, looks, strict=True)))
        lines = self._console.width
        self._console.width = max(lines, _LEAST_TABLE)
        self._console.print(shown)
        self._console.width = lines

    def _signs(self, text: str) -> str:
        """What is printed of a text, sign for sign."""
        # '0-3' for '0–3': many terminals and logs behind ssh have ASCII only
        return as_shown(printable(text).replace("–", "-"), self._file)
