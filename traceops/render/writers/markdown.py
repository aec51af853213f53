"""Markdown within a number of bytes: as many rows as there is room for, and how many were left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_CLOSE = "</details>"


@dataclass(frozen=True)
class FoldedPart:
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
