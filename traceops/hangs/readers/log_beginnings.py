"""Where a log begins once more: another attempt, which no launcher tells of, writes the same first lines."""

from __future__ import annotations

_SEARCHED = 200  # characters of a line
_COMPARED = 40  # letters: what tells a line from another, whatever its times and numbers are
_FEWEST = 8
_FAR = 50  # lines
_MOST = 1 << 14


class Beginnings:
    """Looks for the log's first two lines, one behind the other, behind a failure.

    found: the lines in which an attempt begins. is_furthest: whether the last one has said more than each before it,
    or much.
    """

    def __init__(self) -> None:
        self._head: list[str] = []
        self._begun = 0  # the last line that says anything, where it is like the first
        self._ordinary = False  # such lines come before anything failed: they begin no attempt
        self._said = 0  # lines of this attempt, without its tracebacks
        self._most_said = 0
        self.found: list[int] = []

    @property
    def is_furthest(self) -> bool:
        return bool(self.found) and self._said > min(self._most_said, _FAR)

    def take(self, number: int, body: str, failed: bool) -> None:
        """A line that says something."""
        self._said += 1
        letters = "".join(filter(str.isalpha, body[:_SEARCHED]))[:_COMPARED]
        if len(self._head) < 2:
            self._head.append(letters)
            self._ordinary = len(letters) < _FEWEST or letters in self._head[:-1]
            return
        if self._begun and letters == self._head[1]:
            if not failed:
                self._ordinary = True
            elif len(self.found) < _MOST:
                self.found.append(self._begun)
                self._most_said, self._said = max(self._most_said, self._said - 2), 2
        self._begun = number if letters == self._head[0] and not self._ordinary else 0
