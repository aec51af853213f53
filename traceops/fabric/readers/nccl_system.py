"""The machine that NCCL prints as a tree and as paths (``=== System``), with NCCL_DEBUG_SUBSYS=GRAPH or ALL.

The paths are those that NCCL may take, and the tree is what there is. With P2P off, the path between two GPUs leads
through the CPU although NVLinks join them. A process without shared memory prints only its own GPU. So NVLinks and
common PCIe switches are taken from the tree, all other paths from the paths, and the processes of a host are joined.
"""

from __future__ import annotations

import re
from itertools import combinations

from msgspec import Struct, field

from traceops.fabric.model import Gpu, Machine, Nic, NicKind, Path, PathKind, Quote, is_bonded
from traceops.fabric.readers.nccl_lines import NcclLine, Speaker, bus_id

# Until 2.20 a device is ``GPU/3B000``, later ``GPU/0-3b000``: the first number counts hosts joined by NVLink.
_ID = rb"(?:([0-9A-Fa-f]{1,4})-)?([0-9A-Fa-f]{1,16})"
_BEGIN = re.compile(rb"=== System : max(?:Bw|Width) ")
_CPU = re.compile(rb"CPU/" + _ID + rb" \(\d")
_NODE = re.compile(
    rb" {0,200}\+ (PCI|NVL|XGMI|C2C|NET|LOC)\[(\d{1,6}\.\d)\] - (GPU|DEV|NIC|NET|PCI|NVS)/"
    + _ID
    + rb"(?: \(([0-9A-Fa-f/.]{1,80})\))?\s*\Z"
)
_OWNER = re.compile(rb"(GPU|NET)/" + _ID + rb" :")
_PATH = re.compile(rb"(GPU|NET)/" + _ID + rb" \((\d{1,4})/(\d{1,9}(?:\.\d{1,9})?)/([A-Z0-9]{3,4})\)")
_SPEED = re.compile(rb"\d{1,9}\.\d{1,9}\Z")
_NO_NUMA = (b"f" * 14, b"f" * 16)
# NVB goes over another GPU's NVLinks and PXN over another GPU to its NIC: neither is a path of the two themselves.
_KINDS: dict[bytes, PathKind] = {
    b"NVL": "NV", b"XGMI": "XGMI", b"C2C": "C2C", b"PIX": "PIX", b"PXB": "PXB", b"P2C": "PHB", b"PHB": "PHB",
    b"SYS": "SYS",
}  # fmt: skip
_LINKS: dict[str, NicKind] = {"IB": "IB", "RoCE": "RoCE"}
_NO_BUS = "0000:00:00.0"  # of a NIC that is not on PCIe
_DEFAULT_GBS = 1.25  # where the system does not tell an interface's speed, NCCL takes 10 Gbit/s
_MOST_DEVICES = 256
_MOST_PATHS = 1 << 14
_MOST_SECTIONS = 16
_MOST_HOSTS = 1 << 13
_SWITCH = "NVSwitch"
_DIRECT: dict[bytes, PathKind | None] = {b"NVL": "NV", b"XGMI": "XGMI", b"C2C": None}  # None: to the CPU


class _GpuSeen(Struct):
    """numa: None where there is none. switches: PCIe switches above it, the nearest last. nvlinks: GB/s, by the other
    GPU's bus id or `_SWITCH`, with the line that says it."""

    numa: int | None
    switches: tuple[str, ...]
    nvlinks: dict[str, tuple[PathKind, float, Quote]] = field(default_factory=dict)


