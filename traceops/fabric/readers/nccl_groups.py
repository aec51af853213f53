"""What the processes of a log said of their communicators, put together by communicator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from traceops.fabric.model import Quote
from traceops.fabric.nccl import Communicator, Connection, GraphBandwidth, RankPlace
from traceops.fabric.readers.nccl_lines import quoted
from traceops.fabric.readers.nccl_links import InitLine, Link, bus_id

_T = TypeVar("_T")


@dataclass
class Seen:
    """The channels of one way of one connection, as a bit each, and its first line."""

    channels: int
    path: str
    line: int
    raw: bytes


@dataclass
class Member:
    """One rank's part of a communicator, as its process tells of it. links: what it said of its connections."""

    host: str
    pid: int
    init: InitLine
    split: int = -1
    parent: Member | None = None
    complete: bool = False
    links: dict[Link, Seen] = field(default_factory=dict)
    graphs: dict[int, GraphBandwidth] = field(default_factory=dict)
    rings: dict[tuple[int, ...], None] = field(default_factory=dict)
    nodes: int | None = None
    channels: tuple[int, int | None, int] | None = None

    def fits(self, link: Link) -> bool:
        if max(link.source, link.destination) >= self.init.size:
            return False
        return self.init.rank == (link.destination if link.is_receive else link.source)


def grouped(members: list[Member]) -> dict[str, list[Member]]:
    """Members by communicator. Without an id: all of a size that processes started as their first, second, …, where
    each rank is there once; else each alone."""
    names: dict[int, str] = {}
    nth: defaultdict[tuple[str, int, int, int], int] = defaultdict(int)
    alike: defaultdict[tuple[int, int], list[Member]] = defaultdict(list)
    for member in members:
        init = member.init
        if init.comm_id is not None:
            names[id(member)] = f"0x{init.comm_id}"
        elif member.parent is not None and id(member.parent) in names and init.split is not None:
            names[id(member)] = f"{names[id(member.parent)]}/{member.split}.{init.split[1]}"
        else:
            names[id(member)] = f"{member.host}:{member.pid}:0x{init.pointer}"
            key = member.host, member.pid, init.cuda_device, init.size
            alike[init.size, nth[key]].append(member)
            nth[key] += 1
    for same in alike.values():
        if len({member.init.rank for member in same}) == len(same):
            first = min(same, key=lambda member: member.init.rank)
            name = names[id(first)]
            names.update((id(member), name) for member in same)
    groups: defaultdict[str, list[Member]] = defaultdict(list)
    for member in members:
        groups[names[id(member)]].append(member)
    return dict(groups)


# What the log says of each rank's device: NVML's number, or else the bus id; several only where it contradicts itself.
Devices = dict[int, dict[int | str, None]]


def devices_of(members: list[Member]) -> Devices:
    devices: Devices = {}
    for member in members:
        init = member.init
        told = init.bus_id if init.nvml_device is None else init.nvml_device
        devices.setdefault(init.rank, {}).setdefault(told)
    return devices


def give(candidates: list[Member], link: Link, seen: Seen, devices: dict[int, Devices]) -> None:
    """To the last of the candidates that fits. devices: of each candidate's communicator, by its identity."""
    fitting = [member for member in candidates if member.fits(link)]
    if len(fitting) > 1:
        fitting = [member for member in fitting if _devices_fit(devices[id(member)], link)] or fitting
    if not fitting:
        return
    links = fitting[-1].links
    if link in links:
        links[link].channels |= seen.channels
    else:
        links[link] = seen


def _devices_fit(devices: Devices, link: Link) -> bool:
    """Whether the devices in brackets are those of the two ranks."""
    ends = {link.source: link.here, link.destination: link.there}
    return all(_is_device(shown, told) for rank, shown in ends.items() if shown for told in devices.get(rank, ()))


def _is_device(shown: bytes, told: int | str) -> bool:
    if isinstance(told, int):
        return shown.isdigit() and int(shown) == told
    return bus_id(shown) == told


def connections_of(members: list[Member]) -> tuple[Connection, ...]:
    sent: dict[Link, Seen] = {}
    received: defaultdict[tuple[int, int], dict[Link, Seen]] = defaultdict(dict)
    for member in members:
        for link, seen in member.links.items():
            key = link._replace(pointer=None, here=b"", there=b"")
            kept = received[key.source, key.destination] if key.is_receive else sent
            if key in kept:
                kept[key].channels |= seen.channels
            else:
                kept[key] = Seen(seen.channels, seen.path, seen.line, seen.raw)
    senders = {(link.source, link.destination) for link in sent}
    rows = [_connection(link, seen) for link, seen in sent.items()]
    for ends, links in received.items():
        if ends not in senders:
            rows.extend(_connection(link, seen) for link, seen in links.items())
    return tuple(sorted(rows, key=lambda row: (row.source, row.destination)))


def _connection(link: Link, seen: Seen) -> Connection:
    return Connection(
        source=link.source,
        destination=link.destination,
        transport=link.transport,
        detail=link.detail,
        channels=seen.channels.bit_count(),
        quote=Quote(seen.path, seen.line, quoted(seen.raw)),
        device=link.device,
        gdr=link.gdr,
        proxy=link.proxy,
        of_receiver=link.is_receive,
    )


def communicator_of(name: str, members: list[Member], connections: tuple[Connection, ...]) -> Communicator:
    places: dict[int, RankPlace] = {}
    graphs: dict[int, GraphBandwidth] = {}
    rings: dict[tuple[int, ...], None] = {}
    size = members[0].init.size
    for member in members:
        init = member.init
        place = RankPlace(init.rank, nvml_device=init.nvml_device, bus_id=init.bus_id or None)
        if member.host:
            place = replace(place, host=member.host, pid=member.pid, cuda_device=init.cuda_device)
        places.setdefault(init.rank, place)
        for pattern, graph in member.graphs.items():
            graphs.setdefault(pattern, graph)
        rings.update((ring, None) for ring in member.rings if len(ring) == size)
    channels = next(_known(member.channels for member in members), (None, None, None))
    return Communicator(
        id=name,
        size=size,
        places=dict(sorted(places.items())),
        connections=connections,
        graphs=tuple(graphs.values()),
        nodes=next(_known(member.nodes for member in members), None),
        coll_channels=channels[0],
        nvls_channels=channels[1],
        p2p_channels=channels[2],
        rings=tuple(rings),
        at_least=not members[0].init.pointer and not rings,
    )


def _known(values: Iterator[_T | None]) -> Iterator[_T]:
    return (value for value in values if value is not None)
