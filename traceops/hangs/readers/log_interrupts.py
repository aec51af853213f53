"""Logs that end because somebody stopped the program: by Ctrl-C, or a signal of which it makes the same exception."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from traceops.core.short_text import first_words
from traceops.hangs.readers.line_prefixes import without_prefixes
from traceops.hangs.readers.log_steps import sightings
from traceops.traces.text_lines import blocks, lines

_NAME = re.compile(r"(?<![a-z\d_])[Kk]eyboard[ _]?[Ii]nterrupt(?:ion|ed)?\b")
_CAME = re.compile(
    r"\b(?:detected|received|caught|got|raised|stopped by|ended by)(?: an?| the)? $", re.IGNORECASE
)
_DID_COME = re.compile(r" (?:was |signal )?(?:detected|received|caught|raised)\b", re.IGNORECASE)
_NEXT = re.compile(r" ?[^\w\s]|\s{0,8}$")  # an exception's message, or the next sentence
_SEARCHED = 400
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
            if _says_so(body):
                found = found or (at, first_words(body.strip(), _MOST_QUOTED))
            elif found is not None and any(sightings(line.encode(errors="replace"))):
                found = None
    return found


def _says_so(body: str) -> bool:
    """Whether a line is the exception's own, or says that it came: 'Detected KeyboardInterrupt, attempting …'.

    A program that only names it ('registered a handler for keyboard interrupt') was not interrupted.
    """
    told = _NAME.search(body, 0, _SEARCHED)
    if told is None or body[:1].isspace():
        return False
    before = body[: told.start()]
    if _CAME.search(before) is not None or _DID_COME.match(body, told.end()) is not None:
        return True
    labels = before.removesuffix("^C").split()
    return all(_is_label(word) for word in labels) and _NEXT.match(body, told.end()) is not None


def _is_label(word: str) -> bool:
    """Whether a word is of a time, a level or of who says a line, and no text."""
    return word.isupper() or not (word.isalpha() or word.endswith((".", ",", ";", "except")))
