"""Markdown within a number of bytes: as many rows as there is room for, and how many were left out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from traceops.core.text import one_line, short_name

# Text from a trace as Markdown that GitHub shows as it is: nothing in it is formatted, linked or mentioned.

_BREAK = "\u200b"  # a space without width: GitHub looks for mentions and links in the finished text
_ENTITIES = {
    _BREAK: "&#8203;", "&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "\\": "&#92;", "$": "<span>$</span>",
}  # fmt: skip
_FORMATTING = frozenset("`*_[]~")
_LINKS = (
    (re.compile(r"@(?=\w)"), f"@{_BREAK}"),
    (re.compile(r"#(?=\d)"), f"#{_BREAK}"),
    (re.compile(r"\b(GH)-(?=\d)", re.IGNORECASE), rf"\1-{_BREAK}"),
    (re.compile(r"://"), f":{_BREAK}//"),
    (re.compile(r"\b(www|mailto|xmpp)([.:])", re.IGNORECASE), rf"\1{_BREAK}\2"),
    (re.compile(r"(?<!:):(?=[\w+-]+:(?!:))"), f":{_BREAK}"),  # :tada:
)
_BLOCK_START = re.compile(r"^(\d+)([.)])|^([#+=-])")
_ANY_MARK = re.compile(r"[^A-Za-z0-9 ]")


def prose(text: str, limit: int = 600) -> str:
    """Words to stand in a paragraph, a list item or a table's cell. Mentions, references, commit-like links and emoji
    codes stay plain text, formatting signs are shown."""
    said = one_line(text, limit)  # which leaves no break that was there before
    for pattern, instead in _LINKS:
        said = pattern.sub(instead, said)
    escaped = "".join(_ENTITIES.get(char) or (f"\\{char}" if char in _FORMATTING else char) for char in said)
    return _BLOCK_START.sub(_no_block, escaped)


def code(text: str, limit: int = 72) -> str:
    """A name in a code span, shortened; one with a pipe, backtick or backslash keeps them inside a table, too."""
    if not (said := one_line(short_name(one_line(text, 8192), limit), limit + 8)):
        return "–"
    if any(char in said for char in "`|\\"):  # a span cannot hold them in a table: as an element with entities
        return f"<code>{_ANY_MARK.sub(lambda found: f'&#{ord(found[0])};', said)}</code>"
    return f"`{said}`"


def table(header: tuple[str, ...], rows: list[list[str]], right: tuple[int, ...] = ()) -> list[str]:
    """The lines of a table of cells that are Markdown already; columns `right` are set to the right."""
    rule = ("---:" if column in right else "---" for column in range(len(header)))
    return [_row(header), _row(tuple(rule)), *(_row(tuple(row)) for row in rows)]


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _no_block(found: re.Match[str]) -> str:
    """What would begin a list, a heading or an underline at a line's start."""
    if found[3]:
        return f"&#{ord(found[3])};"
    return f"{found[1]}&#{ord(found[2])};"


_CLOSE = "</details>"


class FoldedPart(Struct, frozen=True):
    """A folded part: lines that always stand, then rows of which as many are kept as there is room for."""

    title: str
    opening: tuple[str, ...]
    rows: tuple[str, ...]  # the first of them; no more than these are ever shown
    total: int
    more: str = ""  # the file that has all rows


def folded(part: FoldedPart, limit: int) -> list[str]:
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
