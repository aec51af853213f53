"""What tests need to know of a node: the GPUs that a job would see, network interfaces, and variables."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
from msgspec import Struct, field

from traceops.capture.environment import environment_that_matters
from traceops.doctor.candidates import is_left_alone
from traceops.fabric.model import Machine
from traceops.machine.look import HostContext
from traceops.machine.network import Port, Rdma
from traceops.rules.machine.variable_clashes import costs

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
