"""Logs that end because somebody stopped the program: by Ctrl-C, or a signal of which it makes the same exception."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from traceops.core.short_text import first_words
from traceops.hangs.readers.line_prefixes import without_prefixes
from traceops.hangs.readers.log_steps import sightings
from traceops.traces.text_lines import blocks, lines

_INTERRUPTED = re.compile(r"(?=\S)(?:.{0,400}?[\s(\[:'\"-])?[Kk]eyboard[ _]?[Ii]nterrupt(?:ion|ed)?\b")
_WORD = b"eyboard"
_MOST_QUOTED = 160


def interruptions(texts: Iterable[Path]) -> tuple[tuple[str, str], ...]:
    """(file with line, what it says) of each that ends so: no failure of its own, and the answer to why it ended."""
    told = ((path, interrupted(str(path))) for path in texts)
    return tuple(
        (f"{path}:{seen[0]}", f"the program was interrupted, by Ctrl-C or a signal: “{seen[1]}”")
        for path, seen in told
        if seen is not None
    )


def interrupted(path: str) -> tuple[int, str] | None:
    """The line that tells of it and what that says; None where steps follow, or without one.

    Raises InputError where the file cannot be read.
    """
    found: tuple[int, str] | None = None
    for number, block in blocks(path):
        if _WORD not in block:
            found = None if found is not None and any(sightings(block)) else found
            continue
        for at, line in lines(block, number):
            body = without_prefixes(line)
            if _INTERRUPTED.match(body) is not None:
                found = found or (at, first_words(body.strip(), _MOST_QUOTED))
            elif found is not None and any(sightings(line.encode(errors="replace"))):
                found = None
    return found
