"""The XML files that NCCL writes: the machine as it sees it, and the bandwidths it expects.

Nothing in a file is expanded, fetched or executed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Literal, NoReturn
from xml.parsers import expat

from msgspec import Struct, field

from traceops.core.errors import FileError
from traceops.core.rank_text import runs_of
from traceops.fabric.model import Gpu, Machine, Nic, Path, PathKind, Pcie, Quote, is_bonded, nic_kind, normal_bus_id
from traceops.fabric.nccl import GraphBandwidth
from traceops.traces.source import Damaged, chunks, open_binary

# NCCL's own parser stops at 4,096 elements and 1,024 levels; a node has ten levels.
_MOST_BYTES = 1 << 24
_MOST_ELEMENTS = 200_000
_DEEPEST = 100
_QUOTED = 300
_WHOLE = re.compile(r"-?(?:0x[0-9a-f]{1,16}|\d{1,18})", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?(?:e[+-]?\d{1,2})?", re.IGNORECASE | re.ASCII)


class Element(Struct, eq=False):
    """One element. line: from 1, of its begin. Elements are themselves only: equal content is no equality."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def below(self) -> Iterator[tuple[Element, tuple[Element, ...]]]:
        """Every element inside with those around it, from this one on, in the order of the file."""
        pending: list[tuple[Element, tuple[Element, ...]]] = [(child, (self,)) for child in self.children[::-1]]
        while pending:
            element, parents = pending.pop()
            yield element, parents
            pending += [(child, (*parents, element)) for child in element.children[::-1]]

    def whole(self, name: str) -> int | None:
        """An attribute as a whole number, None where it is none."""
        text = self.attributes.get(name, "").strip()
        return int(text, 0 if "x" in text.lower() else 10) if _WHOLE.fullmatch(text) else None

    def number(self, name: str) -> float | None:
        """An attribute as a finite number, None where it is none."""
        text = self.attributes.get(name, "").strip()
        return float(text) if _NUMBER.fullmatch(text) else None

    def quote(self, path: str) -> Quote:
        """The element's begin, as NCCL writes it."""
        said = "".join(f' {name}="{value}"' for name, value in self.attributes.items())
        return Quote(path, self.line, f"<{self.tag}{said}>"[:_QUOTED])


class _Refused(Exception):
    pass


def read_xml(path: str) -> Element:
    """The root element of a file without document type, of bounded size and depth; text and comments left out. Raises
    InputError where the file cannot be read, is no XML or is cut off. A document type is refused whatever is in it:
    entities, which can grow without bound or name other files, need one."""
    roots: list[Element] = []
    open_: list[Element] = []
    count = 0
    parser = expat.ParserCreate("utf-8")  # whatever the file declares: Python would look for a codec of that name

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > _MOST_ELEMENTS or len(open_) >= _DEEPEST:
            raise _Refused(f"has more than {_MOST_ELEMENTS:,} elements or {_DEEPEST} levels")
        element = Element(tag, attributes, parser.CurrentLineNumber)
        (open_[-1].children if open_ else roots).append(element)
        open_.append(element)

    def end(_tag: str) -> None:
        open_.pop()

    def refuse(*_: object) -> NoReturn:
        raise _Refused("has a document type, which NCCL never writes")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(_bytes(path), True)  # at once: older expats take quadratic time for long words in pieces
    except expat.ExpatError as error:
        raise FileError(
            path, f"is not whole XML (line {error.lineno}: {expat.ErrorString(error.code)}); have NCCL write it again"
        ) from error
    except _Refused as error:
        raise FileError(path, f"{error}; give a file that NCCL wrote itself") from error
    return roots[0]


def _bytes(path: str) -> bytes:
    parts, size = [], 0
    with open_binary(path) as file:
        try:
            for chunk in chunks(file):
                parts.append(chunk)
                size += len(chunk)
                if size > _MOST_BYTES:
                    raise FileError(
                        path, f"has more than {_MOST_BYTES >> 20} MiB; NCCL's files have some kB: give one of them"
                    )
        except Damaged as error:
            raise FileError(path, f"{error}; give the file that NCCL wrote", ": ") from error
    return b"".join(parts)


