"""NCCL's lines of communicators and of how their ranks connect, one line at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from traceops.fabric.nccl import Transport

MOST_CHANNELS = 1024  # NCCL has 64, RCCL up to 256
# NCCL 2.10: ``comm 0x… rank 1 nranks 4 cudaDev 1 busId 70 - Init COMPLETE``; 2.16 adds commId, 2.18 nvmlDev and
# START, 2.21 the function in front, 2.23 leaves out the commId of a split. RCCL adds ``localSize …`` and more.
_INIT = re.compile(
    rb"comm 0x([0-9a-f]{1,16}) rank (\d{1,7}) n[rR]anks (\d{1,7}) cudaDev (\d{1,4}) (?:nvmlDev (\d{1,4}) )?"
    rb"busId ([0-9a-f]{1,12})(.{0,200}?) ?- Init (START|COMPLETE)"
)
_COMM_ID = re.compile(rb"commId 0x([0-9a-f]{1,16})")
_PARENT = re.compile(
    rb"parent 0x([0-9a-f]{1,16})(?: (?:splitCount|childCount) (\d{1,9}))? color (-?\d{1,11}) key -?\d{1,11}"
)
_NODES = re.compile(rb"comm 0x([0-9a-f]{1,16}) rank \d{1,7} n[rR]anks \d{1,7} nNodes (\d{1,7}) ")
_COUNTS = re.compile(
    rb"(\d{1,4}) coll channels, (?:\d{1,4} collnet channels, )?(?:(\d{1,4}) nvls channels, )?(\d{1,4}) p2p channels, "
)
_PATTERN = re.compile(
    rb"Pattern (\d{1,2}), crossNic \d{1,2}, nChannels (\d{1,4}), (?:bw|speed) (\d{1,9}\.\d{1,9})/(\d{1,9}\.\d{1,9}), "
    rb"type ([A-Z0-9]{3,4})/([A-Z0-9]{3,4}), sameChannels \d"
)
_RING = re.compile(rb"Channel \d{1,4}/\d{1,4} ?:((?: +\d{1,7})+) *\Z")
# Bus numbers in brackets until 2.17, NVML's device numbers from 2.18; what follows ``comm`` is RCCL's.
_LINK = re.compile(
    rb"(\d{1,7})\[([0-9a-f]{1,12})\] -> (\d{1,7})\[([0-9a-f]{1,12})\] (?:\[(send|receive)\] )?via (.{1,100}?)"
    rb"(?: comm (?:0x)?([0-9a-f]{1,16}) n[rR]anks \d{1,7})? *\Z"
)
_COLLNET = re.compile(rb"(\d{1,7}) \[(send|receive)\] via COLLNET/(.{1,80})\Z")
_P2P = re.compile(rb"P2P/(IPC|CUMEM|MNNVL|direct pointer|indirect)(?:/\d{1,7}\[[0-9a-f]{1,12}\])?(?:/read)?(?:/CE)?\Z")
_NET = re.compile(
    rb"(?:NET/)?([^/]{1,60})/(\d{1,6})(?:\((\d{1,7})\))?(/GDRDMA(?:\((?:PCI|[A-Za-z]{1,12})\))?)?(?:/Shared)?\Z"
)


class Link(NamedTuple):
    """How one rank reaches another. here and there: what the brackets hold. pointer: the communicator, of RCCL.
    proxy: the rank that sends into the network for the source."""

    source: int
    destination: int
    here: bytes
    there: bytes
    is_receive: bool
    transport: Transport
    detail: str
    device: int | None
    gdr: bool
    pointer: str | None
    proxy: int | None = None


@dataclass(frozen=True)
class InitLine:
    """One rank's beginning or end of a communicator's start. color: of a split, with the split's number or -1.

    pointer and bus_id: empty where only connections tell of the rank."""

    pointer: str
    rank: int
    size: int
    cuda_device: int
    nvml_device: int | None
    bus_id: str
    comm_id: str | None
    parent: str | None
    split: tuple[int, int] | None
    complete: bool


def read_init(message: bytes) -> InitLine | None:
    match = _INIT.search(message)
    if match is None:
        return None
    rank, size = int(match[2]), int(match[3])
    comm_id, parent = _COMM_ID.search(match[7]), _PARENT.search(match[7])
    if rank >= size:
        return None
    return InitLine(
        pointer=match[1].decode(),
        rank=rank,
        size=size,
        cuda_device=int(match[4]),
        nvml_device=None if match[5] is None else int(match[5]),
        bus_id=bus_id(match[6]),
        comm_id=None if comm_id is None else comm_id[1].decode(),
        parent=None if parent is None else parent[1].decode(),
        split=None if parent is None else (int(parent[2] or -1), int(parent[3])),
        complete=match[8] == b"COMPLETE",
    )


def read_nodes(message: bytes) -> tuple[str, int] | None:
    """A communicator's pointer and its hosts."""
    match = _NODES.match(message)
    return None if match is None else (match[1].decode(), int(match[2]))


