"""What some ranks have in common that no other rank has: their hosts, their place on each host, or every so many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

_NAMED = 3  # hosts that are called by name
_LONGEST = 40  # characters of a host's name
_PLACES = 4  # on each host, named one by one


def shared_place(ranks: Collection[int], hosts: Mapping[int, str | None]) -> str:
    """'all ranks of host-3', 'local ranks 1 and 5 of each host', 'every 4th rank from 1'; '' where nothing tells them
    from the others.

    hosts: of every rank of the run, None where it is not known.
    """
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
        return f"all on {theirs[0][:_LONGEST]}" if len(theirs) == 1 else ""
    if len(theirs) == 1:
        return f"all ranks of {theirs[0][:_LONGEST]}"
    named = ", ".join(host[:_LONGEST] for host in theirs[:_NAMED])
    return f"all ranks of {len(theirs)} hosts: {named}{' …' if len(theirs) > _NAMED else ''}"


def _of_places(chosen: set[int], hosts: Mapping[int, str | None]) -> str:
    """Where ranks stand among those of their host, counted from 0, as LOCAL_RANK does."""
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(hosts):
        host = hosts[rank]
        if not host:
            return ""
        by_host[host].append(rank)
    places = {place for own in by_host.values() for place, rank in enumerate(own) if rank in chosen}
    if len(by_host) < 2 or len(places) > _PLACES:
        return ""
    if {own[place] for own in by_host.values() for place in places if place < len(own)} != chosen:
        return ""
    ordered = [str(place) for place in sorted(places)]
    if len(ordered) == 1:
        return f"local rank {ordered[0]} of each host"
    return f"local ranks {', '.join(ordered[:-1])} and {ordered[-1]} of each host"


def _of_stride(chosen: set[int], known: list[int]) -> str:
    ordered = sorted(chosen)
    stride = ordered[1] - ordered[0]
    if len(ordered) < 4 or stride < 2 or ordered != [r for r in known if r in range(ordered[0], known[-1] + 1, stride)]:
        return ""
    end = {1: "st", 2: "nd", 3: "rd"}.get(stride % 10 if stride % 100 not in (11, 12, 13) else 0, "th")
    return f"every {stride}{end} rank from {ordered[0]}"