class SystemSection(Struct):
    """One process's System section while it is read. size: ranks of the communicator it is for, 0: not known. gpus: by
    PCI bus id. nics: by NCCL's number, with bus id, NUMA node and GB/s. The rest is where the tree is."""

    host: str
    pid: int
    path: str
    size: int
    gpus: dict[str, _GpuSeen] = field(default_factory=dict)
    nics: dict[int, tuple[str | None, int | None, float | None]] = field(default_factory=dict)
    paths: dict[tuple[bytes, bytes], Path] = field(default_factory=dict)
    systems: set[bytes] = field(default_factory=set)
    _numa: int | None = None
    _card: str | None = None
    _gpu: _GpuSeen | None = None
    _switches: list[tuple[int, str]] = field(default_factory=list)

    def take(self, line: NcclLine) -> bool:
        """Whether the line is one of the tree or of the paths."""
        message = line.message
        if message.startswith(b"CPU/"):
            if (cpu := _CPU.match(message)) is not None:
                self._numa = None if cpu[2].lower() in _NO_NUMA else int(cpu[2], 16)
                self._card, self._gpu, self._switches = None, None, []
            return cpu is not None
        if b"] - " in message:
            node = _NODE.match(message)
            if node is not None and len(self.gpus) + len(self.nics) < _MOST_DEVICES:
                self._take_node(node, message.index(b"+"), line)
            return node is not None
        if (owner := _OWNER.match(message)) is not None:
            one = _key(owner)
            quote = line.quote(self.path)
            for match in _PATH.finditer(message, owner.end()):
                kind, other = _KINDS.get(match[6]), _key(match)
                if kind is None or one == other or len(self.paths) >= _MOST_PATHS:
                    continue
                if (other, one) not in self.paths and not (one.startswith(b"NET") and other.startswith(b"NET")):
                    self.paths.setdefault((one, other), Path(kind, gbs=float(match[5]), quote=quote))
        return owner is not None

    def _take_node(self, node: re.Match[bytes], depth: int, line: NcclLine) -> None:
        link, kind, number = node[1], node[3], node[5]
        if link in _DIRECT:
            self._take_link(node, _DIRECT[link], line)
            return
        if link == b"PCI":
            while self._switches and self._switches[-1][0] >= depth:
                self._switches.pop()
            self.systems.add(node[4] or b"0")
        if kind == b"PCI":
            self._switches.append((depth, bus_id(number)))
        elif kind == b"DEV" or (kind == b"GPU" and link == b"PCI"):
            switches = tuple(name for _, name in self._switches)
            self._gpu = self.gpus.get(bus_id(number)) or _GpuSeen(self._numa, switches)
        if kind == b"GPU" and self._gpu is not None:  # from 2.29 on inside its device
            self.gpus.setdefault(bus_id(number), self._gpu)
        if kind == b"NIC":
            self._card = bus_id(number)
        elif kind == b"NET" and node[6] is not None:
            speed = node[6].rpartition(b"/")[2]
            gbs = float(speed) if _SPEED.match(speed) else None
            self.nics.setdefault(int(number, 16), (self._card, self._numa, gbs))

    def _take_link(self, node: re.Match[bytes], path: PathKind | None, line: NcclLine) -> None:
        """Of the last GPU to another device."""
        if self._gpu is not None and path is not None and node[3] in (b"GPU", b"DEV", b"NVS"):
            other = _SWITCH if node[3] == b"NVS" else bus_id(node[5])
            self._gpu.nvlinks.setdefault(other, (path, float(node[2]), line.quote(self.path)))


def _key(match: re.Match[bytes]) -> bytes:
    return match[1] + b"/" + match[3].lower()


def begins(message: bytes) -> bool:
    return _BEGIN.match(message) is not None


class Systems:
    """The sections of all processes. Of each host those count that are for the most ranks."""

    def __init__(self) -> None:
        self._open: dict[Speaker, SystemSection] = {}
        self._of_host: dict[str, list[SystemSection]] = {}

    def begin(self, speaker: Speaker, path: str, size: int) -> None:
        """A section begins; it is passed over where its host has enough of them."""
        self._open.pop(speaker, None)
        if speaker.host not in self._of_host and len(self._of_host) >= _MOST_HOSTS:
            return
        sections = self._of_host.setdefault(speaker.host, [])
        if len(sections) >= _MOST_SECTIONS and all(section.size < size for section in sections):
            sections.clear()
        if len(sections) < _MOST_SECTIONS:
            section = SystemSection(speaker.host, speaker.pid, path, size)
            sections.append(section)
            self._open[speaker] = section

    def of(self, speaker: Speaker) -> SystemSection | None:
        """The section that a process's lines now belong to."""
        return self._open.get(speaker)

    def end(self, speaker: Speaker) -> None:
        self._open.pop(speaker, None)

    def machines(
        self, nvml: dict[tuple[str, str], int], names: dict[tuple[str, int], dict[int, str]]
    ) -> tuple[Machine, ...]:
        """One machine a host. nvml: device numbers by host and bus id. names: of NICs, by process and number. A section
        of several hosts joined by NVLink is left out: it does not say which of them is this one."""
        machines = []
        for host, sections in self._of_host.items():
            usable = [section for section in sections if section.gpus and len(section.systems) == 1]
            if usable:
                first = max(usable, key=lambda section: len(section.gpus))
                ordered = [first, *(section for section in usable if section is not first)]
                machines.append(_machine(host, ordered, nvml, names.get((first.host, first.pid), {})))
        return tuple(machines)


