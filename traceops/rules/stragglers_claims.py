"""What is claimed of ranks that make the others wait: typed facts, whose sentences lie in words/late.ini."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import msgspec

from traceops.core.claims import Claim, reason


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """Why a late host may not be late without the profiler, or is one of several. Times in ms, of one step."""

    kind: str
    slowdown: float | None = None
    plain: float | None = None
    waiting: float | None = None
    unmatched: float | None = None
    cost: float | None = None
    rank: int | None = None
    steps: tuple[int, int] | None = None
    other: int | None = None
    other_steps: tuple[int, int] | None = None


class LateClaim(Claim, frozen=True):
    family = "late"


class Late(LateClaim, frozen=True, kw_only=True):
    """A rank that is late in most steps, or in `steps` only. does: the cause, or what is behind it. way: the state that
    is replayed, in which it costs nothing. A prediction is `then`, or from `then_least` to `then_most`, or
    `then_or_more`; with others late too it is what is saved `beside` them."""

    rank: int
    does: str
    steps: tuple[int, ...] = ()
    others: int
    waiting: float | None = None
    waiting_on_average: float | None = None
    met: int | None = None
    met_waiting: float | None = None
    nobody_waits: bool = False
    hidden: bool = False
    role: str | None = None
    way: str
    step: float
    then: float | None = None
    then_least: float | None = None
    then_most: float | None = None
    then_or_more: float | None = None
    saved: float
    pct: float
    pct_least: float | None = None
    beside: tuple[int, ...] = ()
    in_operators: bool = False
    doubt: Doubt | None = None
    approximate: str = ""


class LateBehindLoading(LateClaim, frozen=True, kw_only=True):
    """A rank that would be waited for if batches came in time."""

    rank: int
    does: str
    step: float
    in_time: float
    then: float
    least: bool = False


class ComesLast(LateClaim, frozen=True, kw_only=True):
    """A rank for which all wait, whose peers are hardly faster. at_best: what its fix saves where all hosts keep up.
    loader: another rank, whose loader is as slow."""

    rank: int
    does: str
    waiting: float
    saved: float
    step: float
    at_best: float | None = None
    recorded: bool = False
    loader: int | None = None
    doubt: Doubt | None = None


class Slower(LateClaim, frozen=True, kw_only=True):
    """Ranks that are slower than the others alike. place: what only they have in common."""

    ranks: tuple[int, ...]
    count: int
    of: int
    place: str = ""
    does: str
    longer: float | None = None
    longer_least: float | None = None
    longer_most: float | None = None
    worst: int | None = None
    waiting: float
    way: str
    step: float
    then: float | None = None
    then_or_more: float | None = None
    saved: float
    pct: float
    beside: tuple[int, ...] = ()
    doubt: Doubt | None = None


_NAMED = 3  # hosts that are called by name
_LONGEST = 40  # characters of a host's name
_PLACES = 4  # on each host, named one by one


def shared_place(ranks: Collection[int], hosts: Mapping[int, str | None]) -> str:
    """'all ranks of host-3', 'local ranks 1 and 5 of each host', 'every 4th rank from 1'; '' where nothing tells them
    from the others. hosts: of every rank of the run, None where it is not known."""
    chosen = set(ranks) & set(hosts)
    if len(chosen) < 2 or len(chosen) == len(hosts):
        return ""
    return _of_hosts(chosen, hosts) or _of_places(chosen, hosts) or _of_stride(chosen, sorted(hosts))


def _of_hosts(chosen: set[int], hosts: Mapping[int, str | None]) -> str:
    names = {rank: host for rank, host in hosts.items() if host}
    if len(names) < len(hosts) or len(set(names.values())) < 2:
        return ""
    theirs = list(dict.fromkeys(names[rank] for rank in sorted(chosen)))
    if {rank for rank, host in names.items() if host in set(theirs)} != chosen:
        return "" if len(theirs) > 1 else reason("late", "all_on", host=theirs[0][:_LONGEST])
    named = [host[:_LONGEST] for host in theirs[:_NAMED]]
    if len(theirs) == 1:
        return reason("late", "all_of", host=named[0])
    return reason("late", "all_of_several", count=len(theirs), hosts=[*named, *["…"] * (len(theirs) > _NAMED)])


def _of_places(chosen: set[int], hosts: Mapping[int, str | None]) -> str:
    """Where ranks stand among those of their host, counted from 0, as LOCAL_RANK does."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(hosts):
        if not (host := hosts[rank]):
            return ""
        by_host[host].append(rank)
    places = {place for own in by_host.values() for place, rank in enumerate(own) if rank in chosen}
    if len(by_host) < 2 or len(places) > _PLACES:
        return ""
    if {own[place] for own in by_host.values() for place in places if place < len(own)} != chosen:
        return ""
    return reason("late", "of_each_host", places=sorted(places))


def _of_stride(chosen: set[int], known: list[int]) -> str:
    ordered = sorted(chosen)
    stride = ordered[1] - ordered[0]
    if len(ordered) < 4 or stride < 2 or ordered != [r for r in known if r in range(ordered[0], known[-1] + 1, stride)]:
        return ""
    end = {1: "st", 2: "nd", 3: "rd"}.get(stride % 10 if stride % 100 not in (11, 12, 13) else 0, "th")
    return f"every {stride}{end} rank from {ordered[0]}"
