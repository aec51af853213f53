"""What the doctor may try when something fails or is slow: what it knows of the nodes, and which changes may help."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
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
from traceops.words.catalogue import texts


class Situation(Struct, frozen=True):
    """What is known when alternatives are chosen.

    environ: variables of all nodes, those of node 0 before the others'. world: ranks of all nodes. interfaces: network
    interfaces that are up, without loopback. hcas: InfiniBand and RoCE devices. transports: ways NCCL took
    (``P2P/CUMEM``, ``SHM``, ``NET/Socket``). failed: stages that did not come out right. slow: far below what the link
    gives. costly: variables of the environment that cost speed. hung: whether a stage that failed did so by hanging."""

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

    @property
    def conditions(self) -> Mapping[str, bool]:
        """What alternatives ask for, by name."""
        nccl, started = self.backend == "nccl", "start" not in self.failed
        inside = nccl and self.world > self.nodes  # several GPUs share a host
        # The network carries data, or the start, which goes over it even on one host, failed.
        network = nccl and (self.nodes > 1 or not started) and not self.inside_only
        used = {kind: any(one.startswith(kind) for one in self.transports) for kind in ("P2P", "SHM")}
        return {
            "never": False,
            "nccl": nccl,
            "connected": nccl and (started or self.inside_only),  # ranks had met before it failed
            "inside": inside,
            "direct": inside and self.takes("P2P"),
            "uses_p2p": inside and used["P2P"],
            "uses_shm": inside and used["SHM"],
            "nodes": nccl and self.nodes > 1,
            "plugin": network or (nccl and self.takes("NET")),
            "infiniband": network and bool(self.hcas),
            "inside_infiniband": inside and network and bool(self.hcas),
            "sockets": network and self.takes("NET/Socket"),
        }


class Alternative(Struct, frozen=True):
    """A change of words/doctor.ini that may help, and the conditions for it where something is broken or only slow."""

    key: str
    broken: str
    slow: str = "never"

    @property
    def change(self) -> EnvironmentChange:
        return change_of(self.key, dict(one.split("=") for one in _WORDS[f"{self.key}.set"].split()))

    def may_help(self, situation: Situation) -> bool:
        """Whether it applies, and changes what the environment says already."""
        holds = situation.conditions
        applies = (situation.broken and holds[self.broken]) or (situation.slow and holds[self.slow])
        return applies and _is_new(self.change, situation)


_WORDS = texts("doctor", "alternatives")


def change_of(key: str, variables: dict[str, str], **facts: object) -> EnvironmentChange:
    """Variables to set, with what words/doctor.ini says that it does and costs."""
    does, costs = _WORDS[key], _WORDS.get(f"{key}.costs", "")
    return EnvironmentChange(variables, does=does.format_map(facts), costs=costs.format_map(facts))


# Over PCIe through a host bridge or an IOMMU, direct sending can be slower than shared memory.
WITHOUT_P2P = Alternative("p2p_off", "direct", slow="uses_p2p")
# From what costs least to what costs most, each tried alone.
ALTERNATIVES = (
    Alternative("cumem_off", "inside"),
    Alternative("cumem_host_off", "inside"),
    Alternative("nvls_off", "inside"),
    Alternative("p2p_nvlink", "direct"),
    WITHOUT_P2P,
    Alternative("simple", "connected", slow="nccl"),
    Alternative("ring", "connected", slow="nccl"),
    Alternative("p2p_everywhere", "never", slow="uses_shm"),
    Alternative("no_plugin", "plugin", slow="nodes"),
    Alternative("gid_3", "infiniband"),
    Alternative("gid_1", "infiniband"),
    Alternative("gdr_off", "infiniband"),
    Alternative("ib_off", "infiniband"),
    Alternative("more_sockets", "never", slow="sockets"),
    Alternative("shm_off", "inside"),
)
# Tried where no single one works.
PAIRS = (
    Alternative("p2p_shm_off", "inside"),
    Alternative("p2p_cumem_off", "inside"),
    Alternative("cumem_nvls_off", "inside"),
    Alternative("tcp_only", "plugin"),
    Alternative("p2p_ib_off", "inside_infiniband"),
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
    """Variables of the environment that the library reads and that may be at fault, the likeliest first. Where
    something is broken that is the interface; where all works, what is known to cost speed."""
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
    return ", ".join([*map("=".join, change.set.items()), *(f"without {name}" for name in change.unset)])


def removal(names: tuple[str, ...], environ: Mapping[str, str]) -> EnvironmentChange:
    """The change that removes variables of the environment."""
    holds = texts("doctor", "removals")
    does = [holds.get(name, holds["other"]).format(name=name, value=environ.get(name, "")) for name in names]
    return EnvironmentChange(unset=names, does="; ".join(does), costs=_WORDS["removal.costs"])


def changes(situation: Situation) -> Iterator[EnvironmentChange]:
    """Single changes to try, the smallest and cheapest first, for what is broken or slow; none twice."""
    removed = suspicious(situation) if situation.broken or situation.slow else situation.costly
    yield from (removal((name,), situation.environ) for name in removed if not is_left_alone(name))
    named = list(_interfaces(situation))
    if len(situation.hcas) > 1 and situation.nodes > 1 and situation.conditions["infiniband"]:
        named += [change_of("hca", {"NCCL_IB_HCA": f"={hca}"}, hca=hca) for hca in situation.hcas]
    other = (change for change in named if _is_new(change, situation))
    yield from chain(other, (one.change for one in ALTERNATIVES if one.may_help(situation)))


def pairs(situation: Situation) -> Iterator[EnvironmentChange]:
    """Changes of two variables, for when no single one works."""
    yield from (one.change for one in PAIRS if one.may_help(situation))


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
        yield change_of("interface", {name: exactly + interface}, interface=interface)
    if situation.nodes == 1:
        yield change_of("loopback", {name: "lo"})


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
    # Network interfaces that are up and have an address, by name, without those that lead nowhere else
    addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    named = [name for name in sorted(states) if states[name].isup and not _INSIDE_ONLY.match(name)]
    return NodeContext(
        machine.host or "", environment_that_matters(environ), visible_gpus(machine, environ),
        tuple(name for name in named if any(map(_leads_out, addresses.get(name, [])))), tuple(hcas),
    )  # fmt: skip


def costly_variables(environ: Mapping[str, str], machine: Machine, backend: str, devices: int) -> tuple[str, ...]:
    """Variables of NCCL that cost bandwidth by what is known of them, those that cost most first."""
    if backend != "nccl":
        return ()
    layers = {"IB": "InfiniBand", "RoCE": "Ethernet", "EFA": None}
    rdma = tuple(
        Rdma(nic.name or nic.label, (Port(1, "ACTIVE", layer=layers[nic.kind]),), driver=nic.kind.lower())
        for nic in machine.nics
        if nic.kind in layers
    )
    found = costs(environ, HostContext(rdma=rdma, gpus=devices), "")
    measurable = [look for look in found if look.what.startswith("NCCL_") and not is_left_alone(look.what)]
    return tuple(dict.fromkeys(look.what for look in sorted(measurable, key=lambda look: look.level != "warning")))


def visible_gpus(machine: Machine, environ: Mapping[str, str]) -> tuple[int, ...]:
    """GPUs that CUDA shows with this CUDA_VISIBLE_DEVICES, in its order; like CUDA it ends at one that is none. MIG
    instances are no GPUs of their own to nvidia-smi: each counts as number of its place."""
    every = [gpu.index for gpu in machine.gpus]
    if (named := environ.get(_VISIBLE)) is None:
        return tuple(every)
    seen: list[int] = []
    for place, text in enumerate(part.strip() for part in named.split(",")):
        if text.startswith("MIG-"):
            seen.append(place)
            continue
        by_uuid = [gpu.index for gpu in machine.gpus if text and gpu.uuid and gpu.uuid.startswith(text)]
        found = [int(text)] if text.isdecimal() else by_uuid
        if len(found) != 1 or found[0] not in every or found[0] in seen:
            break
        seen += found
    return tuple(seen)


def hidden_but(kept: Sequence[int], environ: Mapping[str, str], seen: Sequence[int]) -> str:
    """A CUDA_VISIBLE_DEVICES that shows only `kept` of the GPUs in `seen`, in the words of the one that is set."""
    words = [part.strip() for part in environ.get(_VISIBLE, "").split(",")]
    named = words if len(words) == len(seen) and words != [""] else [str(gpu) for gpu in seen]
    return ",".join(word for word, gpu in zip(named, seen, strict=True) if gpu in kept)


def _leads_out(address: Any) -> bool:
    """An IP address that is good for more than one link."""
    ip = address.family in (socket.AF_INET, socket.AF_INET6)
    return ip and not str(address.address).lower().startswith("fe80:")