# What a link's other end is, by the first digits of its PCI class.
_SWITCH_CLASS = "0x068000"
_GPU_CLASSES = ("0x03", "0x12", "0x13")  # display controllers and, of AMD, processing accelerators
_LINK_KINDS: dict[str, PathKind] = {"nvlink": "NV", "xgmi": "XGMI"}  # by element: of NCCL, and of RCCL
_UNSEEN = "fffffff"  # in a virtual machine the switch is not visible: NCCL takes it for one
Device = tuple[str, Element, tuple[Element, ...]]


def machine_paths(path: str, devices: Sequence[Device]) -> dict[tuple[str, str], Path]:
    """The paths between all pairs of one host's devices, each given as its label, element and those around it. NVLinks
    directly or through NVSwitch, and RCCL's XGMI, come first; else where the tree's branches meet decides: PIX below
    one PCIe switch, PXB below several, PHB at the CPU, SYS between CPUs. A NIC that is on no PCI bus has no path: NCCL
    hangs it on the first CPU for want of a place."""
    gpus = [device for device in devices if device[1].tag == "gpu"]
    joined = {pair: (kind, *count) for tag, kind in _LINK_KINDS.items() for pair, count in _links(gpus, tag).items()}
    lines = {label: element.quote(path) for label, element, _ in devices}
    links = {label: _link(element).quote(path) for label, element, _ in devices}
    paths: dict[tuple[str, str], Path] = {}
    for (one, _, parents), (other, element, other_parents) in combinations(devices, 2):
        if (link := joined.get((one, other)) or joined.get((other, one))) is not None:
            kind, count, back = link
            wider = (one, other) if (one, other) in joined else (other, one)
            paths[wider if back is not None else (one, other)] = Path(
                kind, count, quote=links[wider[0] if back is not None else one], back_share=back
            )
        elif (met := _meeting(parents, other_parents)) is not None:
            paths[one, other] = Path(met, quote=lines[other] if element.tag == "net" else lines[one])
    return paths


def _link(gpu: Element) -> Element:
    """The first line that tells of a GPU's links to others."""
    return next((child for child in gpu.children if child.tag in _LINK_KINDS), gpu)


def _links(gpus: Sequence[Device], tag: str) -> dict[tuple[str, str], tuple[int, float | None]]:
    """Links of a kind between pairs of GPUs, and the share of them that leads back where it is not all. A switch gives
    each pair as many as the one with fewer has. Of a pair whose two ways differ the key has the wider."""
    by_bus = {_bus_id(parents): label for label, _, parents in gpus}
    direct: defaultdict[tuple[str, str], int] = defaultdict(int)
    switched: defaultdict[str, int] = defaultdict(int)
    for label, gpu, _ in gpus:
        for link in gpu.children:
            count = link.whole("count") or 0
            if link.tag != tag or count <= 0:
                continue
            target, end = link.attributes.get("target", "").lower(), link.attributes.get("tclass", "").lower()
            peer = by_bus.get(normal_bus_id(target), label)
            if end == _SWITCH_CLASS or target.startswith(_UNSEEN):
                switched[label] += count
            elif peer != label and (not end or end.startswith(_GPU_CLASSES)):
                direct[label, peer] += count
    tells = {one for one, _ in direct}  # a GPU without any such line may have been left out by who saved the file
    found: dict[tuple[str, str], tuple[int, float | None]] = {}
    for pair, count in direct.items():
        back = direct.get(pair[::-1], 0)
        if back < count and pair[1] in tells:
            found[pair] = count, back / count
        elif back <= count and pair[::-1] not in found:
            found[pair] = count, None
    for one, other in combinations(switched, 2):
        if (other, one) not in found:
            found.setdefault((one, other), (min(switched[one], switched[other]), None))
    return found


def _bus_id(parents: Sequence[Element]) -> str | None:
    """That of the PCI function which a GPU or a NIC is in."""
    own = _own(parents)
    return None if own is None else normal_bus_id(own.attributes.get("busid"))


def _meeting(parents: Sequence[Element], others: Sequence[Element]) -> PathKind | None:
    ours, theirs = _branch(parents), _branch(others)
    if len(ours) < 2 or len(theirs) < 2:
        return None
    if ours[0] is not theirs[0]:
        return "SYS"
    common = sum(1 for one, other in zip(ours, theirs, strict=False) if one is other)
    if common < 2:
        return "PHB"
    # Switches passed: what is common ends with one, and each branch has its own device last.
    between = (len(ours) - common) + (len(theirs) - common)
    return "PIX" if between <= 2 else "PXB"


