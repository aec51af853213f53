"""TO-D201 to TO-D207: interfaces, bonds, RDMA devices, GPUDirect RDMA and EFA."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from traceops.core.rule import JudgedBy, described
from traceops.fabric.model import Pcie
from traceops.machine.look import Level, Look
from traceops.machine.network import Interface, Plugin, Port, Rdma, taken_by_nccl, v2_index
from traceops.machine.platform import PlatformFacts
from traceops.rules.machine.limits import BOUNDS, looked

INTERFACES = described("machine", "TO-D201", JudgedBy.DOCTOR)
BOND = described("machine", "TO-D202", JudgedBy.DOCTOR)
RULES = (INTERFACES, BOND)
_BRIDGES = re.compile(
    r"(docker|br-|virbr|veth|cni|flannel|cali|cilium|podman|lxc|lxd|kube|tap|tun|wg|tailscale|zt|dummy|nerdctl)"
)


def judge_interfaces(interfaces: Sequence[Interface], rdma: bool, host: str) -> tuple[Look, ...]:
    """Which interfaces there are, whether NCCL's own choice is a good one, and bonds with a port down. rdma: whether an
    RDMA port is up: then sockets carry first contact only."""
    if not interfaces:
        return (looked(host, "interfaces", "unknown"),)
    looks = [_choice(interfaces, rdma, host)]
    for bond in (interface for interface in interfaces if interface.ports_down):
        numbers = {"ports": list(bond.ports), "down": list(bond.ports_down)}
        ports, up = len(bond.ports), len(bond.ports) - len(bond.ports_down)
        looks.append(
            looked(
                host, "interfaces", "bond", numbers,
                bond=bond.name, down=bond.ports_down, up=up, ports=ports, dead=not up,
            )
        )  # fmt: skip
    return tuple(looks)


def _choice(interfaces: Sequence[Interface], rdma: bool, host: str) -> Look:
    taken = taken_by_nccl(interfaces)
    numbers = {
        "interfaces": [
            {"name": one.name, "up": one.up, "address": one.address, "mbits": one.mbits, "mtu": one.mtu,
             "physical": one.physical, "default_route": one.default, "ports": list(one.ports)}
            for one in interfaces
        ],
        "nccl": [one.name for one in taken],
    }  # fmt: skip
    look = partial(looked, host, "interfaces", numbers=numbers, taken=[_words(one) for one in taken])
    if not taken:
        return look("none")
    first, default, faster = taken[0], *_better(interfaces)
    inside = [one for one in taken if one is not default and not one.physical and _BRIDGES.match(one.name)]
    if default is not None and first in inside:
        return look("stays_inside", first=first.name, right=default.name)
    if default is not None and inside:
        return look("also_virtual", virtual=[one.name for one in inside], right=default.name)
    if not rdma and faster and first.mbits and (faster.mbits or 0) >= BOUNDS.interface * first.mbits:
        return look("faster", right=faster.name, speed=_speed(faster))
    return look("fine")


def _better(interfaces: Sequence[Interface]) -> tuple[Interface | None, Interface | None]:
    """The interface of the default route, and the fastest one."""
    usable = [one for one in interfaces if one.usable]
    default = next((one for one in usable if one.default), None)
    return default, max((one for one in usable if one.mbits), key=lambda one: one.mbits or 0, default=None)


def _words(interface: Interface) -> str:
    parts = [part for part in (_speed(interface), f"mtu {interface.mtu}" if interface.mtu else "") if part]
    return f"{interface.name} ({', '.join(parts)})" if parts else interface.name


def _speed(interface: Interface) -> str:
    return f"{interface.mbits / 1000:g} Gbit/s" if interface.mbits else ""


# TO-D203 to TO-D205: RDMA ports, access to them, and their addresses.

RDMA_PORTS = described("machine", "TO-D203", JudgedBy.DOCTOR)
RDMA_ACCESS = described("machine", "TO-D204", JudgedBy.DOCTOR)
ROCE_ADDRESS = described("machine", "TO-D205", JudgedBy.DOCTOR)
RDMA_RULES = (RDMA_PORTS, RDMA_ACCESS, ROCE_ADDRESS)


def judge_rdma(devices: Sequence[Rdma], openable: bool, host: str) -> tuple[Look, ...]:
    """The devices, ports that are down or slower than their siblings', RoCE addresses, PCIe, and access to them.
    openable: what `can_open` says."""
    if not devices:
        return (looked(host, "rdma", "none"),)
    looks = [_all(devices, host), *_ports(devices, host), *_addresses(devices, host), *_narrow(devices, host)]
    return tuple(looks if openable else [*looks, looked(host, "rdma", "closed")])


def _all(devices: Sequence[Rdma], host: str) -> Look:
    active = [one for one in devices if one.active]
    numbers = {
        "devices": [
            {"name": one.name, "kind": one.family, "driver": one.driver, "numa": one.numa, "bus_id": one.bus_id,
             "ports": [{"port": port.number, "state": port.state, "gbits": port.gbits, "layer": port.layer,
                        "interface": port.interface} for port in one.ports]}
            for one in devices
        ]
    }  # fmt: skip
    shown = []
    for one in (active or devices)[:8]:
        gbits = max((port.gbits or 0 for port in one.ports if port.state == "ACTIVE"), default=0)
        rate = f" {gbits:g} Gbit/s" if gbits else ""
        shown.append(f"{one.name} {one.family}{rate}".strip())
    waiting = any(port.state == "INIT" for one in devices for port in one.ports)
    return looked(
        host, "rdma", "up" if active else "down", numbers,
        up=len(active), all=len(devices), devices=shown, waiting=waiting,
    )  # fmt: skip


def _ports(devices: Sequence[Rdma], host: str) -> list[Look]:
    """Ports that are down or slower beside siblings of the same model that are not. InfiniBand between GPUs has all of
    its cards in use; a card's second port, storage and management often are not."""
    siblings: dict[tuple[str | None, str | None], list[tuple[Rdma, Port]]] = defaultdict(list)
    for one in devices:
        for port in one.ports:
            siblings[(one.kind, port.layer)].append((one, port))
    in_use = {_card(one) for one in devices if one.active}
    return [
        look
        for (_, layer), ports in siblings.items()
        for look in _alike_ports(ports, in_use, host, infiniband=layer == "InfiniBand")
    ]


