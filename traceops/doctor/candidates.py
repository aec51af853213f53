"""What the doctor may try when something fails or is slow: what it knows of the nodes, and which changes may help."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import psutil
from msgspec import Struct, field

from traceops.capture.environment import environment_that_matters
from traceops.doctor.model import EnvironmentChange
from traceops.fabric.model import Machine
from traceops.machine.look import HostContext
from traceops.machine.network import Port, Rdma
from traceops.machine.variables import known_variables
from traceops.rules.machine.variable_clashes import costs


class Situation(Struct, frozen=True):
    """What is known when alternatives are chosen.

    environ: variables of all nodes, those of node 0 before the others'. world: ranks of all nodes. interfaces: network
    interfaces that are up, without loopback. hcas: InfiniBand and RoCE devices. transports: ways NCCL took
    (``P2P/CUMEM``, ``SHM``, ``NET/Socket``). failed: stages that did not come out right. slow: far below what the link
    gives. costly: variables of the environment that cost speed. hung: whether a stage that failed did so by hanging.
    """

    backend: str
    world: int
    nodes: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    transports: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    slow: bool = False
    costly: tuple[str, ...] = ()
    hung: bool = False

    @property
    def broken(self) -> bool:
        return bool(self.failed)

    @property
    def inside_only(self) -> bool:
        """Whether ranks of one node had met, and connected without a network, before it failed."""
        return self.nodes == 1 and bool(self.transports) and not self.takes("NET")

    def takes(self, transport: str) -> bool:
        """Whether NCCL went this way; where it never came to that, it may have."""
        return not self.transports or any(one.startswith(transport) for one in self.transports)


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


# Left alone whoever set them: they only tell, or (multicast through NVSwitch) hang hosts where they are switched on.
_LEFT_ALONE = ("NCCL_NVLS_ENABLE", "NCCL_CONF_FILE", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT")
# Images set names such as NCCL_VERSION that nobody reads: of these only the known ones count.
_READ_BY = {"nccl": ("NCCL_", "OFI_NCCL_", "FI_", "UCX_"), "gloo": ("GLOO_",)}
_OF_THE_NETWORK = (
    "NCCL_IB_", "NCCL_NET", "NCCL_SOCKET_", "NCCL_NSOCKS_", "NCCL_OOB_", "NCCL_CROSS_NIC", "OFI_NCCL_", "FI_", "UCX_",
)  # fmt: skip
_ONLY_TELL = ("NCCL_DEBUG", "NCCL_TOPO_DUMP", "NCCL_GRAPH_DUMP", "NCCL_DESYNC", "NCCL_TRACE", "NCCL_RAS")


def suspicious(situation: Situation) -> tuple[str, ...]:
    """Variables of the environment that the library reads and that may be at fault, the likeliest first.

    Where something is broken that is the interface; where all works, what is known to cost speed.
    """
    prefixes = _READ_BY.get(situation.backend, ())
    named = [
        name
        for name in sorted(situation.environ)
        if name.startswith(prefixes)
        and name in known_variables().variables
        and not is_left_alone(name)
        and not (situation.inside_only and situation.broken and name.startswith(_OF_THE_NETWORK))
    ]
    sockets_first = sorted(named, key=lambda name: (not name.endswith("SOCKET_IFNAME"), name))
    costly = [name for name in situation.costly if name in named]
    return tuple(dict.fromkeys(sockets_first + costly if situation.broken else costly + sockets_first))


def words(change: EnvironmentChange) -> str:
    """The change as the user would say it: ``NCCL_PROTO=Simple, without NCCL_NET``."""
    return ", ".join(
        [*(f"{name}={value}" for name, value in change.set.items()), *(f"without {n}" for n in change.unset)]
    )


def removal(names: tuple[str, ...], environ: Mapping[str, str]) -> EnvironmentChange:
    """The change that removes variables of the environment."""
    does = [
        WHAT_IT_HOLDS.get(name, f"leaves to the library what {name}={environ.get(name, '')} fixes") for name in names
    ]
    return EnvironmentChange(unset=names, does="; ".join(does), costs="nothing, unless somebody set it for a reason")


def changes(situation: Situation) -> Iterator[EnvironmentChange]:
    """Single changes to try, the smallest and cheapest first, for what is broken or slow; none twice."""
    removed = suspicious(situation) if situation.broken or situation.slow else situation.costly
    yield from (removal((name,), situation.environ) for name in removed if not is_left_alone(name))
    listed = (one.change for one in ALTERNATIVES if _may_help(one, situation))
    for change in chain(_interfaces(situation), _hcas(situation), listed):
        if _is_new(change, situation):
            yield change


def pairs(situation: Situation) -> Iterator[EnvironmentChange]:
    """Changes of two variables, for when no single one works."""
    for one in PAIRS:
        if _may_help(one, situation) and _is_new(one.change, situation):
            yield one.change


def _may_help(one: Alternative, situation: Situation) -> bool:
    return (situation.broken and one.broken(situation)) or (situation.slow and one.slow(situation))


def _is_new(change: EnvironmentChange, situation: Situation) -> bool:
    """Not what the environment says already, and never against a multicast that somebody chose."""
    if "NCCL_NVLS_ENABLE" in change.set and "NCCL_NVLS_ENABLE" in situation.environ:
        return len(change.set) > 1 and situation.environ["NCCL_NVLS_ENABLE"] != "0"
    return any(situation.environ.get(name) != value for name, value in change.set.items())


def _interfaces(situation: Situation) -> Iterator[EnvironmentChange]:
    """Another network interface: NCCL and gloo meet over one even on a single host."""
    not_met = "start" in situation.failed and not situation.inside_only
    over_it = not_met or (situation.nodes > 1 and (situation.broken or situation.slow))
    if situation.backend == "gloo":
        over_it = situation.broken or (situation.slow and situation.nodes > 1)
    if not over_it:
        return
    name = "GLOO_SOCKET_IFNAME" if situation.backend == "gloo" else "NCCL_SOCKET_IFNAME"
    exactly = "" if situation.backend == "gloo" else "="  # NCCL takes a bare name as a beginning of names
    for interface in situation.interfaces:
        yield EnvironmentChange(
            {name: exactly + interface},
            does=f"uses the network interface {interface}",
            costs="nothing if all hosts reach each other over it",
        )
    if situation.nodes == 1:
        yield EnvironmentChange({name: "lo"}, does="uses the loopback interface", costs="works inside one host only")


def _hcas(situation: Situation) -> Iterator[EnvironmentChange]:
    """Another InfiniBand or RoCE device, where there are several."""
    if len(situation.hcas) > 1 and situation.nodes > 1 and infiniband(situation):
        for hca in situation.hcas:
            yield EnvironmentChange(
                {"NCCL_IB_HCA": f"={hca}"},
                does=f"uses the network device {hca} only",
                costs="the bandwidth of the other devices",
            )


def is_left_alone(name: str) -> bool:
    """Whether a variable is never removed, whoever set it."""
    return name in _LEFT_ALONE or name.startswith(_ONLY_TELL)


_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Made by containers and virtual machines: other hosts cannot be reached over them.
_INSIDE_ONLY = re.compile(
    r"lo\d*\Z|docker|br-|veth|virbr|cni|flannel|cali|tunl|kube|dummy|ifb|tailscale|podman|lxc|vnet"
)


class NodeContext(Struct, frozen=True):
    """One node. gpus: those a job sees, as nvidia-smi counts, in the order in which CUDA counts them."""

    host: str
    environ: dict[str, str] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    interfaces: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()


def node_context_of(machine: Machine, environ: Mapping[str, str]) -> NodeContext:
    """What tests on this machine have to know."""
    hcas = [nic.name for nic in machine.nics if nic.kind in ("IB", "RoCE") and nic.up is not False and nic.name]
    return NodeContext(
        machine.host or "",
        environment_that_matters(environ),
        visible_gpus(machine, environ),
        interfaces_up(),
        tuple(hcas),
    )


def costly_variables(environ: Mapping[str, str], machine: Machine, backend: str, devices: int) -> tuple[str, ...]:
    """Variables of NCCL that cost bandwidth by what is known of them, those that cost most first."""
    if backend != "nccl":
        return ()
    found = costs(environ, HostContext(rdma=_rdma(machine), gpus=devices), "")
    measurable = [look for look in found if look.what.startswith("NCCL_") and not is_left_alone(look.what)]
    return tuple(dict.fromkeys(look.what for look in sorted(measurable, key=lambda look: look.level != "warning")))


def _rdma(machine: Machine) -> tuple[Rdma, ...]:
    layers = {"IB": "InfiniBand", "RoCE": "Ethernet", "EFA": None}
    return tuple(
        Rdma(nic.name or nic.label, (Port(1, "ACTIVE", layer=layers[nic.kind]),), driver=nic.kind.lower())
        for nic in machine.nics
        if nic.kind in layers
    )


def visible_gpus(machine: Machine, environ: Mapping[str, str]) -> tuple[int, ...]:
    """GPUs that CUDA shows with this CUDA_VISIBLE_DEVICES, in its order; like CUDA it ends at one that is none.

    MIG instances are no GPUs of their own to nvidia-smi: each counts as number of its place.
    """
    every = [gpu.index for gpu in machine.gpus]
    named = environ.get(_VISIBLE)
    if named is None:
        return tuple(every)
    seen: list[int] = []
    for place, text in enumerate(part.strip() for part in named.split(",")):
        if text.startswith("MIG-"):
            seen.append(place)
            continue
        found = [int(text)] if text.isdecimal() else _by_uuid(text, machine)
        if len(found) != 1 or found[0] not in every or found[0] in seen:
            break
        seen += found
    return tuple(seen)


def hidden_but(kept: Sequence[int], environ: Mapping[str, str], seen: Sequence[int]) -> str:
    """A CUDA_VISIBLE_DEVICES that shows only `kept` of the GPUs in `seen`, in the words of the one that is set."""
    words = [part.strip() for part in environ.get(_VISIBLE, "").split(",")]
    named = words if len(words) == len(seen) and words != [""] else [str(gpu) for gpu in seen]
    return ",".join(word for word, gpu in zip(named, seen, strict=True) if gpu in kept)


def _by_uuid(text: str, machine: Machine) -> list[int]:
    return [gpu.index for gpu in machine.gpus if text and gpu.uuid and gpu.uuid.startswith(text)]


def interfaces_up() -> tuple[str, ...]:
    """Network interfaces that are up and have an address, by name, without those that lead nowhere else."""
    addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    return tuple(
        name
        for name in sorted(states)
        if states[name].isup
        and not _INSIDE_ONLY.match(name)
        and any(_leads_out(address) for address in addresses.get(name, []))
    )


def _leads_out(address: Any) -> bool:
    """An IP address that is good for more than one link."""
    ip = address.family in (socket.AF_INET, socket.AF_INET6)
    return ip and not str(address.address).lower().startswith("fe80:")
