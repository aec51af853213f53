"""Machines as their files show them, with bandwidths of the usual size, for the renderers' tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from changed import replace

from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Gpu, Machine, Measured, Nic, Path, Pcie, Quote, Reference
from traceops.fabric.nccl import Communicator, Connection, GraphBandwidth, NcclLog, NcclSetting, Network, RankPlace

MB = 1 << 20
DGX1 = (  # NVLinks of a DGX-1 with V100s, as nvidia-smi topo -m has them
    "X NV1 NV1 NV2 NV2 SYS SYS SYS",
    "NV1 X NV2 NV1 SYS NV2 SYS SYS",
    "NV1 NV2 X NV2 SYS SYS NV1 SYS",
    "NV2 NV1 NV2 X SYS SYS SYS NV1",
    "NV2 SYS SYS SYS X NV1 NV1 NV2",
    "SYS NV2 SYS SYS NV1 X NV2 NV1",
    "SYS SYS NV1 SYS NV1 NV2 X NV2",
    "SYS SYS SYS NV1 NV2 NV1 NV2 X",
)
L4S = (  # a real host of two L4s: no NVLink, a bonded NIC near one of them
    "X SYS SYS SYS NODE",
    "SYS X NODE NODE SYS",
    "SYS NODE X PIX SYS",
    "SYS NODE PIX X SYS",
    "NODE SYS SYS SYS X",
)


def paths(labels: Sequence[str], rows: Sequence[str]) -> dict[tuple[str, str], Path]:
    """Paths from the words of a matrix."""
    found = {}
    for (i, one), (j, other) in combinations(enumerate(labels), 2):
        word = rows[i].split()[j]
        found[one, other] = Path("NV", int(word[2:])) if word[:2] == "NV" else Path(word)  # type: ignore[arg-type]
    return found


def nvswitch(gpus: int = 4, host: str | None = "node-1", numas: int = 1, nics: int = 0) -> Machine:
    """H200s of which every pair has 18 NVLinks."""
    made = tuple(
        Gpu(
            index,
            "NVIDIA H200",
            bus_id=f"0000:00:{index + 6:02x}.0",
            numa=index * numas // gpus,
            cpus="0-63",
            pcie=Pcie(5, 16, 5, 16),
            nvlinks=18,
            nvlink_gbs=26.562,
        )
        for index in range(gpus)
    )
    cards = tuple(
        Nic(f"NIC{index}", f"mlx5_{index}", "IB", numa=index * numas // nics, speed_gbs=50.0, up=True)
        for index in range(nics)
    )
    joined = {(one.label, other.label): Path("NV", 18) for one, other in combinations(made, 2)}
    for card in cards:
        for gpu in made:
            near = card.label[3:] == str(gpu.index)
            joined[card.label, gpu.label] = Path("PIX" if near else "NODE" if card.numa == gpu.numa else "SYS")
    return Machine(host, made, cards, joined)


def dgx1(host: str = "dgx") -> Machine:
    gpus = tuple(Gpu(i, "Tesla V100-SXM2-16GB", numa=i // 4, nvlinks=6) for i in range(8))
    return Machine(host, gpus, (), paths([gpu.label for gpu in gpus], DGX1))


def two_l4(host: str = "l4-host") -> Machine:
    gpus = (
        Gpu(0, "NVIDIA L4", numa=0, cpus="0-11,24-35", pcie=Pcie(4, 8, 4, 16)),
        Gpu(1, "NVIDIA L4", numa=1, cpus="12-23,36-47", pcie=Pcie(4, 16, 4, 16)),
    )
    nics = (
        Nic("NIC0", "mlx5_0", "RoCE", numa=1, speed_gbs=12.5),
        Nic("NIC1", "mlx5_1", "RoCE", numa=1, speed_gbs=12.5, up=False),
        Nic("NIC2", "mlx5_bond_0", "RoCE", numa=0, speed_gbs=25.0, bonded=True),
    )
    return Machine(host, gpus, nics, paths(["GPU0", "GPU1", "NIC0", "NIC1", "NIC2"], L4S))


def pcie_box(gpus: int = 16, host: str = "pcie-box") -> Machine:
    """GPUs behind PCIe alone on 4 NUMA nodes, a NIC for two of them; nobody says on which nodes."""
    cards = tuple(Gpu(index, "NVIDIA L40S") for index in range(gpus))
    nics = tuple(Nic(f"NIC{index}") for index in range(gpus))
    joined = {}
    for i, j in combinations(range(gpus), 2):
        joined[f"GPU{i}", f"GPU{j}"] = Path("PIX" if i // 2 == j // 2 else "NODE" if i // 4 == j // 4 else "SYS")
    for i in range(gpus):
        for j in range(gpus):
            joined[f"NIC{i}", f"GPU{j}"] = Path("PIX" if i // 2 == j // 2 else "NODE" if i // 4 == j // 4 else "SYS")
    return Machine(host, cards, nics, joined)


def no_gpu(host: str = "cpu-host") -> Machine:
    return Machine(host, (), (Nic("eth0", "eth0", "Ethernet", speed_gbs=1.25, up=True),))


def pair_sweep(
    gpus: Sequence[int], gbs: float, host: str | None = "node-1", slow: dict[tuple[int, int], float] | None = None
) -> tuple[Measured, ...]:
    """Every pair once, near `gbs`, but for those in `slow`."""
    made = []
    for place, pair in enumerate(combinations(gpus, 2)):
        speed = (slow or {}).get(pair, gbs * (1 - 0.004 * place))
        made.append(Measured("send_recv", pair, 256 * MB, 256 * MB / speed / 1e3, speed, host))
    return tuple(made)


def sweep(
    op: str, gpus: Sequence[int], peak_gbs: float, host: str | None = "node-1", backend: str = "nccl"
) -> tuple[Measured, ...]:
    """Bus bandwidth that rises with the message from 64 kB to 256 MB, as latency of 20 us lets it."""
    made = []
    for power in range(16, 29, 2):
        nbytes = 1 << power
        time_us = 20.0 + nbytes / peak_gbs / 1e3
        made.append(Measured(op, tuple(gpus), nbytes, time_us, nbytes / time_us / 1e3, host, backend))
    return tuple(made)


def shm_log(host: str = "node-1", transport: str = "SHM", detail: str = "direct/direct") -> NcclLog:
    """A ring of four ranks that shared memory connects, on a host where all pairs have NVLink."""
    places = {rank: RankPlace(rank, host, 2225 + rank, rank, rank, f"0000:00:{rank + 6:02x}.0") for rank in range(4)}
    connections = tuple(
        Connection(
            rank,
            (rank + 1) % 4,
            transport,
            detail,
            4,
            _said(
                138 + rank,
                f"Channel 00 : {rank}[{rank}] -> {(rank + 1) % 4}[{(rank + 1) % 4}] via {transport}/{detail}/direct",
            ),
        )  # type: ignore[arg-type]
        for rank in range(4)
    )
    graph = GraphBandwidth(
        4, 12, 20.0, 20.0, "NVL", "PIX", _said(90, "Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0")
    )
    return NcclLog(
        ("log.txt",),
        ("2.28.9+cuda13.0",),
        "13.0",
        (Communicator("0x2d1b", 4, places, connections, (graph,)),),
        (Network(host, 2225, "Socket", _said(20, "NET/Socket : Using [0]eth0:10.0.0.4<0>"), ((0, "eth0"),)),),
        (NcclSetting("NCCL_P2P_DISABLE", "1", _said(30, "NCCL_P2P_DISABLE set by environment to 1.")),),
        (),
        (_said(40, "NCCL WARN <b>something</b>"),),
    )


def _said(line: int, text: str) -> Quote:
    return Quote("log.txt", line, f"vm:2225:2225 [0] NCCL INFO {text}")


def fabric(hosts: int = 1) -> Fabric:
    machines = tuple(nvswitch(host=f"node-{number + 1}") for number in range(hosts))
    measured = (*sweep("all_reduce", range(4), 360.0), *pair_sweep(range(4), 380.0))
    reference = Reference("node-1", "NVIDIA H200", "4xNV18", 1.7e9, measured, {"NCCL_DEBUG": "WARN"})
    return Fabric(machines, shm_log(), (reference,), (("evidence/topo.xml", "it is empty"),))


def with_narrow(machine: Machine, index: int) -> Machine:
    """The machine with one GPU on 8 lanes and two of its NVLinks down."""
    gpus = tuple(
        replace(gpu, pcie=Pcie(5, 8, 5, 16), nvlinks=16, nvlinks_down=2) if gpu.index == index else gpu
        for gpu in machine.gpus
    )
    return replace(machine, gpus=gpus)
