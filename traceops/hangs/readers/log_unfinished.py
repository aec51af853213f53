"""Logs that end in the middle of a progress bar with what Python says of a process that is gone."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Python's resource tracker outlives the process whose shared memory and semaphores it counts.
_GONE = "resource_tracker: There appear to be "
_BAR = re.compile(
    r"(?P<name>[^\r|%]{0,80}?)\s{0,4}(?:\d{1,3}%[^\r]{0,200})?"
    r"(?<!\d)(?P<done>\d{1,9})/(?P<of>\d{1,9}) \[[^\]\r]{1,100}\]\s{0,4}$"
)
_BEFORE = 400  # characters in which the bar stands
_AT_END = 3  # lines


class Unfinished:
    """The bar in the middle of which a process ended, where the log ends there too."""

    def __init__(self) -> None:
        self._before = ""
        self._found: tuple[int, int | None, str] | None = None

    def take(self, number: int, line: str) -> None:
        """A line as it stands in the log, with the bars in it."""
        said, _, gone = line.partition(_GONE)
        if gone[:1].isdecimal():
            place = said.rpartition("]")  # the bar in this line, or the line before
            shown = f"{place[0]}]"[-_BEFORE:] if place[1] else self._before
            bar = _BAR.search(shown.rpartition("\r")[2])
            if bar is not None and int(bar["done"]) < int(bar["of"]):
                name = bar["name"].strip(" :") or "a progress bar"
                self._found = number, None, f"{name}: {bar['done']}/{bar['of']}, then {_GONE}{gone.strip()}"
        elif not gone and line.strip():
            self._before = line.rstrip()[-_BEFORE:]

    def found(self, last: int) -> Iterable[tuple[int, int | None, str]]:
        """Line number, who says it, text. last: the log's last line."""
        if self._found is not None and last - self._found[0] <= _AT_END:
            yield self._found
