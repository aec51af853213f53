"""Tables of several runs in Markdown."""

from __future__ import annotations

from traceops.render.cells import Table
from traceops.render.markdown_text import prose
from traceops.render.markdown_text import table as lines_of

_MOST = 300  # characters of a cell


def markdown_lines(table: Table) -> list[str]:
    """The lines of a table; numbers stand to the right and as they are, words are escaped."""
    right = tuple(place for place, column in enumerate(table.columns) if column.number)
    cells = [
        [cell.text if place in right else prose(cell.text, _MOST) for place, cell in enumerate(row)]
        for row in table.rows
    ]
    return lines_of(tuple(prose(column.label) for column in table.columns), cells, right)
