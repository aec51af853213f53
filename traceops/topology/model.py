"""The nouns of a machine's fabric: devices, the paths between them, and what NCCL said it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# From the nearest to the farthest. NV: NVLink, directly or through NVSwitch. XGMI: AMD's. C2C: between a
# superchip's GPU and CPU. PIX: one PCIe switch. PXB: several. PHB: a PCIe host bridge. NODE: several host
# bridges of one NUMA node. SYS: between NUMA nodes. PCIE: over PCIe, nothing more is known.
PathKind = Literal["NV", "XGMI", "C2C", "PIX", "PXB", "PHB", "NODE", "SYS", "PCIE"]
PATH_KINDS: tuple[PathKind, ...] = ("NV", "XGMI", "C2C", "PIX", "PXB", "PHB", "NODE", "SYS", "PCIE")
Transport = Literal["P2P", "SHM", "NET", "COLLNET", "NVLS"]
# What a line says of a network that NCCL could or could not use. Normal on a machine without that network:
# no_plugin, no external plugin is installed; no_device, the network has no device here; no_library, what drives it
# is not installed; disabled, it is switched off by a setting, or NCCL gives no reason and warns of nothing. Failures:
# plugin_missing, one that was asked for is not installed; plugin_failed, one was found
# and did not start; device_failed, devices exist and cannot be used; no_interface, no interface fits what was asked
# for; no_network, no network at all started, or not the one that was asked for.
NetworkEventKind = Literal[
    "no_plugin", "no_device", "no_library", "disabled",
    "plugin_missing", "plugin_failed", "device_failed", "no_interface", "no_network",
]  # fmt: skip
NETWORK_FAILURES: tuple[NetworkEventKind, ...] = (
    "plugin_missing", "plugin_failed", "device_failed", "no_interface", "no_network",
)  # fmt: skip


@dataclass(frozen=True)
class Quote:
    """A line of a file, as evidence. line: from 1. text: as it stands there, cut to 300 characters."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class Path:
    """How two devices reach each other. count: NVLinks of kind NV. gbs: one-way GB/s where the source says it."""

    kind: PathKind
    count: int | None = None
    gbs: float | None = None
    quote: Quote | None = None


