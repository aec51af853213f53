"""Who says each NCCL line of a text file, and what: prefixes, run-together lines and timestamps come off here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from traceops.fabric.model import Quote
from traceops.fabric.nccl import Transport
from traceops.traces.text_index import Words, blocks_with, holds

QUOTED_CHARACTERS = 300
# A file that holds none of these holds no NCCL line; the second pair is printed without a host and a process.
_WORDS = Words(b"NCCL INFO ", b"NCCL WARN ", b"NCCL version ", b"RCCL version ")
_MARK = re.compile(rb"NCCL (?:INFO|WARN) ")
# ``host:123:456 [0] NCCL INFO ``, ``host:123:456 [0] init.cc:12 NCCL WARN ``; a plugin's function may have spaces, and
# from 2.29 on the function's name follows in brackets.
_DEVICE = re.compile(rb" \[(\d{1,4})\] (?:[^\n]{1,400}:\d{1,6} (?:\([^() \n]{1,200}\) )?)?\Z")
_NUMBERS = re.compile(rb":(\d{1,10}):(\d{1,10})\Z")
_HOST = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_REDACTED = re.compile(rb"<([A-Za-z][\w.-]{0,60})>\Z|\[([A-Za-z][\w.-]{0,60})\]\Z")  # ``<host>``, ``[pod-name]``
_TIME_ZONE = re.compile(rb"\d\d:\d\d:\d\d[0-9.,]{0,12}[+-]\d\d:\Z")  # …-07:00host: two digits are not the host's
# Others, like torch, say it too, but without what it was built for.
_VERSION = re.compile(rb"(?:[NR]CCL version \d{1,3}\.\d{1,3}[.0-9]{0,8}\+|RCCL version : \d)")
_ESCAPE = re.compile(rb"\x1b(?:\[[0-9;:?]{0,32}[A-Za-z]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")
# Ray says a line of several workers once; of the colours around it, posts often lose the escape character.
_REPEATED = re.compile(
    rb"[ \t]{0,4}(?:(?:ESC|\^\[)?\[32m)?[ \t]{0,4}\[repeated \d{1,9}x across cluster\][^\r\n]{0,4000}"
)
_REPEATED_NEEDLE = b"x across cluster]"
# Lines as Docker keeps them (``{"log":"…\\n","stream":…}``) and as tables of log services are saved: ``"…",``.
_EXPORTED_END = re.compile(rb'"(?:,"stream":"[^\r\n]{0,4000}|,)?[ \t]{0,8}(?=[\r\n]|\Z)')
_EXPORTED_SIGNS = ((b'\\n"', b'"'), (b"\\u003c", b"<"), (b"\\u003e", b">"))
_HEAD_BYTES = 600
_MOST_BRACKETS = 8
_SNIFFED_BYTES = 1 << 26
_MOST_HEADS = 1 << 16


class Speaker(NamedTuple):
    """A thread's device within a process. host: cut at its first dot. device: as CUDA counts there; -1: not told."""

    host: str
    pid: int
    device: int


NOBODY = Speaker("", 0, -1)  # the line names no process


class NcclLine(NamedTuple):
    """One NCCL message. number: its line, from 1. raw: the whole message with its head, without foreign prefixes."""

    number: int
    speaker: Speaker
    warns: bool
    message: bytes
    raw: bytes

    def quote(self, path: str) -> Quote:
        """It as evidence, of this file."""
        return Quote(path, self.number, quoted(self.raw))


def holds_nccl_lines(path: str) -> bool:
    """Whether a text file holds lines of NCCL or RCCL; of a large one, the first 64 MiB count. Raises InputError where
    it cannot be read."""
    return holds(path, _WORDS, _SNIFFED_BYTES)


def quoted(raw: bytes) -> str:
    return raw[:QUOTED_CHARACTERS].decode(errors="replace")[:QUOTED_CHARACTERS]


