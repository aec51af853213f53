"""Puts NCCL's lines of one process after another together into communicators.

Most lines name a process and no communicator. They belong to the one that the process is starting, as far as that
fits: the process's own rank there must be an end of the connection, and no rank beyond its size. NCCL makes some
connections later (from 2.22 on, at the first collective). They belong to the communicator that the process started
last before and that fits by ranks. If several fit, the devices of both ends decide. Two communicators of the same
ranks cannot be told apart so: the later one has the connections."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.fabric.model import Quote
from traceops.fabric.nccl import Communicator, Connection, GraphBandwidth, RankPlace
from traceops.fabric.readers.nccl_lines import MOST_CHANNELS, InitLine, Link, NcclLine, Speaker, bus_id

_T = TypeVar("_T")


class Seen(Struct):
    """The channels of one way of one connection, as a bit each, and its first line."""

    channels: int
    quote: Quote


class Member(Struct):
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
    """Whether the devices in brackets, numbers of NVML or buses, are those of the two ranks."""
    ends = {link.source: link.here, link.destination: link.there}
    told = ((shown, one) for rank, shown in ends.items() if shown for one in devices.get(rank, ()))
    return all(
        bus_id(shown) == one if isinstance(one, str) else shown.isdigit() and int(shown) == one for shown, one in told
    )


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
                kept[key] = Seen(seen.channels, seen.quote)
    senders = {(link.source, link.destination) for link in sent}
    for ends, links in received.items():
        if ends not in senders:
            sent |= links
    rows = [
        Connection(
            link.source, link.destination, link.transport, link.detail, seen.channels.bit_count(), seen.quote,
            link.device, link.gdr, link.proxy, of_receiver=link.is_receive,
        )
        for link, seen in sent.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (row.source, row.destination)))


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


MOST_CONNECTIONS = 1 << 18
_MOST_MEMBERS = 1 << 18
_MOST_PENDING = 1 << 20
_MOST_RINGS = 64
_MOST_LANES = 1 << 17
_MOST_CANDIDATES = 64
# A number in brackets below it is NVML's: as a bus it would be in the first slots, where no GPU is.
_MOST_NVML = 16


class _Lane(Struct):
    """One device of one process. starting: a communicator between its START and its COMPLETE. The rest waits for a
    COMPLETE without START, as NCCL printed it until 2.17. late: links by how many communicators there were before.
    splits: by the parent's pointer."""

    members: list[Member] = field(default_factory=list)
    starting: Member | None = None
    links: dict[Link, Seen] = field(default_factory=dict)
    graphs: dict[int, GraphBandwidth] = field(default_factory=dict)
    rings: dict[tuple[int, ...], None] = field(default_factory=dict)
    channels: tuple[int, int | None, int] | None = None
    late: list[tuple[int, dict[Link, Seen]]] = field(default_factory=list)
    splits: Counter[str | None] = field(default_factory=Counter)


