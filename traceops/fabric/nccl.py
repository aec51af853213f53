"""The nouns of NCCL's log: communicators, connections, networks, and what was set and chosen."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from traceops.core.claims import reason
from traceops.fabric.model import Machine, Quote

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
HostRemarkKind = Literal["no_iommu_pt", "numa_balancing"]


class RankPlace(Struct, frozen=True):
    """Where a rank of a communicator runs. cuda_device: as the process counts. nvml_device: as nvidia-smi counts there,
    which in a container, or in a job that has a part of its host, is not as outside."""

    rank: int
    host: str | None = None
    pid: int | None = None
    cuda_device: int | None = None
    nvml_device: int | None = None
    bus_id: str | None = None


class Connection(Struct, frozen=True):
    """One rank sends to another: all channels of one way together; ranks count inside the communicator.

    detail: what follows the transport (``CUMEM``, ``IPC``, ``direct pointer``, ``indirect``, ``IB``, ``Socket``,
    ``AWS Libfabric``, …). channels: different channel numbers. device: the network device's number, of NET; where the
    channels go over several devices, there is a connection for each. gdr: GPUDirect RDMA was used; both as the sender
    says. of_receiver: only the receiver's lines are there, and both are its own: of the sender's NIC nothing is known.
    quote: of the first line. A COLLNET connection goes to the network: its destination is its source. proxy: the rank
    whose process sends, of NET, where that is another one (PXN: the GPU near the NIC, over NVLink).
    """

    source: int
    destination: int
    transport: Transport
    detail: str
    channels: int
    quote: Quote
    device: int | None = None
    gdr: bool = False
    proxy: int | None = None
    of_receiver: bool = False

    @property
    def at_device(self) -> int:
        """The rank whose process uses the network device."""
        if self.proxy is not None:
            return self.proxy
        return self.destination if self.of_receiver else self.source


class GraphBandwidth(Struct, frozen=True):
    """What NCCL expects of one way to connect the ranks, from its own search; GB/s one way over all channels.

    pattern: 4 ring, 1 and 3 trees, 5 NVLS [NCCL, graph.h]. intra and inter: inside hosts and between them.
    The type is the farthest path used: ``NVL``, ``NVB``, ``C2C``, ``PIX``, ``PXB``, ``PXN``, ``PHB``, ``SYS``.
    devices: the GPUs of a channel, as NCCL's XML counts them. leaves_host: whether a channel goes through a network
    device. None and empty where the source is a log, which tells that of the communicator.
    """

    pattern: int
    channels: int
    intra_gbs: float
    inter_gbs: float
    intra_type: str | None
    inter_type: str | None
    quote: Quote
    devices: tuple[int, ...] = ()
    leaves_host: bool | None = None


class Communicator(Struct, frozen=True):
    """One NCCL communicator as its ranks' lines tell of it.

    id: ``commId`` where NCCL says it (from 2.16; a split's is made of its parent's), else made of host, pid and
    pointer. size: ranks it has; at_least: as many as its connections name, where nothing tells more. places: by rank,
    as far as the lines name them. graphs: what NCCL found, each once. nodes: hosts, as NCCL counts. The
    channels: that collectives, NVLink SHARP and messages may use. rings: the different orders of ranks, as far as they
    fit into a line.
    """

    id: str
    size: int
    places: dict[int, RankPlace] = field(default_factory=dict)
    connections: tuple[Connection, ...] = ()
    graphs: tuple[GraphBandwidth, ...] = ()
    nodes: int | None = None
    coll_channels: int | None = None
    nvls_channels: int | None = None
    p2p_channels: int | None = None
    rings: tuple[tuple[int, ...], ...] = ()
    at_least: bool = False


class Network(Struct, frozen=True):
    """What one process says of the network. plugin: ``Socket``, ``IB``, ``AWS Libfabric``, … as it stands there.
    devices: numbers and names of what NCCL uses (``mlx5_0:1/RoCE``, ``eth0``). gdr: whether GPUDirect RDMA is on for a
    device, by name. provider: of libfabric (``efa``), where the plugin says it."""

    host: str
    pid: int
    plugin: str
    quote: Quote
    devices: tuple[tuple[int, str], ...] = ()
    gdr: dict[str, bool] = field(default_factory=dict)
    provider: str | None = None


class NetworkEvent(Struct, frozen=True):
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


class HostRemark(Struct, frozen=True):
    """What RCCL warns of about a host: ``no_iommu_pt``, its kernel was not told to pass devices' addresses through;
    ``numa_balancing``, it moves memory between NUMA nodes.
    """

    kind: HostRemarkKind
    host: str
    quote: Quote


class TunerChoice(Struct, frozen=True):
    """What NCCL's tuner chose for an operation; calls: how often, bytes: smallest and largest. quote: the first. op:
    ``AllReduce``, …, None before NCCL 2.23. algorithm: ``RING``, ``TREE``, ``NVLS``, …. protocol: ``LL``, ``LL128``,
    ``SIMPLE``."""

    op: str | None
    algorithm: str
    protocol: str
    calls: Annotated[int, Meta(ge=0)]
    least_bytes: Annotated[int, Meta(ge=0)]
    most_bytes: Annotated[int, Meta(ge=0)]
    quote: Quote


class NcclSetting(Struct, frozen=True):
    """A variable that NCCL says was set; value: as far as the line tells."""

    name: str
    value: str
    quote: Quote


class NcclLog(Struct, frozen=True):
    """What the NCCL lines of some files say; every tuple in the order of the lines, equal lines of ranks once.

    cuda_driver: the CUDA version that the driver is for (``13.0``). network_events: also those that are normal.
    plugin_failures: the failures among them: see `NetworkEventKind`. warnings: NCCL WARN.
    machines: from ``=== System``, where the log has it; NICs are called ``NET0``, … as NCCL counts them.
    choices: the tuner's, as far as the log has them. tuners: external tuner plugins in use. p2p_disabled: lines that
    say that GPUs cannot reach each other directly. connections_left_out: beyond the most that are kept.
    informed: host and pid of processes that wrote NCCL INFO lines ("" and 0: lines that name none). Of another one
    nothing follows from what is missing: NCCL_DEBUG=WARN tells neither networks nor connections. host_remarks: of each
    host and kind the first.
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
    choices: tuple[TunerChoice, ...] = ()
    tuners: tuple[str, ...] = ()
    p2p_disabled: tuple[Quote, ...] = ()
    connections_left_out: int = 0
    informed: frozenset[tuple[str, int]] = frozenset()
    host_remarks: tuple[HostRemark, ...] = ()


