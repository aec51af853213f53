"""Logs that end because somebody stopped the program: by Ctrl-C, or a signal of which it makes the same exception."""

from __future__ import annotations

import re

from traceops.core.text import first_words
from traceops.hangs.readers.line_prefixes import without_prefixes
from traceops.hangs.readers.log_steps import sightings
from traceops.traces.text_lines import blocks, lines

_NAME = re.compile(r"(?<![a-z\d_])[Kk]eyboard[ _]?[Ii]nterrupt(?:ion|ed)?\b")
_CAME = re.compile(r"\b(?:detected|received|caught|got|raised|stopped by|ended by)(?: an?| the)? $", re.IGNORECASE)
_DID_COME = re.compile(r" (?:was |signal )?(?:detected|received|caught|raised)\b", re.IGNORECASE)
_NEXT = re.compile(r" ?[^\w\s]|\s{0,8}$")  # an exception's message, or the next sentence
# DeepSpeed's 'Main process received SIGINT, exiting', torchrun's 'Received Signals.SIGINT death signal' and '… got
# signal: 2', 'Sending process 7 closing signal SIGINT'; srun's and mpirun's own words.
_SIGNAL = re.compile(
    r"\b(?:[Rr]eceived|[Gg]ot|[Cc]aught)(?: (?:an?|the|signal)){0,2}:? (?:Signals\.)?SIGINT\b(?! handler)"
    r"|\bSIGINT (?:was )?(?:received|caught)\b|\bReceived 2 death signal\b|\bclosing signal SIGINT\b"
    r"|\b[Gg]ot signal: 2(?!\d)|^(?:\^C)?srun: sending Ctrl-C to \S|^(?:\^C)?mpi(?:run|exec): killing job\b"
)
_ONLY_SAID = re.compile(r"\b(?i:if|when|whenever|once|until|unless|on|after|should|may|can|will|not|never|press)\b")
_SEARCHED = 400
_WORDS = (b"eyboard", b"SIGINT", b"ignal: 2", b" 2 death", b"Ctrl-C", b"killing job")
_MOST_QUOTED = 160


def interrupted(path: str) -> tuple[int, str] | None:
    """The line that tells of it and what that says; None where steps follow, or without one.

    Raises InputError where the file cannot be read.
    """
    found: tuple[int, str] | None = None
    for number, block in blocks(path):
        if not any(word in block for word in _WORDS):
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
    """Whether a line is the exception's own, or says that it or the signal came: 'Detected KeyboardInterrupt, …'.

    A program that only names it ('registered a handler for keyboard interrupt') was not interrupted.
    """
    if body[:1].isspace():
        return False
    if (signal := _SIGNAL.search(body, 0, _SEARCHED)) is not None:
        return _ONLY_SAID.search(body, 0, signal.start()) is None
    told = _NAME.search(body, 0, _SEARCHED)
    if told is None:
        return False
    before = body[: told.start()]
    if _CAME.search(before) is not None or _DID_COME.match(body, told.end()) is not None:
        return True
    labels = before.removesuffix("^C").split()
    return all(_is_label(word) for word in labels) and _NEXT.match(body, told.end()) is not None


def _is_label(word: str) -> bool:
    """Whether a word is of a time, a level or of who says a line, and no text."""
    return word.isupper() or not (word.isalpha() or word.endswith((".", ",", ";", "except")))