def _alike_ports(
    ports: Sequence[tuple[Rdma, Port]], in_use: set[str], host: str, *, infiniband: bool
) -> Iterator[Look]:
    """Of ports of one model, those that are down or slower. in_use: cards with a port that is up."""
    up = [(one, port) for one, port in ports if port.state == "ACTIVE"]
    down = [(one, port) for one, port in ports if port.state != "ACTIVE"]
    if up and down:
        level: Level | None = "warning" if infiniband and {_card(one) for one, _ in down} - in_use else None
        names = [f"{one.name}:{port.number}" for one, port in down]
        yield looked(host, "rdma", "ports_down", level=level, ports=names, up=len(up), first=down[0][0].name)
    best = max((port.gbits or 0 for _, port in up), default=0)
    slow = [f"{one.name} {port.gbits:g}" for one, port in up if port.gbits and port.gbits < best]
    if slow:
        yield looked(host, "rdma", "port_speed", level="warning" if infiniband else None, ports=slow, best=best)


def _card(one: Rdma) -> str:
    """The card a device is part of: its ports are functions of one PCI device."""
    return (one.bus_id or one.name).rpartition(".")[0] or one.name


def _addresses(devices: Sequence[Rdma], host: str) -> list[Look]:
    ports = [
        (f"{one.name}:{port.number}", port)
        for one in devices
        for port in one.ports
        if port.layer == "Ethernet" and port.state == "ACTIVE" and one.driver != "efa"
    ]
    if not ports:
        return []
    without = [name for name, port in ports if v2_index(port) is None]
    found = [f"{name} index {v2_index(port)}" for name, port in ports if v2_index(port) is not None]
    numbers = {"gids": {name: [list(gid) for gid in port.gids] for name, port in ports}}
    if without:
        level: Level | None = None if found else "warning"
        return [looked(host, "rdma", "no_address", numbers, level=level, ports=without)]
    return [looked(host, "rdma", "addresses", numbers, ports=found)]


