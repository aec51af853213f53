"""Lines that call themselves errors, in wordings that no rule knows: a log that holds them is not clean."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SEARCHED = 200
_MOST = 8
# What loggers and programs mark an error with: [ERROR], ERROR:, glog's E0913 23:44:51, TensorFlow's ': E ',
# Ascend's EI0006, 'srun: error: '.
_BEGIN = re.compile(
    r"\[?[EF]\d{3,4} \d\d:\d\d:\d\d\.\d"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9}: [EF] "
    r"|(?:\[?[\w.-]{1,40}\]? ?)?E[A-Z]\d{4}: "
)
_HOLD = re.compile(
    r"\[ ?(?:error|ERROR|fatal|FATAL|critical|CRITICAL) ?\]"
    r"|(?:^|[\s|(-])(?:ERROR|FATAL|CRITICAL)(?=[:|\s]|$)"
    r"|^[\w./-]{1,60}: (?:fatal )?error: "
    r"|\bUnhandled exception\b|: ABORT\s{0,8}$"
)
_WORDS = (
    "error",
    "ERROR",
    "fatal",
    "FATAL",
    "critical",
    "CRITICAL",
    "ABORT",
    "Unhandled",
)  # one is in what _HOLD finds
# Errors by name that healthy programs print.
_HARMLESS = ("pip's dependency resolver", "Unable to register cu", "already registered")


class Suspects:
    """The first few such lines, each message once."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int | None, str]] = {}

    def take(self, number: int, rank: int | None, body: str) -> None:
        if len(self._found) >= _MOST or not _is_severe(body[:_SEARCHED]):
            return
        if not any(words in body for words in _HARMLESS):
            alike = "".join(char for char in body if char.isalpha())[:_SEARCHED]
            self._found.setdefault(alike, (number, rank, body.strip()))

    def found(self) -> Iterable[tuple[int, int | None, str]]:
        """Line number, who says it, text."""
        return self._found.values()


def _is_severe(head: str) -> bool:
    if _BEGIN.match(head) is not None:
        return True
    return any(word in head for word in _WORDS) and _HOLD.search(head) is not None
