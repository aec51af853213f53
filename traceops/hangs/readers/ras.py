"""NCCL's RAS report as text (ncclras): communicators whose ranks have launched different numbers of collectives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from traceops.core.rank_text import who_first
from traceops.hangs.evidence import LogEvent
from traceops.traces.text_lines import text_lines

_HEAD = re.compile(r"^#(\d{1,9})-(\d{1,9}) \(([0-9a-f]{1,16})\) ([A-Z]{2,20})\s*$")
_KIND = re.compile(r"^  Communicator ranks have different (\w{1,40}) operation counts")
_COUNT = re.compile(
    r"^  (\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)"
)
_ONE = re.compile(
    r"^  Rank (\d{1,7}) has (?:launched up to operation (\d{1,18})|not launched any operations)"
)
_RANK = re.compile(r"^  Rank (\d{1,7}) -- GPU ")
_MOST_LINES = 200_000
SUMMARY = b"Communicators... ("  # what the report has and no other text


@dataclass(frozen=True)
class Lag:
    """Ranks of one communicator that are apart from the others. op: 'AllGather', or 'collective' where none is told.

    line: of the communicator's warning. ranks have launched `count` operations, the `others` others `of_others`.
    """

    line: int
    communicator: str
    op: str
    ranks: tuple[int, ...]
    count: int
    others: int
    of_others: int

    @property
    def text(self) -> str:
        """What the report says, in a sentence without its full stop."""
        apart = abs(self.count - self.of_others)
        side = "ahead of" if self.count > self.of_others else "behind"
        verb = "has" if len(self.ranks) == 1 else "have"
        return (
            f"{who_first(self.ranks)} {verb} launched {self.op} {self.count} of communicator {self.communicator}, "
            f"{apart} {side} the {self.others} others ({self.of_others})"
        )


def read_ras(path: str) -> tuple[LogEvent, ...]:
    """An event for each group of ranks that a report names; raises InputError where the file cannot be read."""
    return tuple(
        LogEvent("ras", None, path, lag.line, lag.text, op=lag.op, sequence=lag.count)
        for lag in read_lags(list(islice(text_lines(path), _MOST_LINES)))
    )


def read_lags(lines: list[tuple[int, str]]) -> Iterator[Lag]:
    """The ranks that a report names as apart from most. lines: (number, text) of the file."""
    start, hash_, op = 0, "", "collective"
    counts: list[tuple[int, int]] = []  # ranks, operations
    named: dict[int, list[int]] = {}  # operations -> ranks
    for number, line in [*lines, (0, "#0-0 (0) END")]:
        if (head := _HEAD.match(line)) is not None:
            yield from _lags(start, hash_, op, counts, named)
            start, hash_, op, counts, named = number, head[3], "collective", [], {}
        elif (kind := _KIND.match(line)) is not None:
            if counts:  # the same communicator, of another operation
                yield from _lags(start, hash_, op, counts, named)
                start, counts, named = number, [], {}
            op = kind[1]
        elif (count := _COUNT.match(line)) is not None:
            counts.append((int(count[1]), int(count[2] or 0)))
        elif (one := _ONE.match(line)) is not None:
            counts.append((1, int(one[2] or 0)))
            named.setdefault(int(one[2] or 0), []).append(int(one[1]))
        elif (rank := _RANK.match(line)) is not None and counts:
            named.setdefault(counts[-1][1], []).append(int(rank[1]))


def _lags(
    start: int, hash_: str, op: str, counts: list[tuple[int, int]], named: dict[int, list[int]]
) -> Iterator[Lag]:
    if len(counts) < 2:
        return
    others, of_others = max(counts)
    for count, ranks in named.items():
        if count != of_others:
            yield Lag(start, hash_, op, tuple(sorted(ranks)), count, others, of_others)