def _narrow(devices: Sequence[Rdma], host: str) -> list[Look]:
    """NICs with fewer PCIe lanes or a lower generation than siblings of the same model."""
    siblings: dict[str | None, list[Rdma]] = defaultdict(list)
    for one in devices:
        if one.pcie is not None:
            siblings[one.kind].append(one)
    looks = []
    for group in siblings.values():
        best = tuple(max(_lanes(one)[part] for one in group) for part in (0, 1))
        low = [one for one in group if any(0 < mine < most for mine, most in zip(_lanes(one), best, strict=True))]
        if low:
            shown = [f"{one.name} gen {_lanes(one)[0]} x{_lanes(one)[1]}" for one in low]
            bus_id = low[0].bus_id or "BUS"
            looks.append(
                looked(host, "gpu_link", "nics", links=shown, generation=best[0], width=best[1], bus_id=bus_id)
            )
    return looks


def _lanes(one: Rdma) -> tuple[int, int]:
    link_ = one.pcie or Pcie()
    return link_.generation or 0, link_.width or 0


# TO-D207: whether network cards reach the memory of GPUs (GPUDirect RDMA), on a machine and by NCCL's log.

GPUDIRECT = described("machine", "TO-D207", JudgedBy.DOCTOR)
GPUDIRECT_RULES = (GPUDIRECT,)
_OF_IB = ("IB", "SPCX")  # NCCL's own network of that kind, and NVIDIA's plugins
# NVIDIA, DGX Spark Porting Guide, "GPUDirect RDMA": neither nvidia-peermem nor dma-buf works there.
_SHARES_MEMORY = "GB10"
_HAS_NONE = "GeForce"  # CUDA's GPUDirect RDMA guide: available on Tesla and Quadro


def judge_gdr(platform: PlatformFacts, rdma: bool, efa: bool, gpus: Sequence[str], host: str) -> Look:
    """Whether NICs can reach the memory of these GPUs, by their names."""
    if not rdma or not gpus:
        return looked(host, "gpudirect", "no_gpu" if rdma else "no_rdma")
    if (key := _by_model(gpus)) is None:
        key = "peermem" if platform.peermem else "dmabuf" if platform.dmabuf or efa else "neither"
    return looked(host, "gpudirect", key)


def judge_gdr_logged(plugin: str, logged: Mapping[str, bool], gpus: Sequence[str], host: str) -> Look | None:
    """What NCCL logs of its network's devices, by name; None of another network, or where it logs nothing."""
    if not logged or not plugin.startswith(_OF_IB):
        return None
    if not (off := [name for name, on in logged.items() if not on]):
        return looked(host, "gpudirect", "logged_on", devices=_listed(list(logged)))
    return looked(host, "gpudirect", _by_model(gpus) or "logged_off", devices=_listed(off))


def _by_model(gpus: Sequence[str]) -> str | None:
    """Why GPUs of these models never have it."""
    if gpus and all(_SHARES_MEMORY in name for name in gpus):
        return "shared_memory"
    return "by_model" if gpus and all(_HAS_NONE in name for name in gpus) else None


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# TO-D206: whether NCCL can use EFA.

EFA = described("machine", "TO-D206", JudgedBy.DOCTOR)
EFA_RULES = (EFA,)


def judge_efa(devices: Sequence[Rdma], plugin: Plugin, gpus: int, host: str) -> tuple[Look, ...]:
    """One Look where there are EFA devices and GPUs."""
    if not gpus or not any(one.family == "EFA" for one in devices):
        return ()
    key = "found" if plugin.loadable else "missing"
    if not plugin.loadable and plugin.turned_off:
        key = "turned_off"
    elif not plugin.loadable and plugin.installed:
        key = "not_loaded"
    return (looked(host, "efa", key, folder=plugin.installed, settings=" ".join(plugin.settings)),)
