"""The fabric as report.json and doctor.json hold it: the documents' types, from which their schemas are made."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from traceops.core.documents import FileProblem
from traceops.fabric.model import Nic, PathKind, Pcie, Quote, Reference
from traceops.fabric.nccl import BenchmarkSize, GraphBandwidth, InspectorSpeed, NcclSetting, TunerChoice

Count = Annotated[int, Meta(ge=0)]


class GpuJson(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of one machine, without its serial number. index: as nvidia-smi counts."""

    index: int
    name: str | None = None
    bus_id: str | None = None
    numa: int | None = None
    cpus: str | None = None
    pcie: Pcie | None = None
    nvlinks: int | None = None
    nvlinks_down: Count = 0
    nvlink_gbs: float | None = None


class PathJson(msgspec.Struct, frozen=True):
    """How two devices of a machine reach each other."""

    devices: tuple[str, str]
    kind: PathKind
    count: int | None = None
    gbs: float | None = None
    back_share: float | None = None


class MachineJson(msgspec.Struct, frozen=True, kw_only=True):
    """One host's devices and the paths between them."""

    host: str | None
    gpus: tuple[GpuJson, ...]
    nics: tuple[Nic, ...]
    paths: tuple[PathJson, ...]
    sources: tuple[str, ...] = ()


class MachineOfRunJson(MachineJson, frozen=True, kw_only=True):
    """One make of machine of a run: the first host of it, and the others."""

    alike: tuple[str, ...] = ()


class ChannelsJson(msgspec.Struct, frozen=True):
    """As NCCL counts them; null where the log does not tell."""

    collectives: Count | None = None
    nvls: Count | None = None
    messages: Count | None = None


class CommunicatorJson(msgspec.Struct, frozen=True, kw_only=True):
    """One NCCL communicator. hosts: as many as its ranks name, null where they name none."""

    id: str
    size: int
    hosts: int | None
    graphs: tuple[GraphBandwidth, ...]
    channels: ChannelsJson = ChannelsJson()


class ConnectionJson(msgspec.Struct, frozen=True):
    """Connections of the same kind. Hosts are null where not known, or where there are too many pairs of hosts to
    list. quote: of the first."""

    from_host: str | None
    to_host: str | None
    within_host: bool | None
    transport: str
    detail: str
    gdr: bool
    device: int | None
    count: Annotated[int, Meta(ge=0)]
    channels: Count
    quote: Quote


class NetworkDeviceJson(msgspec.Struct, frozen=True):
    """A network device that NCCL uses, by its number there."""

    number: int
    name: str


class NetworkJson(msgspec.Struct, frozen=True, kw_only=True):
    """What processes say of the network, those that say the same together. gdr: GPUDirect RDMA by device."""

    plugin: str
    devices: tuple[NetworkDeviceJson, ...]
    gdr: dict[str, bool]
    hosts: Count
    processes: Count
    quote: Quote


class NcclJson(msgspec.Struct, frozen=True, kw_only=True):
    """What NCCL's log says."""

    files: tuple[str, ...]
    versions: tuple[str, ...]
    cuda_driver: str | None
    communicators: tuple[CommunicatorJson, ...]
    communicators_left_out: Count
    connections: tuple[ConnectionJson, ...]
    networks: tuple[NetworkJson, ...]
    settings: tuple[NcclSetting, ...]
    plugin_failures: tuple[Quote, ...]
    tuners: tuple[str, ...] = ()
    choices: tuple[TunerChoice, ...]
    warnings: tuple[Quote, ...]


class BenchmarkJson(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a test of nccl-tests or rccl-tests, as its log tells it."""

    op: str | None
    ranks: Count
    hosts: tuple[str, ...]
    gpu: str | None
    wrong: Count | None
    average_gbs: float | None
    sizes: tuple[BenchmarkSize, ...]


class FabricJson(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of the machines and of what NCCL did on them."""

    machines: tuple[MachineOfRunJson, ...]
    machines_left_out: Count
    nccl: NcclJson | None
    graphs: tuple[GraphBandwidth, ...] = ()
    references: tuple[Reference, ...]
    benchmarks: tuple[BenchmarkJson, ...] = ()
    inspector: tuple[InspectorSpeed, ...] = ()
    problems: tuple[FileProblem, ...]
