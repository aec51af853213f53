"""Ranks that others name in a log: those that Horovod misses, and those whose timeout made others dump."""

from __future__ import annotations

import re

_STALL = "submitted to be reduced, gathered or broadcasted by subset of ranks"
# Which ranks have not come to an operation; old releases say which have.
_LISTED = re.compile(r"\[(missing|ready) ranks: (\d{1,7}(?:, ?\d{1,7}){0,4096})\]")
# Since 0.16: by rank the operations that it has not come to, six at most; '!' where Horovod will end the job for it.
BY_RANK = "Stalled ranks:"
_OF_RANK = re.compile(r" (\d{1,7})!?: \[([^\[\]]{1,4000})\]")
RANK_LINE = re.compile(
    r"(?:\[\d{1,6},\d{1,6}\](?:<\w{1,10}>)?:|\d{1,6}: )?\s{0,8}(\d{1,7}!?: \[[^\[\]]{1,4000}\])\s{0,8}$"
)
_MOST_RANKS = 1 << 13
_DUMP_SIGNAL = re.compile(r"dump signal due to a collective timeout from {1,3}rank (\d{1,7})\b")
NEEDLES: tuple[bytes, ...] = (
    _STALL.encode(),
    BY_RANK.encode(),
    b"[missing ranks: ",
    b"[ready ranks: ",
    b"dump signal due to",
)


def stalled_ranks(body: str) -> tuple[int, ...] | None:
    """The ranks that have come to none of the operations that Horovod says are stalled; None where it says nothing.

    Of ready ranks alone those below the last of them are known to be missing. Empty where the operations differ in
    whom they miss, or none is listed.
    """
    missing: set[int] | None = None
    for match in _LISTED.finditer(body) if " ranks: " in body else ():
        listed = {int(number) for number in match[2].split(",")}
        ranks = listed if match[1] == "missing" else set(range(min(max(listed), _MOST_RANKS))) - listed
        missing = ranks if missing is None else missing & ranks
    if missing is None and BY_RANK in body:
        return _by_rank(body)
    if missing is None:
        return () if _STALL in body else None
    return tuple(sorted(missing))


def _by_rank(body: str) -> tuple[int, ...] | None:
    """The ranks that have come to none of what is listed by rank; a list that is cut off may hold all of it."""
    listed = {
        int(match[1]): (set(match[2].removesuffix(" ...").split(", ")), match[2].endswith(" ..."))
        for match in _OF_RANK.finditer(body[body.index(BY_RANK) :])
    }
    everything = {name for names, _ in listed.values() for name in names}
    if not listed:
        return () if _STALL in body else None
    return tuple(sorted(rank for rank, (names, more) in listed.items() if more or names == everything))


def ready_ranks(body: str) -> tuple[int, ...]:
    """The ranks that have come to an operation that Horovod says is stalled."""
    listed = [match[2].split(",") for match in _LISTED.finditer(body) if match[1] == "ready"]
    return tuple(sorted({int(number) for ranks in listed for number in ranks}))


def timed_out_rank(body: str) -> int | None:
    """The rank whose collective timed out, as one says that only dumps for it."""
    if "dump signal" not in body or (told := _DUMP_SIGNAL.search(body)) is None:
        return None
    return int(told[1])
