"""The nouns of NCCL: what its log, its tests and its Inspector plugin tell."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
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
    """One rank sends to another: all channels of one way together; ranks count inside the communicator. detail: what
    follows the transport (``CUMEM``, ``IPC``, ``direct pointer``, ``indirect``, ``IB``, ``Socket``, ``AWS Libfabric``,
    …). channels: different channel numbers. device: the network device's number, of NET; where the channels go over
    several devices, there is a connection for each. gdr: GPUDirect RDMA was used; both as the sender says. of_receiver:
    only the receiver's lines are there, and both are its own: of the sender's NIC nothing is known. quote: of the first
    line. A COLLNET connection goes to the network: its destination is its source. proxy: the rank whose process sends,
    of NET, where that is another one (PXN: the GPU near the NIC, over NVLink)."""

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
    """What NCCL expects of one way to connect the ranks, from its own search; GB/s one way over all channels. pattern:
    4 ring, 1 and 3 trees, 5 NVLS [NCCL, graph.h]. intra and inter: inside hosts and between them. The type is the
    farthest path used: ``NVL``, ``NVB``, ``C2C``, ``PIX``, ``PXB``, ``PXN``, ``PHB``, ``SYS``. devices: the GPUs of a
    channel, as NCCL's XML counts them. leaves_host: whether a channel goes through a network device. None and empty
    where the source is a log, which tells that of the communicator."""

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
    """One NCCL communicator as its ranks' lines tell of it. id: ``commId`` where NCCL says it (from 2.16; a split's is
    made of its parent's), else made of host, pid and pointer. size: ranks it has; at_least: as many as its connections
    name, where nothing tells more. places: by rank, as far as the lines name them. graphs: what NCCL found, each once.
    nodes: hosts, as NCCL counts. The channels: that collectives, NVLink SHARP and messages may use. rings: the
    different orders of ranks, as far as they fit into a line."""

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
    ``numa_balancing``, it moves memory between NUMA nodes."""

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
    plugin_failures: the failures among them: see `NetworkEventKind`. warnings: NCCL WARN. machines: from
    ``=== System``, where the log has it; NICs are called ``NET0``, … as NCCL counts them. choices: the tuner's, as far
    as the log has them. tuners: external tuner plugins in use. p2p_disabled: lines that say that GPUs cannot reach each
    other directly. connections_left_out: beyond the most that are kept. informed: host and pid of processes that wrote
    NCCL INFO lines ("" and 0: lines that name none). Of another one nothing follows from what is missing:
    NCCL_DEBUG=WARN tells neither networks nor connections. host_remarks: of each host and kind the first."""

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


LARGE_BYTES = 32_000_000  # from here the links set the time of a test that runs by itself
_FALLEN, _FALLING = 0.5, 0.75  # of the best rate: the largest message, and the one before it


class BenchmarkRank(Struct, frozen=True):
    """Where a rank of a test ran. device: as its process counts. bus_id: as far as told (``0000:1b:00.0``)."""

    rank: int
    host: str
    device: int
    gpu: str
    bus_id: str | None = None


class BenchmarkSize(Struct, frozen=True):
    """One row of the table: the faster of its two ways (out of place, in place). bytes: of the message, as nccl-tests
    counts. wrong: elements that came out wrong, of both ways; None where they were not checked."""

    bytes: Annotated[int, Meta(ge=0)]
    time_us: float
    busbw_gbs: float
    wrong: int | None
    quote: Quote


class Benchmark(Struct, frozen=True):
    """One run of a test. op: ``all_reduce``, …, None where nothing tells it. ranks: by rank. alone: processes that each
    ran a test of one rank, as nccl-tests does when it was built without MPI. out_of_bounds: what the end of the table
    says. average_gbs: bus bandwidth over all sizes, which small ones pull down."""

    op: str | None
    ranks: tuple[BenchmarkRank, ...]
    sizes: tuple[BenchmarkSize, ...]
    quote: Quote
    average_gbs: float | None = None
    out_of_bounds: int | None = None
    alone: int = 0

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))

    @property
    def gpu(self) -> str | None:
        """The name of its GPUs; None where they differ or are not told."""
        names = {rank.gpu for rank in self.ranks}
        return names.pop() if len(names) == 1 else None

    @property
    def large(self) -> BenchmarkSize | None:
        """The row with the highest bus bandwidth among large messages."""
        rows = [row for row in self.sizes if row.bytes >= LARGE_BYTES]
        return max(rows, key=lambda row: row.busbw_gbs, default=None)

    @property
    def falls_to(self) -> BenchmarkSize | None:
        """The largest message, where the rate falls to less than half on the way to it from a large one. Two larger
        ones at least are far below the best, so that none is an outlier."""
        best = self.large
        larger = [] if best is None else sorted((r for r in self.sizes if r.bytes > best.bytes), key=lambda r: r.bytes)
        if best is None or len(larger) < 2 or larger[-1].busbw_gbs >= _FALLEN * best.busbw_gbs:
            return None
        return larger[-1] if larger[-2].busbw_gbs < _FALLING * best.busbw_gbs else None

    @property
    def best(self) -> BenchmarkSize:
        """That row; of a test without large messages the best of all."""
        return self.large or max(self.sizes, key=lambda row: row.busbw_gbs)

    @property
    def smallest(self) -> BenchmarkSize:
        return min(self.sizes, key=lambda row: row.bytes)

    @property
    def wrong(self) -> int | None:
        """Elements that came out wrong, of all sizes; None where nothing was checked."""
        counts = [row.wrong for row in self.sizes if row.wrong is not None]
        if self.out_of_bounds:
            return max(sum(counts), self.out_of_bounds)
        return sum(counts) if counts else self.out_of_bounds


class InspectorRank(Struct, frozen=True):
    """One rank of one communicator, and one operation of it that Inspector saw complete. rank: in its communicator, of
    `ranks`; of a subgroup that is not the job's rank. communicator: NCCL's hash. name: as the program gave it, empty
    where it gave none. op: ``AllReduce``, …; ``Send`` and ``Recv`` for messages. last: the largest sequence number,
    which NCCL counts for each operation apart. written: by second (since 1970, of the rank's host) in which lines were
    written, the largest number until then. path: the file."""

    communicator: str
    name: str
    ranks: int
    rank: int
    op: str
    is_p2p: bool
    count: int
    last: int
    written: tuple[tuple[int, int], ...]
    path: str
    line: int


class InspectorSpeed(Struct, frozen=True):
    """How fast one rank's operations of like size were. least, most: bytes of a message, within a factor of 2. rank,
    communicator, name, ranks: as in `InspectorRank`. busbw_gbs: the median."""

    communicator: str
    name: str
    ranks: int
    rank: int
    op: str
    least: int
    most: int
    count: int
    busbw_gbs: float


class Inspector(Struct, frozen=True):
    """What the files of NCCL Inspector tell together. dropped: operations that it says it lost."""

    files: tuple[str, ...]
    completed: tuple[InspectorRank, ...]
    speeds: tuple[InspectorSpeed, ...]
    dropped: int = 0

    @property
    def collectives(self) -> int:
        """How many collectives: those of the rank that has most of them, of each communicator and operation."""
        counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        for row in self.completed:
            if not row.is_p2p:
                key = row.communicator, row.op
                counts[key] = max(counts[key], row.count)
        return sum(counts.values())

    @property
    def main(self) -> InspectorSpeed | None:
        """The operation and size that moved most bytes, with the median over ranks."""
        alike: defaultdict[tuple[str, str, int], list[InspectorSpeed]] = defaultdict(list)
        for row in self.speeds:
            alike[row.communicator, row.op, row.most.bit_length()].append(row)
        rows = max(alike.values(), key=lambda rows: sum(row.count * row.most for row in rows), default=[])
        if not rows:
            return None
        one = rows[0]
        return InspectorSpeed(
            one.communicator, one.name, one.ranks, one.rank, one.op, min(row.least for row in rows),
            max(row.most for row in rows), max(row.count for row in rows), median(row.busbw_gbs for row in rows),
        )  # fmt: skip


class InspectorTally(Struct):
    """What was read so far of one rank, communicator and operation."""

    count: int = 0
    last: int = 0
    line: int = 1
    written: dict[int, int] = field(default_factory=dict)
