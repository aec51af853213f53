"""What the doctor tries when something fails or is slow: documented changes, and when each may help."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from traceops.doctor.model import EnvironmentChange
from traceops.doctor.situation import Situation

# What a variable holds down while it is set, for the text of the change that removes it.
WHAT_IT_HOLDS: dict[str, str] = {
    "NCCL_P2P_DISABLE": "lets GPUs of one host send to each other directly again",
    "NCCL_P2P_LEVEL": "lets NCCL decide again how far apart GPUs may be that send to each other directly",
    "NCCL_SHM_DISABLE": "lets GPUs of one host use shared memory where they cannot send directly",
    "NCCL_IB_DISABLE": "lets NCCL use InfiniBand or RoCE again",
    "NCCL_SOCKET_IFNAME": "lets NCCL find a network interface by itself",
    "GLOO_SOCKET_IFNAME": "lets gloo find a network interface by itself, from the host's name",
    "NCCL_IB_HCA": "lets NCCL use all InfiniBand devices again",
    "NCCL_NET": "lets NCCL choose the network again",
    "NCCL_NET_PLUGIN": "lets NCCL choose the network plugin again",
    "NCCL_ALGO": "lets NCCL choose ring, tree or NVLS by size again",
    "NCCL_PROTO": "lets NCCL choose the protocol by size again",
    "NCCL_CUMEM_ENABLE": "lets NCCL allocate with cuMem again",
    "NCCL_NET_GDR_LEVEL": "lets NCCL decide again when network devices read GPU memory directly",
    "NCCL_MAX_NCHANNELS": "lets NCCL use as many channels as it finds",
    "NCCL_MAX_CTAS": "lets NCCL use as many thread blocks as it finds",
}


Applies = Callable[[Situation], bool]


class Alternative(Struct, frozen=True):
    """A change that may help where something is broken, and where it is only slow."""

    change: EnvironmentChange
    broken: Applies
    slow: Applies = lambda situation: False


def _nccl(situation: Situation) -> bool:
    return situation.backend == "nccl"


def _inside(situation: Situation) -> bool:
    """Several GPUs share a host."""
    return _nccl(situation) and situation.world > situation.nodes


def _direct(situation: Situation) -> bool:
    return _inside(situation) and situation.takes("P2P")


def _network(situation: Situation) -> bool:
    """The network carries data, or the start, which goes over it even on one host, failed."""
    over_it = situation.nodes > 1 or "start" in situation.failed
    return _nccl(situation) and over_it and not situation.inside_only


def _connected(situation: Situation) -> bool:
    """Ranks had met before it failed."""
    return _nccl(situation) and ("start" not in situation.failed or situation.inside_only)


def infiniband(situation: Situation) -> bool:
    return _network(situation) and bool(situation.hcas)


def _plugin(situation: Situation) -> bool:
    return _network(situation) or (_nccl(situation) and situation.takes("NET"))


def _held_in(transport: str) -> Applies:
    return lambda situation: _inside(situation) and any(one.startswith(transport) for one in situation.transports)


WITHOUT_P2P = {"NCCL_P2P_DISABLE": "1"}
# From what costs least to what costs most, each tried alone.
ALTERNATIVES: tuple[Alternative, ...] = (
    Alternative(
        EnvironmentChange(
            {"NCCL_CUMEM_ENABLE": "0"},
            does="allocates buffers with cudaMalloc and shares them as CUDA IPC handles, instead of cuMem",
            costs="no NVLS (multicast through NVSwitch), no user-registered buffers; little else",
        ),
        broken=_inside,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_CUMEM_HOST_ENABLE": "0"},
            does="takes host buffers from /dev/shm instead of cuMem, which wants NUMA support of the container",
            costs="needs room in /dev/shm",
        ),
        broken=_inside,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_NVLS_ENABLE": "0"},
            does="does without multicast through NVSwitch",
            costs="up to a third of an all-reduce's bandwidth between 8 GPUs of an NVSwitch host",
        ),
        broken=_inside,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_P2P_LEVEL": "NVL"},
            does="sends directly over NVLink only, not over PCIe (where an IOMMU or ACS may stand in the way)",
            costs="pairs without NVLink go through shared memory",
        ),
        broken=_direct,
    ),
    Alternative(
        EnvironmentChange(
            WITHOUT_P2P,
            does="sends between GPUs of one host through shared memory, not directly",
            costs="most of NVLink's bandwidth: on 4 H200 a step of 18 ms took 34",
        ),
        broken=_direct,
        # Over PCIe through a host bridge or an IOMMU, direct sending can be slower than shared memory.
        slow=_held_in("P2P"),
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_PROTO": "Simple"},
            does="uses the plain protocol for all sizes, not LL or LL128, which rely on the order of 8 and 128 bytes",
            costs="time of small messages (a few times as slow); nothing for large ones",
        ),
        broken=_connected,
        slow=_nccl,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_ALGO": "Ring"},
            does="uses rings for all sizes, no trees and no NVLS",
            costs="time of small messages with many ranks",
        ),
        broken=_connected,
        slow=_nccl,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_P2P_LEVEL": "SYS"},
            does="sends directly between all GPUs of a host, also across NUMA nodes",
            costs="nothing where it is faster; on some hosts direct sending across NUMA nodes is slow or hangs",
        ),
        broken=lambda situation: False,
        slow=_held_in("SHM"),
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_NET_PLUGIN": "none"},
            does="leaves out network plugins (aws-ofi-nccl, SHARP), NCCL's own InfiniBand and sockets remain",
            costs="the plugin's network: on EFA all traffic between hosts goes over TCP",
        ),
        broken=_plugin,
        slow=lambda situation: situation.nodes > 1 and _nccl(situation),
    ),
    *(
        Alternative(
            EnvironmentChange(
                {"NCCL_IB_GID_INDEX": str(index)},
                does=f"addresses RoCE ports by entry {index} of their GID table (3 is RoCE v2 with IPv4 on most hosts)",
                costs="nothing if it is the right one; it is a matter of the fabric",
            ),
            broken=infiniband,
        )
        for index in (3, 1)
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_NET_GDR_LEVEL": "LOC"},
            does="has network devices copy through host memory, not read GPU memory directly (GPUDirect RDMA)",
            costs="bandwidth between hosts, often half",
        ),
        broken=infiniband,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_IB_DISABLE": "1"},
            does="sends between hosts over TCP, not InfiniBand or RoCE",
            costs="nearly all bandwidth between hosts; nothing on one host",
        ),
        broken=infiniband,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
            does="uses 16 TCP connections for each pair of hosts, not one",
            costs="CPU time",
        ),
        broken=lambda situation: False,
        slow=lambda situation: _network(situation) and situation.takes("NET/Socket"),
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_SHM_DISABLE": "1"},
            does="sends through the network what would go through shared memory (/dev/shm too small, or not shared)",
            costs="bandwidth between GPUs that cannot send directly; nothing where all can",
        ),
        broken=_inside,
    ),
)
# Tried where no single one works.
PAIRS: tuple[Alternative, ...] = (
    Alternative(
        EnvironmentChange(
            {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
            does="sends everything through the network, also inside a host",
            costs="nearly all bandwidth: on 4 H200 a step of 18 ms took 168",
        ),
        broken=_inside,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"},
            does="sends through buffers in /dev/shm, neither directly nor through cuMem",
            costs="most of NVLink's bandwidth",
        ),
        broken=_inside,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"},
            does="does without cuMem and without multicast through NVSwitch",
            costs="up to a third of an all-reduce's bandwidth between 8 GPUs of an NVSwitch host",
        ),
        broken=_inside,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_NET_PLUGIN": "none", "NCCL_IB_DISABLE": "1"},
            does="leaves TCP as the only network",
            costs="nearly all bandwidth between hosts; nothing on one host",
        ),
        broken=_plugin,
    ),
    Alternative(
        EnvironmentChange(
            {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"},
            does="uses neither direct sending inside a host nor InfiniBand between hosts",
            costs="most bandwidth of both",
        ),
        broken=lambda situation: _inside(situation) and infiniband(situation),
    ),
)