class Communicators:
    """Takes lines in the order of the files and gives the communicators at the end."""

    def __init__(self) -> None:
        self._lanes: dict[Speaker, _Lane] = {}
        self._pointers: dict[tuple[str, int, str], Member] = {}
        self._members: list[Member] = []
        self._kept = 0
        self._left_out = 0

    def starting(self, speaker: Speaker) -> int:
        """Ranks of the communicator that a process starts or last started; 0 where not known."""
        if (lane := self._lanes.get(speaker)) is None:
            return 0
        member = lane.starting or (lane.members[-1] if lane.members else None)
        return 0 if member is None else member.init.size

    def _lane(self, speaker: Speaker) -> _Lane:
        if (lane := self._lanes.get(speaker)) is None:
            lane = _Lane()
            if len(self._lanes) < _MOST_LANES:
                self._lanes[speaker] = lane
        return lane

    def take_init(self, speaker: Speaker, init: InitLine) -> None:
        lane = self._lane(speaker)
        key = speaker.host, speaker.pid, init.pointer
        started = self._pointers.get(key)
        if init.complete and started is not None and not started.complete:
            started.complete = True
            if lane.starting is started:
                lane.starting = None
            return
        if len(self._members) >= _MOST_MEMBERS:
            return
        parent = None if init.parent is None else self._pointers.get((speaker.host, speaker.pid, init.parent))
        member = Member(speaker.host, speaker.pid, init, parent=parent, complete=init.complete)
        if init.split is not None:
            lane.splits[init.parent] += 1
            member.split = init.split[0] if init.split[0] >= 0 else lane.splits[init.parent]
        if init.complete:  # what came before it was its own, as far as it fits
            own = {link: seen for link, seen in lane.links.items() if member.fits(link)}
            member.links = own
            lane.links = {link: seen for link, seen in lane.links.items() if link not in own}
            member.graphs, lane.graphs = lane.graphs, {}
            member.rings, lane.rings = lane.rings, {}
            member.channels, lane.channels = lane.channels, None
        if lane.links:
            lane.late.append((len(lane.members), lane.links))
            lane.links = {}
        lane.starting = None if init.complete else member
        lane.members.append(member)
        self._members.append(member)
        self._pointers[key] = member

    def take_link(self, speaker: Speaker, link: Link, channel: int, line: NcclLine, path: str) -> None:
        if channel >= MOST_CHANNELS:
            return
        lane = self._lane(speaker)
        named = None if link.pointer is None else self._pointers.get((speaker.host, speaker.pid, link.pointer))
        member = named or lane.starting
        links = member.links if member is not None and member.fits(link) else lane.links
        if (seen := links.get(link)) is not None:
            seen.channels |= 1 << channel
        elif self._kept < _MOST_PENDING:
            self._kept += 1
            links[link] = Seen(1 << channel, line.quote(path))
        else:
            self._left_out += 1

    def take_pattern(self, speaker: Speaker, pattern: tuple[int, int, float, float, str, str], quote: Quote) -> None:
        kind, channels, intra, inter, intra_type, inter_type = pattern
        if channels > MOST_CHANNELS:
            return
        lane = self._lane(speaker)
        graph = GraphBandwidth(
            kind, channels, round(intra * channels, 3), round(inter * channels, 3), intra_type, inter_type, quote
        )
        (lane.starting or lane).graphs.setdefault(kind, graph)

    def take_ring(self, speaker: Speaker, ring: tuple[int, ...]) -> None:
        lane = self._lane(speaker)
        rings = (lane.starting or lane).rings
        if len(rings) < _MOST_RINGS:
            rings.setdefault(ring)

    def take_counts(self, speaker: Speaker, counts: tuple[int, int | None, int]) -> None:
        lane = self._lane(speaker)
        (lane.starting or lane).channels = counts

    def take_nodes(self, speaker: Speaker, pointer: str, nodes: int) -> None:
        if (member := self._pointers.get((speaker.host, speaker.pid, pointer))) is not None:
            member.nodes = nodes

    def devices(self) -> dict[tuple[str, str], int]:
        """NVML's device number by host and PCI bus id, where NCCL says both."""
        return {
            (member.host, member.init.bus_id): member.init.nvml_device
            for member in self._members
            if member.init.nvml_device is not None
        }

    def finish(self) -> tuple[tuple[Communicator, ...], int]:
        """The communicators in the order of their first lines, and how many connections were left out."""
        if not self._members:
            self._imply()
        groups = grouped(self._members)
        devices: dict[int, Devices] = {}
        for same in groups.values():
            told = devices_of(same)
            devices.update((id(member), told) for member in same)
        of_process: defaultdict[tuple[str, int], list[Member]] = defaultdict(list)
        for member in self._members:
            of_process[member.host, member.pid].append(member)
        for speaker, lane in self._lanes.items():
            # Where the lines name another device than any communicator's, those of the process.
            members = lane.members or of_process[speaker.host, speaker.pid]
            for count, links in (*lane.late, (len(members), lane.links)):
                candidates = members[max(count - _MOST_CANDIDATES, 0) : count]
                for link, seen in links.items():
                    give(candidates, link, seen, devices)
        communicators = []
        room = MOST_CONNECTIONS
        for name, members in groups.items():
            connections = connections_of(members)
            self._left_out += max(len(connections) - room, 0)
            communicators.append(communicator_of(name, members, connections[:room]))
            room -= min(len(connections), room)
        return tuple(communicators), self._left_out

    def _imply(self) -> None:
        """The members that connections speak of where no line names a communicator: until 2.17 the first such line came
        when it was complete, so a log of a start that failed has none. Who speaks for several ranks is passed over.
        A host without a name stands for lines that name no process: of those the ranks tell which belong together."""
        lanes = [(speaker, lane) for speaker, lane in self._lanes.items() if lane.links]
        ends = [rank for _, lane in lanes for link in lane.links for rank in (link.source, link.destination)]
        rings = [len(ring) for lane in self._lanes.values() for ring in lane.rings]
        size = max([*rings, *(rank + 1 for rank in ends)], default=0)
        for speaker, lane in lanes:
            own = {
                (link.destination, link.there) if link.is_receive else (link.source, link.here)
                for link in lane.links
                if link.transport != "COLLNET"
            }
            if len(own) != 1:
                continue
            [(rank, shown)] = own
            number = int(shown) if shown.isdigit() and int(shown) < _MOST_NVML else None
            bus = "" if number is not None else bus_id(shown)
            init = InitLine("", rank, size, speaker.device, number, bus, None, None, None, False)
            member = Member(speaker.host, speaker.pid, init, rings=lane.rings, channels=lane.channels)
            if rings:  # else nobody knows for how many ranks a graph is
                member.graphs = lane.graphs
            lane.members.append(member)
            self._members.append(member)