class LineReader:
    """Finds the NCCL messages of files; remembers the processes it has seen, to tell run-together lines apart."""

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[int, Speaker]] = {}
        self._hosts: dict[tuple[int, int], set[str]] = {}
        self._processes = 0

    def lines(self, path: str, passed_over: frozenset[bytes] = frozenset()) -> Iterator[NcclLine]:
        """The NCCL messages of one file in its order. Raises InputError where it cannot be read. passed_over: INFO
        messages that begin with these four bytes may be left out."""
        for first, block in blocks_with(path, _WORDS):
            if b"\x1b" in block:
                block = _ESCAPE.sub(b"", block)
            if _REPEATED_NEEDLE in block:
                block = _REPEATED.sub(b"", block)
            if b'"' in block:
                for sign, plain in _EXPORTED_SIGNS:
                    block = block.replace(sign, plain)
                block = _EXPORTED_END.sub(b"", block)
            for number, line in enumerate(block.split(b"\n"), first):
                at = line.find(b"NCCL INFO ") + 10
                if at < 10 and b"CCL " not in line:
                    continue
                if at < 10 or line.find(b"NCCL ", at) >= 0 or b"\r" in line:
                    for piece in line.split(b"\r"):  # a progress bar's, or the end of a line that Windows wrote
                        yield from self._messages(number, piece)
                elif line[at : at + 4] not in passed_over:  # nearly every line is one message
                    begin, speaker = self._head(line, 0, at - 10, True)
                    yield NcclLine(number, speaker, False, line[at:], line[begin:])

    def _messages(self, number: int, line: bytes) -> Iterator[NcclLine]:
        if not (marks := list(_MARK.finditer(line))):
            if (version := _VERSION.search(line)) is not None:
                message = line[version.start() :]
                yield NcclLine(number, NOBODY, False, message, message)
            return
        heads = [self._head(line, 0, marks[0].start(), True)]
        for before, mark in pairwise(marks):
            heads.append(self._head(line, before.end(), mark.start(), False))
        for place, mark in enumerate(marks):
            begin, speaker = heads[place]
            is_last = place + 1 == len(marks)
            if not is_last and heads[place + 1][1] is NOBODY:
                continue  # nobody knows where this message ends
            if place and speaker is NOBODY:
                continue
            end = len(line) if is_last else heads[place + 1][0]
            if not is_last:  # a table of CloudWatch says each message twice
                end -= len(line[:end]) - len(line[:end].rstrip(b" |"))
            warns = mark.group() == b"NCCL WARN "
            yield NcclLine(number, speaker, warns, line[mark.end() : end], line[begin:end])

    def _head(self, line: bytes, start: int, end: int, is_first: bool) -> tuple[int, Speaker]:
        """Where the head that ends at `end` begins, and whose it is."""
        last = line.rfind(b" ", start, max(line.rfind(b" [", start, end), start)) + 1 or start
        if is_first and (known := self._heads.get(line[last:end])) is not None:
            return last + known[0], known[1]
        if (found := _parsed(line, max(start, end - _HEAD_BYTES), end)) is None:
            return start, NOBODY
        begin, host, pid, device = found
        if not is_first and begin > start:
            # Joined to the line before: the host is one that was seen with this process where it was not.
            hosts = self._hosts.get((pid, device), ())
            if (joined := next((name for name in hosts if host.endswith(name)), None)) is None:
                return begin, NOBODY
            return begin + len(host) - len(joined), Speaker(joined, pid, device)
        if host[:2].isdigit() and _TIME_ZONE.search(line, start, begin) is not None:
            begin, host = begin + 2, host[2:]
        speaker = Speaker(host.partition(".")[0], pid, device)
        if self._processes < _MOST_HEADS:
            hosts = self._hosts.setdefault((speaker.pid, speaker.device), set())
            self._processes += speaker.host not in hosts
            hosts.add(speaker.host)
        if begin >= last:
            if len(self._heads) >= _MOST_HEADS:  # timestamps without a space make every one new
                self._heads.clear()
            self._heads[line[last:end]] = begin - last, speaker
        return begin, speaker


def _parsed(line: bytes, start: int, end: int) -> tuple[int, str, int, int] | None:
    """Where the host's name begins, the name, process and device of the head that ends at `end`."""
    at = end
    for _ in range(_MOST_BRACKETS):
        if (at := line.rfind(b" [", start, at)) < 0:
            return None
        if (device := _DEVICE.match(line, at, end)) is None:
            continue
        if (numbers := _NUMBERS.search(line, max(start, at - 22), at)) is None:
            continue
        before = line[start : numbers.start()]
        host = before[len(before.rstrip(_HOST)) :].lstrip(b".-")
        begin = numbers.start() - len(host)
        if not host and (redacted := _REDACTED.search(before)) is not None:
            host, begin = redacted[1] or redacted[2], start + redacted.start()
        if host:
            return begin, host.decode(), int(numbers[1]), int(device[1])
    return None


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


class InitLine(Struct, frozen=True):
    """One rank's beginning or end of a communicator's start. color: of a split, with the split's number or -1. pointer
    and bus_id: empty where only connections tell of the rank."""

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
    if (match := _INIT.search(message)) is None:
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
    if (match := _PATTERN.match(message)) is None:
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
    if (match := _LINK.match(text)) is None or (way := _way(match[6])) is None:
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
        if (net := _NET.match(text)) is None:
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
