"""Puts NCCL's lines of one process after another together into communicators.

Most lines name a process and no communicator. They belong to the one that the process is starting, as far as that
fits: the process's own rank there must be an end of the connection, and no rank beyond its size. NCCL makes some
connections later (from 2.22 on, at the first collective). They belong to the communicator that the process started
last before and that fits by ranks. If several fit, the devices of both ends decide. Two communicators of the same
ranks cannot be told apart so: the later one has the connections.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from traceops.fabric.model import Quote
from traceops.fabric.nccl import Communicator, GraphBandwidth
from traceops.fabric.readers.nccl_groups import (
    Devices,
    Member,
    Seen,
    communicator_of,
    connections_of,
    devices_of,
    give,
    grouped,
)
from traceops.fabric.readers.nccl_lines import Speaker
from traceops.fabric.readers.nccl_links import MOST_CHANNELS, InitLine, Link, bus_id

MOST_CONNECTIONS = 1 << 18
_MOST_MEMBERS = 1 << 18
_MOST_PENDING = 1 << 20
_MOST_RINGS = 64
_MOST_LANES = 1 << 17
_MOST_CANDIDATES = 64
# A number in brackets below it is NVML's: as a bus it would be in the first slots, where no GPU is.
_MOST_NVML = 16


@dataclass
class _Lane:
    """One device of one process. starting: a communicator between its START and its COMPLETE.

    The rest waits for a COMPLETE without START, as NCCL printed it until 2.17. late: links by how many communicators
    there were before. splits: by the parent's pointer.
    """

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
        lane = self._lanes.get(speaker)
        if lane is None:
            return 0
        member = lane.starting or (lane.members[-1] if lane.members else None)
        return 0 if member is None else member.init.size

    def _lane(self, speaker: Speaker) -> _Lane:
        lane = self._lanes.get(speaker)
        if lane is None:
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

    def take_link(self, speaker: Speaker, link: Link, channel: int, path: str, line: int, raw: bytes) -> None:
        if channel >= MOST_CHANNELS:
            return
        lane = self._lane(speaker)
        named = None if link.pointer is None else self._pointers.get((speaker.host, speaker.pid, link.pointer))
        member = named or lane.starting
        links = member.links if member is not None and member.fits(link) else lane.links
        seen = links.get(link)
        if seen is not None:
            seen.channels |= 1 << channel
        elif self._kept < _MOST_PENDING:
            self._kept += 1
            links[link] = Seen(1 << channel, path, line, raw[:300])
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
        member = self._pointers.get((speaker.host, speaker.pid, pointer))
        if member is not None:
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