# NCCL itself says that it has no network: it does not go on over another one.
_NOTHING_LEFT: tuple[NetworkEventKind, ...] = ("no_interface", "no_network")

_TO_SOCKETS = (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "SOCKET"))


def has_no_network(log: NcclLog) -> bool:
    """Whether NCCL says outright that it has no network; that one plugin failed does not mean it."""
    return any(event.kind in _NOTHING_LEFT for event in log.network_events)


def failed_are_informed(log: NcclLog) -> bool:
    """Whether the processes whose plugin failed wrote INFO lines too, among which the network in use would be."""
    failed = {(event.host, event.pid) for event in log.network_events if event.failed}
    return bool(failed) and failed <= log.informed


def all_ranks_told(log: NcclLog) -> bool:
    """Whether every rank of every communicator of several has a connection in the log."""
    return all(
        not communicator.at_least
        and {rank for one in communicator.connections for rank in (one.source, one.destination)}
        >= set(range(communicator.size))
        for communicator in log.communicators
        if communicator.size > 1
    )


def why_not_told(log: NcclLog) -> str:
    """Why nothing follows from the absence of connections over the network; empty where something does."""
    several = [communicator for communicator in log.communicators if communicator.size > 1]
    if any(communicator.connections for communicator in several):
        return ""
    only_sockets = {network.plugin for network in log.networks} == {"Socket"}
    if several or (not log.communicators and only_sockets):
        return reason("fabric", "no_connections")
    return ""


def names_all_nics(machine: Machine, log: NcclLog) -> bool:
    """Whether a matrix or a look at the machine says what it has; NCCL's log and XML say only what it may use."""
    others = set(machine.sources) - set(log.files)
    return not machine.sources or any(not source.endswith(".xml") for source in others)


def asked_for_sockets(log: NcclLog) -> list[NcclSetting]:
    """The settings that the log tells of and that choose sockets, each variable once."""
    found: dict[str, NcclSetting] = {}
    for setting in log.settings:
        if any(setting.name == name and setting.value.strip().upper().startswith(value) for name, value in _TO_SOCKETS):
            found.setdefault(setting.name, setting)
    return list(found.values())
