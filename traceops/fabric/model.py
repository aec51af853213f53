"""The nouns of a machine: devices, the paths between them, and what they were measured to give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?", re.IGNORECASE | re.ASCII)


def normal_bus_id(text: str | None) -> str | None:
    """``00000000:3B:00.0``, ``3b:00.0`` and ``0000:3b:00`` as ``0000:3b:00.0``; None for what is no bus id."""
    match = _BUS_ID.fullmatch((text or "").strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{(function or '0').lower()}"


LOCAL_HOST = "localhost"  # a name that many hosts bear


def short_host(host: str | None) -> str:
    """Without the domain, which some sources say and some do not; an address as it is. Empty for None."""
    name = (host or "").lower()
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]


def same_host(one: str | None, other: str | None) -> bool:
    """Whether both are named, and alike."""
    return one is not None and other is not None and short_host(one) == short_host(other)


# From the nearest to the farthest. NV: NVLink, directly or through NVSwitch. XGMI: AMD's. C2C: between a
# superchip's GPU and CPU. PIX: one PCIe switch. PXB: several. PHB: a PCIe host bridge. NODE: several host
# bridges of one NUMA node. SYS: between NUMA nodes. PCIE: over PCIe, nothing more is known.
PathKind = Literal["NV", "XGMI", "C2C", "PIX", "PXB", "PHB", "NODE", "SYS", "PCIE"]
PATH_KINDS: tuple[PathKind, ...] = ("NV", "XGMI", "C2C", "PIX", "PXB", "PHB", "NODE", "SYS", "PCIE")


class Quote(Struct, frozen=True):
    """A line of a file, as evidence. line: from 1. text: as it stands there, cut to 300 characters."""

    path: str
    line: Annotated[int, Meta(ge=1)]
    text: str


class Path(Struct, frozen=True):
    """How two devices reach each other. count: links of kind NV or XGMI. gbs: one-way GB/s where the source says it.
    back_share: of the links from the first device to the second, as many as lead back, where a source tells of both
    ways and they differ (0.5: half as many); `Machine.paths` then has the wider way. None where they are alike."""

    kind: PathKind
    count: int | None = None
    gbs: float | None = None
    quote: Quote | None = None
    back_share: float | None = None


class Pcie(Struct, frozen=True):
    """A device's PCIe link as it is and as the device and slot could be; None where not known. generation: 1 to 7.
    width: lanes. An idle GPU lowers its generation by itself; width does not change."""

    generation: int | None = None
    width: int | None = None
    most_generation: int | None = None
    most_width: int | None = None


class Gpu(Struct, frozen=True):
    """A GPU of one machine. index: as nvidia-smi counts. bus_id: ``0000:3b:00.0``, lower case. numa: -1 is None. cpus:
    near cores as a list like ``0-11,24-35``. nvlinks: links that are up. nvlink_gbs: of one link, one way; of a GPU by
    AMD of one XGMI link, as RCCL counts it. nvlinks_down: links that exist and are not up."""

    index: int
    name: str | None = None
    bus_id: str | None = None
    uuid: str | None = None
    numa: int | None = None
    cpus: str | None = None
    pcie: Pcie | None = None
    nvlinks: int | None = None
    nvlinks_down: int = 0
    nvlink_gbs: float | None = None

    @property
    def label(self) -> str:
        return f"GPU{self.index}"

    @property
    def plain_name(self) -> str:
        """In lower case and without the maker, which some sources say; empty without a name."""
        return " ".join((self.name or "").lower().split()).removeprefix("nvidia ")


class Nic(Struct, frozen=True):
    """A network device. label: what the matrix calls it (``NIC0``). name: the device (``mlx5_0``, ``eth0``). kind: as
    far as known. speed_gbs: one way, GB/s (a 200 Gbit/s port: 25). bonded: several ports joined in one
    (``mlx5_bond_0``, ``bond0``). numa: None where not known. up: False where the port is down."""

    label: str
    name: str | None = None
    kind: Literal["IB", "RoCE", "EFA", "Ethernet", "other"] | None = None
    numa: int | None = None
    speed_gbs: float | None = None
    bonded: bool = False
    bus_id: str | None = None
    pcie: Pcie | None = None
    up: bool | None = None


class Machine(Struct, frozen=True):
    """One host's devices and the paths between them. host: None where the source does not say. paths: by two labels,
    either way round: ask `path`. sources: files it was read from, empty for this machine itself."""

    host: str | None
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    paths: dict[tuple[str, str], Path] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    def path(self, one: str, other: str) -> Path | None:
        """How two devices reach each other; None where not known."""
        return self.paths.get((one, other)) or self.paths.get((other, one))


class Measured(Struct, frozen=True):
    """Bandwidth measured on a machine, by nccl-tests' rules: bus bandwidth in GB/s (1e9 bytes). op: ``all_reduce``,
    ``all_gather``, ``reduce_scatter``, ``send_recv``. gpus: indices as nvidia-smi counts. bytes: of the message, as
    nccl-tests counts. time_us: of one operation, median."""

    op: str
    gpus: tuple[int, ...]
    bytes: Annotated[int, Meta(ge=0)]
    time_us: float
    busbw_gbs: float
    host: str | None = None
    backend: str = "nccl"


class Reference(Struct, frozen=True):
    """Bandwidths that a machine gave when it was measured at its best, for the runs made on it later. gpu: name of its
    GPUs, null for the CPU. topology: fingerprint of GPUs and paths, so that a changed machine is not held to it.
    measured_at: seconds since the Unix epoch. settings: variables that were set."""

    host: str
    gpu: str | None
    topology: str
    measured_at: float
    measured: tuple[Measured, ...]
    settings: dict[str, str] = field(default_factory=dict)
    source: str | None = None


NicKind = Literal["IB", "RoCE", "EFA", "Ethernet", "other"]
# First letters of a device's name. ``mlx5_0`` may be InfiniBand or RoCE: its name does not tell.
_KINDS: tuple[tuple[tuple[str, ...], NicKind], ...] = (
    (("mlx5_bond", "roce", "bnxt_re", "irdma", "erdma", "mana_"), "RoCE"),  # ports of InfiniBand are not bonded so
    (("efa", "rdmap"), "EFA"),
    (("ib", "qib", "opa"), "IB"),
    (("eth", "en", "em", "bond"), "Ethernet"),
    (("hfi", "cxi", "hsn"), "other"),
)
_RDMA_OF_EITHER_KIND = "mlx"
# How near two devices are that share a NUMA node, the nearest first.
_WITHIN_A_NODE: tuple[PathKind, ...] = ("PIX", "PXB", "PHB", "NODE")


def nic_kind(name: str | None) -> NicKind | None:
    """What a device of this name is; None where the name does not tell."""
    lower = (name or "").lower()
    return next((kind for starts, kind in _KINDS if lower.startswith(starts)), None)


def is_bonded(name: str | None) -> bool:
    """Whether the device joins several ports (``mlx5_bond_0``, ``bond0``)."""
    return "bond" in (name or "").lower()


def is_rdma(nic: Nic) -> bool:
    """Whether NCCL can go past the kernel on it: InfiniBand, RoCE or EFA, also where it is not known which."""
    if nic.kind is not None:
        return nic.kind in ("IB", "RoCE", "EFA")
    return (nic.name or "").lower().startswith(_RDMA_OF_EITHER_KIND)


def with_numa(nics: Sequence[Nic], gpus: Iterable[Gpu], paths: Mapping[tuple[str, str], Path]) -> tuple[Nic, ...]:
    """The NICs with the NUMA nodes that follow from their paths, where no source says them. A NIC may reach a GPU, or a
    NIC whose node is known, without crossing NUMA nodes. Then it is on that device's node. The nearest device decides;
    where two equally near ones differ, nothing is known. SYS to every GPU says that a NIC is on another node, not on
    which. Paths to Ethernet devices without a bus id are NCCL's assumption: it hangs them on the first CPU."""
    placeable = [nic.label for nic in nics if nic.kind != "Ethernet" or nic.bus_id is not None]
    nodes = {gpu.label: gpu.numa for gpu in gpus if gpu.numa is not None}
    nodes.update({nic.label: nic.numa for nic in nics if nic.numa is not None})
    known = -1
    while known < len(nodes):  # each round may place NICs that only reach a NIC placed in the last one
        known = len(nodes)
        found = {label: _node(label, nodes, paths) for label in placeable if label not in nodes}
        nodes.update({label: node for label, node in found.items() if node is not None})
    return tuple(replace(nic, numa=nodes.get(nic.label)) for nic in nics)


def _node(label: str, nodes: Mapping[str, int], paths: Mapping[tuple[str, str], Path]) -> int | None:
    for kind in _WITHIN_A_NODE:
        reached = {
            node
            for other, node in nodes.items()
            if (path := paths.get((label, other)) or paths.get((other, label))) and path.kind == kind
        }
        if reached:
            return reached.pop() if len(reached) == 1 else None
    return None
