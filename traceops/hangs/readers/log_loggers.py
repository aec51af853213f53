"""Loggers that go on after a line that they call an error: its program did not end there."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SEARCHED = 200
_LEVEL = re.compile(
    r"(?:^|(?<=[\s|(\[:-]))(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)(?=[:|\s\]]|$)"
)
_SEVERE = frozenset(("ERROR", "FATAL", "CRITICAL"))
_AFTER = 12  # characters behind the level that belong to a logger's form, where nothing stands before it
_TIME = re.compile(r"\b(\d\d):(\d\d):(\d\d)\b")
_DAY = 86_400
_DONE = re.compile(r"\b(?i:finished|completed?|done|success\w{0,6}|saved)\b|(?i:output (?:dir|file|path))")
_FEWEST = 5  # lines that are no errors, behind the last that is one
_LATER_S = 60  # who shuts down after an error seldom takes longer
_AT_END = 5  # lines


@dataclass
class _Form:
    """Of one logger: its last line that is an error, and what came after it."""

    time: int | None
    mild: int = 0
    later_s: int = 0
    done: int = 0  # the last line that says that something came to its end


class Loggers:
    """Tells loggers by the form of their lines: '2025-08-27 00:30:38,017 - evalscope - ' without its digits."""

    def __init__(self) -> None:
        self._forms: dict[str, _Form] = {}
        self._form_of: dict[int, str] = {}  # of a line that is an error

    def take(self, number: int, body: str, *, severe: bool) -> None:
        """A line; severe: that it is listed as an error."""
        if not (severe or self._forms):
            return
        head = body[:_SEARCHED]
        if (level := _LEVEL.search(head)) is None:
            return
        form = _form(head, level)
        if level[1] in _SEVERE:
            self._forms[form] = _Form(_seconds(head))
            if severe:
                self._form_of[number] = form
        elif (told := self._forms.get(form)) is not None:
            told.mild += 1
            if told.time is not None and (now := _seconds(head)) is not None:
                told.later_s = max(told.later_s, (now - told.time) % _DAY)
            if _DONE.search(head) is not None:
                told.done = number

    def went_on(self, number: int, last: int) -> bool:
        """Whether the logger of the error in line `number` went on for long or to an end. last: the log's last line."""
        told = self._forms.get(self._form_of.get(number, ""))
        if told is None or told.mild < _FEWEST:
            return False
        return told.later_s >= _LATER_S or (told.done > 0 and last - told.done < _AT_END)


def _form(head: str, level: re.Match[str]) -> str:
    before = head[: level.start()]
    said = before if before.strip("[( ") else before + head[level.end() : level.end() + _AFTER]
    return "".join("0" if char.isdigit() else char for char in said)


def _seconds(head: str) -> int | None:
    """The time of day."""
    found = _TIME.search(head)
    return None if found is None else 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3])