@dataclass(frozen=True)
class Pcie:
    """A device's PCIe link as it is and as the device and slot could be; None where not known.

    generation: 1 to 7. width: lanes. An idle GPU lowers its generation by itself; width does not change.
    """

    generation: int | None = None
    width: int | None = None
    most_generation: int | None = None
    most_width: int | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU of one machine. index: as nvidia-smi counts. bus_id: ``0000:3b:00.0``, lower case. numa: -1 is None.

    cpus: near cores as a list like ``0-11,24-35``. nvlinks: links that are up. nvlink_gbs: of one link, one way.
    nvlinks_down: links that exist and are not up.
    """

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


@dataclass(frozen=True)
class Nic:
    """A network device. label: what the matrix calls it (``NIC0``). name: the device (``mlx5_0``, ``eth0``).

    kind: as far as known. speed_gbs: one way, GB/s (a 200 Gbit/s port: 25). bonded: several ports joined in one
    (``mlx5_bond_0``, ``bond0``). numa: None where not known. up: False where the port is down.
    """

    label: str
    name: str | None = None
    kind: Literal["IB", "RoCE", "EFA", "Ethernet", "other"] | None = None
    numa: int | None = None
    speed_gbs: float | None = None
    bonded: bool = False
    bus_id: str | None = None
    pcie: Pcie | None = None
    up: bool | None = None


@dataclass(frozen=True)
class Machine:
    """One host's devices and the paths between them.

    host: None where the source does not say. paths: by two labels, either way round: ask `path`.
    sources: files it was read from, empty for this machine itself.
    """

    host: str | None
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    paths: dict[tuple[str, str], Path] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    def path(self, one: str, other: str) -> Path | None:
        """How two devices reach each other; None where not known."""
        return self.paths.get((one, other)) or self.paths.get((other, one))


@dataclass(frozen=True)
class Place:
    """Where a rank of a communicator runs. cuda_device: as the process counts. nvml_device: as nvidia-smi counts."""

    rank: int
    host: str | None = None
    pid: int | None = None
    cuda_device: int | None = None
    nvml_device: int | None = None
    bus_id: str | None = None


@dataclass(frozen=True)
class Connection:
    """One rank sends to another: all channels of one way together; ranks count inside the communicator.

    detail: what follows the transport (``CUMEM``, ``IPC``, ``direct pointer``, ``indirect``, ``IB``, ``Socket``,
    ``AWS Libfabric``, …). channels: different channel numbers. device: the network device's number, of NET; where the
    channels go over several devices, there is a connection for each. gdr: GPUDirect RDMA was used; both as the sender
    says, or the receiver where only its lines are there. quote: of the first line. receive_devices and receive_gdr: as
    the receiver says. A COLLNET connection goes to the network: its destination is its source. proxy: the rank whose
    process sends, of NET, where that is another one (PXN: the GPU near the NIC, over NVLink).
    """

    source: int
    destination: int
    transport: Transport
    detail: str
    channels: int
    quote: Quote
    device: int | None = None
    gdr: bool = False
    receive_devices: tuple[int, ...] = ()
    receive_gdr: bool | None = None
    proxy: int | None = None


@dataclass(frozen=True)
class GraphBandwidth:
    """What NCCL expects of one way to connect the ranks, from its own search; GB/s one way over all channels.

    pattern: 4 ring, 1 and 3 trees, 5 NVLS [NCCL, graph.h]. intra and inter: inside hosts and between them.
    The type is the farthest path used: ``NVL``, ``NVB``, ``C2C``, ``PIX``, ``PXB``, ``PXN``, ``PHB``, ``SYS``.
    """

    pattern: int
    channels: int
    intra_gbs: float
    inter_gbs: float
    intra_type: str | None
    inter_type: str | None
    quote: Quote


@dataclass(frozen=True)
class Communicator:
    """One NCCL communicator as its ranks' lines tell of it.

    id: ``commId`` where NCCL says it (from 2.16; a split's is made of its parent's), else made of host, pid and
    pointer. size: ranks it has; at_least: as many as its connections name, where nothing tells more. places: by rank,
    as far as the lines name them. graphs: what NCCL found, each once. nodes: hosts, as NCCL counts. The
    channels: that collectives, NVLink SHARP and messages may use. rings: the different orders of ranks, as far as they
    fit into a line.
    """

    id: str
    size: int
    places: dict[int, Place] = field(default_factory=dict)
    connections: tuple[Connection, ...] = ()
    graphs: tuple[GraphBandwidth, ...] = ()
    nodes: int | None = None
    coll_channels: int | None = None
    nvls_channels: int | None = None
    p2p_channels: int | None = None
    rings: tuple[tuple[int, ...], ...] = ()
    at_least: bool = False


@dataclass(frozen=True)
class Network:
    """What one process says of the network. plugin: ``Socket``, ``IB``, ``AWS Libfabric``, … as it stands there.

    devices: numbers and names of what NCCL uses (``mlx5_0:1/RoCE``, ``eth0``). gdr: whether GPUDirect RDMA is on for
    a device, by name. provider: of libfabric (``efa``), where the plugin says it.
    """

    host: str
    pid: int
    plugin: str
    quote: Quote
    devices: tuple[tuple[int, str], ...] = ()
    gdr: dict[str, bool] = field(default_factory=dict)
    provider: str | None = None


@dataclass(frozen=True)
class NetworkEvent:
    """A line by which a network or its plugin is absent or failed; plugin: ``IB``, …, as far as told."""

    kind: NetworkEventKind
    host: str
    pid: int
    quote: Quote
    plugin: str | None = None

    @property
    def failed(self) -> bool:
        """Whether this is a failure, rather than normal on a machine that has no such network."""
        return self.kind in NETWORK_FAILURES


@dataclass(frozen=True)
class Choice:
    """What NCCL's tuner chose for an operation; calls: how often, bytes: smallest and largest. quote: the first.

    op: ``AllReduce``, …, None before NCCL 2.23. algorithm: ``RING``, ``TREE``, ``NVLS``, …. protocol: ``LL``,
    ``LL128``, ``SIMPLE``.
    """

    op: str | None
    algorithm: str
    protocol: str
    calls: int
    least_bytes: int
    most_bytes: int
    quote: Quote


@dataclass(frozen=True)
class NcclSetting:
    """A variable that NCCL says was set; value: as far as the line tells."""

    name: str
    value: str
    quote: Quote


@dataclass(frozen=True)
class NcclLog:
    """What the NCCL lines of some files say; every tuple in the order of the lines, equal lines of ranks once.

    cuda_driver: the CUDA version that the driver is for (``13.0``). network_events: also those that are normal.
    plugin_failures: the failures among them: see `NetworkEventKind`. warnings: NCCL WARN.
    machines: from ``=== System``, where the log has it; NICs are called ``NET0``, … as NCCL counts them.
    choices: the tuner's, as far as the log has them. tuners: external tuner plugins in use. p2p_disabled: lines that
    say that GPUs cannot reach each other directly. connections_left_out: beyond the most that are kept.
    """

    files: tuple[str, ...]
    nccl_versions: tuple[str, ...] = ()
    cuda_driver: str | None = None
    communicators: tuple[Communicator, ...] = ()
    networks: tuple[Network, ...] = ()
    settings: tuple[NcclSetting, ...] = ()
    plugin_failures: tuple[Quote, ...] = ()
    warnings: tuple[Quote, ...] = ()
    machines: tuple[Machine, ...] = ()
    network_events: tuple[NetworkEvent, ...] = ()
    choices: tuple[Choice, ...] = ()
    tuners: tuple[str, ...] = ()
    p2p_disabled: tuple[Quote, ...] = ()
    connections_left_out: int = 0


@dataclass(frozen=True)
class Measured:
    """Bandwidth measured on a machine, by nccl-tests' rules: bus bandwidth in GB/s (1e9 bytes).

    op: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``send_recv``. gpus: indices as nvidia-smi counts.
    bytes: of the message, as nccl-tests counts. time_us: of one operation, median.
    """

    op: str
    gpus: tuple[int, ...]
    bytes: int
    time_us: float
    busbw_gbs: float
    host: str | None = None
    backend: str = "nccl"


@dataclass(frozen=True)
class Reference:
    """Bandwidths that a machine gave when it was measured at its best, for the runs made on it later.

    gpu: name of its GPUs, None for the CPU. topology: fingerprint of GPUs and paths, so that a changed machine is not
    held to it. measured_at: seconds since the Unix epoch. settings: variables that were set.
    """

    host: str
    gpu: str | None
    topology: str
    measured_at: float
    measured: tuple[Measured, ...]
    settings: dict[str, str] = field(default_factory=dict)
    source: str | None = None


@dataclass(frozen=True)
class Fabric:
    """All evidence of the fabric of one run. problems: files that could not be used, and why.

    graphs: from NCCL_GRAPH_DUMP_FILE, which does not say of which communicator: of the job's first.
    """

    machines: tuple[Machine, ...] = ()
    log: NcclLog | None = None
    references: tuple[Reference, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    graphs: tuple[GraphBandwidth, ...] = ()

    @property
    def tells(self) -> bool:
        """Whether any file told anything."""
        return bool(self.machines or self.log is not None or self.references or self.graphs)
