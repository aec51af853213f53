"""What stands before each line of a log, whatever put it there: a traceback shows it, whose lines are known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from traceops.hangs.readers.log_tracebacks import MILD

_BEGINS = "Traceback (most recent call last)"
_FRAME = re.compile(r" {2}File \"")
_LONGEST = 200  # characters
_MOST = 8
_PARTS = re.compile(r"\d{1,200}|\s{1,200}|[^\d\s]{1,200}")
_FEWEST = 4  # lines
_SHARE = 0.9  # of the lines
_TOKEN = re.compile(r"\d{1,200}|[A-Za-z_]{1,200}|.")
_MOST_TOKENS = 80
# What a program writes at the left edge, or two spaces from it.
_AT_EDGE = re.compile(
    r"Traceback \(most recent| {2}File \"|Fatal Python error: |(?:Current t|T)hread 0x|={10}|-{10}|Failures:\s{0,8}$"
    r"|\[rank\d{1,7}\]:"
)
# Who says a line, which is read by itself: [rank3]:, [default3]:, [1,3]<stderr>:, 'Rank 3: ', '3: '.
_SPEAKER = re.compile(
    r"\[(?:rank|RANK)[ :=]{0,2}\d|\[[A-Za-z][A-Za-z_.-]{0,40}?\d{1,7}\]:|\[\d{1,9},|\b(?:Rank|RANK) \d|^ {0,6}\d{1,7}: "
)


class LearnedPrefixes:
    """Learns a prefix where a traceback's first line and the frame behind it have it; its numbers may differ."""

    def __init__(self) -> None:
        self._perhaps: re.Pattern[str] | None = None
        self._known: list[re.Pattern[str]] = []

    def without(self, line: str) -> str:
        """The line without a prefix that is known."""
        if self._perhaps is not None:
            perhaps, self._perhaps = self._perhaps, None
            match = perhaps.match(line)
            if match is not None and _FRAME.match(line, match.end()) is not None and len(self._known) < _MOST:
                self._known.append(perhaps)
        for known in self._known:
            if (match := known.match(line)) is not None:
                return line[match.end() :]
        if _BEGINS in line and (before := line[: line.index(_BEGINS)]).strip():
            self._perhaps = _pattern(before)
        return line


def _pattern(before: str) -> re.Pattern[str] | None:
    if len(before) > _LONGEST or _SPEAKER.search(before) is not None or MILD.search(before) is not None:
        return None  # of a warning the level says more than the traceback behind it
    parts = _PARTS.findall(before)
    made = [_part(part, is_end=at in (0, len(parts) - 1)) for at, part in enumerate(parts)]
    if parts[0].isspace():
        made[0] = r"\s{0,8}"
    return re.compile("".join(made))


def _part(part: str, *, is_end: bool) -> str:
    if part.isdecimal():
        return r"\d{1,20}"
    # Spaces at its end are the program's indentation, from which a frame is known.
    return r"\s{1,8}" if part.isspace() and not is_end else re.escape(part)


def common_prefix(lines: Sequence[str]) -> re.Pattern[str] | None:
    """What nearly all lines begin with but for its numbers, where what follows it shows that the program begins there.

    A label that says whose a line is ends it. None where there is no such thing.
    """
    said = [line for line in lines if line.strip()]
    if len(said) < _FEWEST:
        return None
    alike = [_TOKEN.findall(line.lstrip(" ")[:_LONGEST]) for line in said]
    made: list[str] = []
    while len(made) < _MOST_TOKENS:
        at = len(made)
        counts = Counter(_kind(tokens[at]) for tokens in alike if at < len(tokens))
        most, count = counts.most_common(1)[0] if counts else ("", 0)
        if count < _SHARE * len(said):
            break
        alike = [tokens for tokens in alike if at < len(tokens) and _kind(tokens[at]) == most]
        made.append(most)
    if not made:
        return None
    speaker = _SPEAKER.search("".join(alike[0][: len(made)]))
    while speaker is not None and made and len("".join(alike[0][: len(made)])) > speaker.start():
        made.pop()
    if not made:
        return None
    end = "(?: |$)" if made[-1] == " " else made[-1]
    prefix = re.compile("^ {0,12}" + _spaced(made[:-1]) + end)
    shown = any((match := prefix.match(line)) is not None and _AT_EDGE.match(line, match.end()) for line in said)
    return prefix if shown else None


def _spaced(made: Sequence[str]) -> str:
    """The parts of a prefix as one pattern; spaces in a row as one part, or each way to share them out is tried."""
    runs = ((one, len(list(several))) for one, several in groupby(made))
    return "".join(f" {{{count},{8 * count}}}" if one == " " else one * count for one, count in runs)


def _kind(token: str) -> str:
    if token.isdecimal():
        return r"\d{1,20}"
    return token if token == " " else re.escape(token)