def _machine(
    host: str, sections: list[SystemSection], nvml: dict[tuple[str, str], int], names: dict[int, str]
) -> Machine:
    """sections: the first tells, the others add the GPUs that it does not have."""
    gpus: dict[str, _GpuSeen] = {}
    paths: dict[tuple[bytes, bytes], Path] = {}
    for section in sections:
        gpus = section.gpus | gpus
        for (one, other), path in section.paths.items():
            if (other, one) not in paths:
                paths.setdefault((one, other), path)
    buses = sorted(gpus)
    indices = [nvml[host, bus] for bus in buses if (host, bus) in nvml]
    if len(set(indices)) != len(buses):  # before 2.18: nvidia-smi counts by the bus, if all GPUs are here
        indices = list(range(len(buses)))
    label_of = {bus: f"GPU{index}" for index, bus in zip(indices, buses, strict=True)}
    labelled: dict[tuple[str, str], Path] = {}
    for ends, path in paths.items():
        labels = [_label(end, label_of) for end in ends]
        if labels[0] is not None and labels[1] is not None:
            labelled[labels[0], labels[1]] = path
    for one_bus, other_bus in combinations(buses, 2):
        ends_of = label_of[one_bus], label_of[other_bus]
        told = labelled.pop((ends_of[1], ends_of[0]), None) or labelled.get(ends_of)
        path_of = _between(gpus[one_bus], gpus[other_bus], one_bus, other_bus, told)
        back_of = _between(gpus[other_bus], gpus[one_bus], other_bus, one_bus, told)
        if back_of is not None and back_of.back_share is not None:  # the wider way comes first
            labelled.pop(ends_of, None)
            labelled[ends_of[::-1]] = back_of
        elif path_of is not None:
            labelled[ends_of] = path_of
    return Machine(
        host,
        tuple(sorted((Gpu(index, bus_id=bus, numa=gpus[bus].numa) for index, bus in zip(indices, buses, strict=True)),
                     key=lambda gpu: gpu.index)),
        tuple(_nic(number, facts, names.get(number)) for number, facts in sorted(sections[0].nics.items())),
        dict(sorted(labelled.items())),
        tuple(dict.fromkeys(section.path for section in sections)),
    )  # fmt: skip


def _between(one: _GpuSeen, other: _GpuSeen, one_bus: str, other_bus: str, told: Path | None) -> Path | None:
    """What the tree has between two GPUs, or else what the paths say."""
    there, back = one.nvlinks.get(other_bus), other.nvlinks.get(one_bus)
    direct = there or back
    if there is not None and back is not None and back[1] < there[1]:
        return Path(there[0], gbs=there[1], quote=there[2], back_share=back[1] / there[1])
    if direct is None and _SWITCH in one.nvlinks and _SWITCH in other.nvlinks:
        direct = min(one.nvlinks[_SWITCH], other.nvlinks[_SWITCH], key=lambda link: link[1])
    if direct is not None:
        kind, gbs, quote = direct
        return told if told is not None and told.kind == kind else Path(kind, gbs=gbs, quote=quote)
    shared = [name for name in one.switches if name in other.switches]
    if told is not None and told.kind == "PHB" and shared:
        is_nearest = one.switches[-1] == other.switches[-1]
        return Path("PIX" if is_nearest else "PXB", quote=told.quote)
    return told


def _label(key: bytes, gpus: dict[str, str]) -> str | None:
    kind, _, number = key.partition(b"/")
    return f"NET{int(number, 16)}" if kind == b"NET" else gpus.get(bus_id(number))


def _nic(number: int, facts: tuple[str | None, int | None, float | None], name: str | None) -> Nic:
    bus, numa, gbs = facts
    bare, _, link = (name or "").partition("/")
    device = bare.partition(":")[0] or None
    kind = _LINKS.get(link.partition("/")[0])
    if kind is None and (device or "").startswith(("eth", "en", "bond")):
        kind = "Ethernet"
    is_guess = kind not in ("IB", "RoCE") and gbs == _DEFAULT_GBS
    return Nic(
        label=f"NET{number}",
        name=device,
        kind=kind,
        numa=numa,
        speed_gbs=None if is_guess else gbs,
        bonded=is_bonded(device),
        bus_id=None if bus == _NO_BUS else bus,
    )