def _branch(parents: Sequence[Element]) -> list[Element]:
    """The CPU and the PCI functions down to a device."""
    return [parent for parent in parents if parent.tag in ("cpu", "pci")]


_BEFORE_ROOT = {"<?": "?>", "<!--": "-->"}  # what may stand there, and its end
_GENERATIONS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0)  # GT/s of PCIe 1 to 7
# One way, GB/s of one NVLink, by compute capability [NVIDIA's architecture papers]; 8.6 is the bridge of A40 and 3090.
_NVLINK_GBS = ((100, 50.0), (90, 25.0), (87, None), (86, 14.0625), (70, 25.0), (60, 20.0))
# The same of one XGMI link, by AMD's name of the architecture or its number in older files [RCCL, graph/topo.h].
_XGMI_GBS = (("gfx94", 48.0), ("94", 48.0), ("gfx90a", 36.0), ("910", 36.0), ("gfx90", 24.0), ("90", 24.0))
_WITHOUT_NVLINK = 120  # workstation and embedded Blackwell, from here on
_MOST_DEVICES = 256  # of a kind, on one host


def xml_kind(head: str) -> Literal["topology", "graph"] | None:
    """What a file that begins so is, by its root element."""
    rest = head.lstrip("\ufeff \t\r\n")
    while begin := next((begin for begin in _BEFORE_ROOT if rest.startswith(begin)), None):
        rest = rest.partition(_BEFORE_ROOT[begin])[2].lstrip()
    match = re.match(r"<(system|graphs)[\s/>]", rest)
    return None if match is None else "topology" if match[1] == "system" else "graph"


def read_topology_xml(path: str) -> tuple[Machine, ...]:
    """The machines in a file of NCCL_TOPO_DUMP_FILE: one, or several where NVLink joins hosts (NCCL 2.21 on). GPUs have
    nvidia-smi's indices, bus ids and what their link could do at most; NICs what NCCL sees, RDMA devices or, without
    any, Ethernet. A host is named only where the file has several, by NCCL's hash of it. Paths follow from the tree, by
    NCCL's rules. Raises InputError where the file cannot be read or is something else."""
    root = _root(path, "system", "NCCL_TOPO_DUMP_FILE")
    hosts: dict[str | None, list[Element]] = {}
    for cpu in root.children:
        if cpu.tag == "cpu":
            hosts.setdefault(cpu.attributes.get("host_hash"), []).append(cpu)
    machines = [_machine(path, host if len(hosts) > 1 else None, cpus) for host, cpus in hosts.items()]
    if not (machines := [machine for machine in machines if machine.gpus]):
        raise FileError(
            path,
            "names no GPU; it is no dump but a file for NCCL_TOPO_FILE, or of a run without GPUs: "
            "run once with NCCL_TOPO_DUMP_FILE set",
        )
    return tuple(machines)


def read_graph_xml(path: str) -> tuple[GraphBandwidth, ...]:
    """The ways to connect the ranks that NCCL found, from a file of NCCL_GRAPH_DUMP_FILE. Ways without channels are
    left out: NCCL cannot use them. It writes bandwidth per channel; here it is that of all channels. Raises InputError
    where the file cannot be read or is something else."""
    root = _root(path, "graphs", "NCCL_GRAPH_DUMP_FILE")
    found = []
    for graph in root.children:
        channels, pattern = graph.whole("nchannels"), graph.whole("pattern")
        intra, inter = graph.number("speedintra"), graph.number("speedinter")
        if graph.tag != "graph" or pattern is None or intra is None or inter is None:
            continue
        if not channels or channels < 0:
            continue
        types = (graph.attributes.get("typeintra"), graph.attributes.get("typeinter"))
        quote = graph.quote(path)
        ways = [element for channel in graph.children if channel.tag == "channel" for element in channel.children]
        devices = {number for way in ways if way.tag == "gpu" and (number := way.whole("dev")) is not None}
        found.append(
            GraphBandwidth(
                pattern, channels, channels * intra, channels * inter, *types, quote,
                devices=tuple(sorted(devices))[:_MOST_DEVICES],
                leaves_host=any(way.tag == "net" for way in ways) if ways else None,
            )
        )  # fmt: skip
    return tuple(found)