def read_counts(message: bytes) -> tuple[int, int | None, int] | None:
    """Channels for collectives, NVLink SHARP and messages."""
    match = _COUNTS.match(message)
    return None if match is None else (int(match[1]), None if match[2] is None else int(match[2]), int(match[3]))


def read_pattern(message: bytes) -> tuple[int, int, float, float, str, str] | None:
    """Pattern, channels, GB/s a channel inside hosts and between them, and the farthest path of each."""
    match = _PATTERN.match(message)
    if match is None:
        return None
    return (
        int(match[1]), int(match[2]), float(match[3]), float(match[4]), match[5].decode(), match[6].decode()
    )  # fmt: skip


def read_ring(message: bytes) -> tuple[int, ...] | None:
    """The order of ranks in a channel's ring."""
    match = _RING.match(message)
    return None if match is None else tuple(int(rank) for rank in match[1].split())


def read_link(text: bytes) -> Link | None:
    """What follows ``Channel 00/0 : ``."""
    match = _LINK.match(text)
    if match is None:
        return None
    way = _way(match[6])
    if way is None:
        return None
    transport, detail, device, gdr, proxy = way
    return Link(
        int(match[1]), int(match[3]), match[2], match[4], match[5] == b"receive", transport, detail, device, gdr,
        None if match[7] is None else match[7].decode(), proxy,
    )  # fmt: skip


def read_collnet(text: bytes) -> Link | None:
    """What follows ``CollNet 00/0 : ``; the network is the other end."""
    match = _COLLNET.match(text)
    net = None if match is None else _NET.match(match[3])
    if match is None or net is None:
        return None
    rank = int(match[1])
    return Link(
        rank, rank, b"", b"", match[2] == b"receive", "COLLNET", net[1].decode(errors="replace"), int(net[2]),
        net[4] is not None, None,
    )  # fmt: skip


def _way(text: bytes) -> tuple[Transport, str, int | None, bool, int | None] | None:
    if text.startswith(b"NET/"):
        net = _NET.match(text)
        if net is None:
            return None
        proxy = None if net[3] is None else int(net[3])
        return "NET", net[1].decode(errors="replace"), int(net[2]), net[4] is not None, proxy
    if text.startswith(b"SHM") or text == b"direct shared memory":
        if text not in (b"SHM", b"direct shared memory") and not text.startswith(b"SHM/"):
            return None
        detail = text[4:].decode(errors="replace") if text.startswith(b"SHM/") else "direct"
        return "SHM", detail, None, False, None
    p2p = _P2P.match(text)
    return None if p2p is None else ("P2P", p2p[1].decode(), None, False, None)


def bus_id(text: bytes) -> str:
    """NCCL's number of a PCI device, like ``3b000`` or ``60``, as ``0000:3b:00.0``."""
    number = int(text, 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"
