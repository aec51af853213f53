"""What the commands print through rich: text that is only text, and lines broken at words."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from traceops.core.plain_text import printable


class PlainConsole(Console):
    def on_broken_pipe(self) -> None:
        """Let the command end as if all had been read; rich would exit with 1, which means findings."""
        raise BrokenPipeError


def plain(text: str, style: str = "") -> Text:
    """Text from a trace or a path: no markup, and no control characters that would steer the terminal."""
    return Text(printable(text), style=style)


def rich_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int], caption: str = ""
) -> Table:
    """Columns without lines between them, to the right but for those in `left`; nothing in a cell is markup."""
    table = Table(
        box=None, pad_edge=False, header_style="dim", caption_justify="left", caption=caption or None
    )
    for place, title in enumerate(header):
        table.add_column(title, justify="left" if place in left else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def say(console: Console, text: str, style: str = "", hanging: int = 0) -> None:
    """Text broken at words; further lines are indented by `hanging`, so that each item stays one to the eye."""
    indent = len(text) - len(text.lstrip(" "))
    lines = textwrap.wrap(
        ascii_ranges(printable(text).strip()),
        console.width,
        initial_indent=" " * indent,
        subsequent_indent=" " * hanging,
        break_on_hyphens=False,
    )
    for line in lines:
        console.print(plain(line, style), soft_wrap=True)


def ascii_ranges(text: str) -> str:
    """'0-3' for '0–3': many terminals and logs behind ssh have ASCII only."""
    return text.replace("–", "-")
