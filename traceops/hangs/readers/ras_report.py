"""What NCCL's RAS tells of communicators, whether it came as text or as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from traceops.core.rank_text import who_first

# What a status says of one rank and of several, in words; RUNNING and INIT are none.
_STATUS: Mapping[str, tuple[str, str]] = {
    "NOCOMM": (
        "no longer has communicator {}: its process left it or never joined",
        "no longer have communicator {}: their processes left it or never joined",
    ),
    "ABORT": ("aborted communicator {}", "aborted communicator {}"),
    "FINALIZE": ("is closing communicator {}", "are closing communicator {}"),
}


@dataclass(frozen=True)
class Trouble:
    """What a report says of some ranks of one communicator. line: where it says so, from 1.

    op: 'AllReduce', … and count: up to which of them the ranks have launched, where it is about that. ranks: of the
    communicator; empty where none is named.
    """

    line: int
    text: str
    ranks: tuple[int, ...] = ()
    op: str | None = None
    count: int | None = None


def lag(
    line: int, communicator: str, op: str, ranks: Iterable[int], count: int, others: int, of_others: int
) -> Trouble:
    """Ranks that have launched `count` operations where the `others` others launched `of_others`."""
    ranks = tuple(sorted(ranks))
    apart = abs(count - of_others)
    side = "ahead of" if count > of_others else "behind"
    verb = "has" if len(ranks) == 1 else "have"
    text = (
        f"{who_first(ranks)} {verb} launched {op} {count} of communicator {communicator}, "
        f"{apart} {side} the {others} others ({of_others})"
    )
    return Trouble(line, text, ranks, op, count)


def lags(line: int, communicator: str, counts: Mapping[str, Mapping[int, int]]) -> Iterator[Trouble]:
    """Of each operation the ranks that are apart from most. counts: by operation and rank."""
    for op, by_rank in counts.items():
        ranks: defaultdict[int, list[int]] = defaultdict(list)
        for rank, count in by_rank.items():
            ranks[count].append(rank)
        if len(ranks) < 2:
            continue
        most = max(ranks, key=lambda count: (len(ranks[count]), count))
        for count, members in ranks.items():
            if count != most:
                yield lag(line, communicator, op, members, count, len(ranks[most]), most)


def in_status(line: int, communicator: str, status: str, ranks: Iterable[int]) -> Iterator[Trouble]:
    """Ranks whose status is not that of a job that runs."""
    ranks = tuple(sorted(ranks))
    if status in _STATUS and ranks:
        one, several = _STATUS[status]
        said = (one if len(ranks) == 1 else several).format(communicator)
        yield Trouble(line, f"{who_first(ranks)} {said} ({status})", ranks)


def unanswered(line: int, communicator: str, ranks: Iterable[int], *, dead: bool) -> Trouble:
    """Ranks of which RAS has no data. dead: it holds them for dead, as their process cannot be reached."""
    ranks = tuple(sorted(ranks))
    text = f"{who_first(ranks)} did not answer for communicator {communicator}"
    return Trouble(line, f"{text}: dead, or not reachable" if dead else text, ranks)


def reported(line: int, communicator: str, error: str, ranks: Iterable[int]) -> Trouble:
    """Ranks whose communicator is in an error state."""
    ranks = tuple(sorted(ranks))
    verb = "reports" if len(ranks) == 1 else "report"
    return Trouble(line, f"{who_first(ranks)} {verb} an error of communicator {communicator}: {error}", ranks)