def _root(path: str, tag: str, variable: str) -> Element:
    root = read_xml(path)
    if root.tag != tag:
        raise FileError(path, f"begins with <{root.tag[:40]}>, not <{tag}>; give a file that {variable} wrote")
    return root


def _machine(path: str, host: str | None, cpus: list[Element]) -> Machine:
    found = [pair for cpu in cpus for pair in cpu.below() if pair[0].tag in ("gpu", "net")]
    cards = [pair for pair in found if pair[0].tag == "gpu"][:_MOST_DEVICES]
    ports = [pair for pair in found if pair[0].tag == "net"][:_MOST_DEVICES]
    numbers = [number for element, _ in cards if (number := element.whole("dev")) is not None and number >= 0]
    if len(set(numbers)) < len(cards):  # containers that see one GPU each call it 0 alike
        numbers = list(range(len(cards)))
    gpus = [_gpu(number, *card) for number, card in zip(numbers, cards, strict=True)]
    nics = [_nic(f"NIC{number}", *port) for number, port in enumerate(ports)]
    labels = [gpu.label for gpu in gpus] + [nic.label for nic in nics]
    devices = [(label, *pair) for label, pair in zip(labels, cards + ports, strict=True)]
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    return Machine(host, tuple(ordered), tuple(nics), machine_paths(path, devices), (path,))


def _gpu(index: int, element: Element, parents: tuple[Element, ...]) -> Gpu:
    cpu = parents[0]
    up = sum(max(link.whole("count") or 0, 0) for link in element.children if link.tag == "nvlink")
    has_xgmi = any(link.tag == "xgmi" for link in element.children)
    return Gpu(
        index=index,
        bus_id=_bus_id(parents),
        numa=_node(cpu),
        cpus=_cores(cpu.attributes.get("affinity", "")),
        pcie=_pcie(parents),
        nvlinks=None if has_xgmi else up,
        nvlink_gbs=_link_gbs(element, has_xgmi, up > 0),
    )


def _nic(label: str, element: Element, parents: tuple[Element, ...]) -> Nic:
    name = element.attributes.get("name")
    bus_id = _bus_id(parents)
    speed = element.number("speed")  # Mbit/s
    return Nic(
        label=label,
        name=name,
        kind=nic_kind(name),
        numa=_node(parents[0]) if bus_id else None,  # NCCL hangs what is on no bus on the first CPU
        speed_gbs=speed / 8000 if speed and speed > 0 else None,
        bonded=is_bonded(name),
        bus_id=bus_id,
        pcie=_pcie(parents),
    )


def _own(parents: Sequence[Element]) -> Element | None:
    """The PCI function that a gpu or nic element is in."""
    return next((parent for parent in reversed(parents) if parent.tag == "pci"), None)


def _node(cpu: Element) -> int | None:
    node = cpu.whole("numaid")
    return None if node is None or node < 0 else node


def _pcie(parents: tuple[Element, ...]) -> Pcie | None:
    """What device and slot could do: NCCL reads their maximum, not the state."""
    if (own := _own(parents)) is None:
        return None
    width = own.whole("link_width")
    speed = re.match(r"(\d{1,3}(?:\.\d{1,3})?) GT/s", own.attributes.get("link_speed", ""), re.ASCII)
    generation = _GENERATIONS.index(float(speed[1])) + 1 if speed and float(speed[1]) in _GENERATIONS else None
    if not width and generation is None:
        return None
    return Pcie(most_generation=generation, most_width=width if width and width > 0 else None)


def _link_gbs(element: Element, has_xgmi: bool, has_nvlink: bool) -> float | None:
    if has_xgmi:
        architecture = element.attributes.get("gcn", "")
        return next((gbs for name, gbs in _XGMI_GBS if architecture.startswith(name)), None)
    capability = element.whole("sm") if has_nvlink else None
    if capability is None or capability >= _WITHOUT_NVLINK:
        return None
    return next((gbs for least, gbs in _NVLINK_GBS if capability >= least), None)


def _cores(mask: str) -> str | None:
    """``0000ffff,00000000`` (the kernel's hexadecimal words, the highest first) as ``32-47``."""
    words = mask.split(",")
    if len(words) > 512 or not all(re.fullmatch("[0-9a-f]{1,8}", word) for word in words):
        return None
    bits = int("".join(word.rjust(8, "0") for word in words), 16)
    runs = runs_of(core for core in range(bits.bit_length()) if bits >> core & 1)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or None
