"""Habits that make a reader read twice, as a pattern: held by tests of the README, docs, help texts and rules."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TICS = (
    r"(?<!close to )tells?|told",  # reports, shows, says
    r"(?:is|are) seen to",
    r"nobody|hardly",
    r"(?:its|their) peers'?",  # the other ranks
    r"cure[sd]?|curing|mend(?:s|ed|ing)?",  # fix
    r"of which|than which|that of it",
    r"what was read|looked at",  # checked
    r"at hand|no surer than|by turns|all the same|that much|as recorded|at most what",
    r"beside",  # next to, in addition to
    r"behind",  # after
    r"there is nothing to|has room for|bound it too|in want of|and the like",
    r"(?:\d|ms|µs|[kMGT]i?B|GB/s|bytes|samples|tokens|kernels|calls|times|once|twice) an? (?:step|second|rank|GPU)",
    r"whom|thereof|to be had|knows? nothing of|whoever|anew",
)
TICS = re.compile(rf"(?<![\w-])(?:{'|'.join(_TICS)})(?![\w-])", re.IGNORECASE)


def prose(markdown: str) -> str:
    """A page without what is quoted from the program: blocks and spans of code, and targets of links."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.S | re.M)
    return " ".join(re.sub(r"``.+?``|`[^`\n]+`|\]\([^)]*\)", " ", text).split())


def tics_in(texts: Iterable[str]) -> list[str]:
    """Each tic with the words around it."""
    found = []
    for text in texts:
        for match in TICS.finditer(text):
            around = text[max(match.start() - 40, 0) : match.end() + 40]
            found.append(f"{match[0]!r} in {' '.join(around.split())!r}")
    return found
