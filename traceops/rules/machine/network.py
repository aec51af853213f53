"""TO-D201 and TO-D202: the network interfaces that NCCL would take, and bonds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from traceops.core.rule import JudgedBy, described
from traceops.fabric.model import Pcie
from traceops.machine.look import Look
from traceops.machine.network import Interface, Plugin, Port, Rdma, taken_by_nccl, v2_index
from traceops.machine.platform import PlatformFacts
from traceops.rules.machine.links import PCIE_LINK

INTERFACES = described("machine", "TO-D201", JudgedBy.DOCTOR)
BOND = described("machine", "TO-D202", JudgedBy.DOCTOR)
RULES = (INTERFACES, BOND)
_BRIDGES = re.compile(
    r"(docker|br-|virbr|veth|cni|flannel|cali|cilium|podman|lxc|lxd|kube|tap|tun|wg|tailscale|zt|dummy|nerdctl)"
)
_FAR_SLOWER = 4.0


def judge_interfaces(interfaces: Sequence[Interface], rdma: bool, host: str) -> tuple[Look, ...]:
    """Which interfaces there are, whether NCCL's own choice is a good one, and bonds with a port down.

    rdma: whether an RDMA port is up: then sockets carry first contact only.
    """
    if not interfaces:
        return (
            Look(
                host,
                "network",
                "interfaces",
                "not known",
                "not_evaluated",
                "this system has no /sys/class/net",
                rule=INTERFACES.id,
            ),
        )
    looks = [_choice(interfaces, rdma, host)]
    for bond in (interface for interface in interfaces if interface.ports_down):
        down = ", ".join(bond.ports_down)
        looks.append(
            Look(
                host, "network", f"bond {bond.name}", f"{down} down", "warning",
                _carried(len(bond.ports) - len(bond.ports_down), len(bond.ports)),
                f"check the cable and switch port of {down}: cat /proc/net/bonding/{bond.name}",
                {"ports": list(bond.ports), "down": list(bond.ports_down)}, rule=BOND.id,
            )
        )  # fmt: skip
    return tuple(looks)


def _choice(interfaces: Sequence[Interface], rdma: bool, host: str) -> Look:
    taken = taken_by_nccl(interfaces)
    facts = {
        "interfaces": [
            {"name": one.name, "up": one.up, "address": one.address, "mbits": one.mbits, "mtu": one.mtu,
             "physical": one.physical, "default_route": one.default, "ports": list(one.ports)}
            for one in interfaces
        ],
        "nccl": [one.name for one in taken],
    }  # fmt: skip
    what = "interfaces"
    if not taken:
        return Look(
            host, "network", what, "none is up with an address", "error", "NCCL cannot even make first contact",
            "bring up an interface, at least the loopback: ip link set lo up", facts, rule=INTERFACES.id,
        )  # fmt: skip
    found = ", ".join(_words(one) for one in taken)
    default = next((one for one in interfaces if one.default and one.usable), None)
    first = taken[0]
    if default is not None and first is not default and _BRIDGES.match(first.name) and not first.physical:
        return Look(
            host, "network", what, found, "warning",
            f"NCCL would begin with {first.name}, which does not leave this host; the default route is {default.name}",
            f"export NCCL_SOCKET_IFNAME=={default.name} GLOO_SOCKET_IFNAME={default.name}", facts,
            rule=INTERFACES.id,
        )  # fmt: skip
    virtual = [one.name for one in taken if one is not default and not one.physical and _BRIDGES.match(one.name)]
    if virtual and default is not None:
        return Look(
            host, "network", what, found, "note",
            f"NCCL would also use {', '.join(virtual)}, which other hosts may not reach",
            f"with several hosts: export NCCL_SOCKET_IFNAME=={default.name}", facts, rule=INTERFACES.id,
        )  # fmt: skip
    faster = max((one for one in interfaces if one.usable and one.mbits), key=lambda one: one.mbits or 0, default=None)
    if not rdma and faster and first.mbits and (faster.mbits or 0) >= _FAR_SLOWER * first.mbits:
        return Look(
            host, "network", what, found, "note", f"{faster.name} is faster: {_speed(faster)}",
            f"with several hosts: export NCCL_SOCKET_IFNAME=={faster.name} GLOO_SOCKET_IFNAME={faster.name}", facts,
            rule=INTERFACES.id,
        )  # fmt: skip
    return Look(host, "network", what, found, facts=facts, rule=INTERFACES.id)


def _carried(up: int, ports: int) -> str:
    """What a bond has left."""
    if not up:
        return f"none of its {ports} ports is up"
    return f"{up} of its {ports} ports {'carries' if up == 1 else 'carry'} all traffic"


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

    openable: what `can_open` says.
    """
    if not devices:
        return (
            Look(
                host,
                "network",
                "RDMA devices",
                "none",
                why="sockets are what carries data between hosts",
                rule=RDMA_PORTS.id,
            ),
        )
    looks = [_all(devices, host)]
    looks += _ports(devices, host)
    looks += _addresses(devices, host)
    looks += _narrow(devices, host)
    if not openable:
        looks.append(
            Look(
                host, "network", "/dev/infiniband", "no uverbs device", "warning",
                "RDMA devices are there but programs cannot open them: NCCL falls back to sockets between hosts",
                "in a container: docker run --device=/dev/infiniband --ulimit memlock=-1; else: modprobe ib_uverbs",
                rule=RDMA_ACCESS.id,
            )
        )  # fmt: skip
    return tuple(looks)


def _all(devices: Sequence[Rdma], host: str) -> Look:
    active = [one for one in devices if one.active]
    facts = {
        "devices": [
            {"name": one.name, "kind": one.family, "driver": one.driver, "numa": one.numa, "bus_id": one.bus_id,
             "ports": [{"port": port.number, "state": port.state, "gbits": port.gbits, "layer": port.layer,
                        "interface": port.interface} for port in one.ports]}
            for one in devices
        ]
    }  # fmt: skip
    shown = ", ".join(f"{one.name} {one.family} {_rate(one)}".strip() for one in (active or devices)[:8])
    found = f"{len(active)} of {len(devices)} up: {shown}"
    if active:
        return Look(host, "network", "RDMA devices", found, facts=facts, rule=RDMA_PORTS.id)
    waiting = any(port.state == "INIT" for one in devices for port in one.ports)
    return Look(
        host, "network", "RDMA devices", found, "warning", "no port is up: NCCL falls back to sockets between hosts",
        "the ports wait for a subnet manager: start opensm or ask who runs the InfiniBand switch" if waiting
        else "check cables and switch ports: ibstat, or rdma link", facts, rule=RDMA_PORTS.id,
    )  # fmt: skip


def _rate(one: Rdma) -> str:
    rates = [port.gbits for port in one.ports if port.gbits and port.state == "ACTIVE"]
    return f"{max(rates):g} Gbit/s" if rates else ""


def _ports(devices: Sequence[Rdma], host: str) -> list[Look]:
    """Ports that are down or slower beside siblings of the same model that are not.

    InfiniBand between GPUs has all of its cards in use; a card's second port, storage and management often are not.
    """
    siblings: dict[tuple[str | None, str | None], list[tuple[Rdma, Port]]] = defaultdict(list)
    for one in devices:
        for port in one.ports:
            siblings[(one.kind, port.layer)].append((one, port))
    in_use = {_card(one) for one in devices if one.active}
    looks = []
    for (_, layer), ports in siblings.items():
        up = [(one, port) for one, port in ports if port.state == "ACTIVE"]
        down = [(one, port) for one, port in ports if port.state != "ACTIVE"]
        if up and down:
            are = "port of the same model is" if len(up) == 1 else "ports of the same model are"
            unused = layer == "InfiniBand" and any(_card(one) not in in_use for one, _ in down)
            looks.append(
                Look(
                    host, "network", "ports down", ", ".join(f"{one.name}:{port.number}" for one, port in down),
                    "warning" if unused else "note", f"{len(up)} {are} up",
                    f"if they are meant to be used, check cable and switch port: ibstat {down[0][0].name}",
                    rule=RDMA_PORTS.id,
                )
            )  # fmt: skip
        best = max((port.gbits or 0 for _, port in up), default=0)
        slow = [f"{one.name} {port.gbits:g}" for one, port in up if port.gbits and port.gbits < best]
        if slow:
            looks.append(
                Look(
                    host, "network", "port speed", f"{', '.join(slow)} Gbit/s",
                    "warning" if layer == "InfiniBand" else "note",
                    f"ports of the same model run at {best:g} Gbit/s; the slowest one sets the pace of a ring",
                    "check cable and switch port: ibstat, mlxlink -d DEVICE", rule=RDMA_PORTS.id,
                )
            )  # fmt: skip
    return looks


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
    found = ", ".join(f"{name} index {v2_index(port)}" for name, port in ports if v2_index(port) is not None)
    facts = {"gids": {name: [list(gid) for gid in port.gids] for name, port in ports}}
    if without:
        return [
            Look(
                host, "network", "RoCE v2 address", f"none on {', '.join(without)}", "note" if found else "warning",
                "NCCL takes the first address there is, link-local or RoCE v1: it leads to no other subnet, and often "
                "to no other host",
                "give the interface behind it an IP address (then see show_gids), or leave the port out by NCCL_IB_HCA",
                facts, rule=ROCE_ADDRESS.id,
            )
        ]  # fmt: skip
    return [Look(host, "network", "RoCE v2 address", found, facts=facts, rule=ROCE_ADDRESS.id)]


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
            shown = ", ".join(f"{one.name} gen {_lanes(one)[0]} x{_lanes(one)[1]}" for one in low)
            looks.append(
                Look(
                    host, "PCIe", "NIC link", shown, "warning",
                    f"NICs of the same model have gen {best[0]} x{best[1]}",
                    "reseat the card, check the slot and riser: lspci -vv -s "
                    f"{low[0].bus_id or 'BUS'} | grep -i lnksta", rule=PCIE_LINK.id,
                )
            )  # fmt: skip
    return looks


def _lanes(one: Rdma) -> tuple[int, int]:
    link_ = one.pcie or Pcie()
    return link_.generation or 0, link_.width or 0


# TO-D207: whether network cards reach the memory of GPUs (GPUDirect RDMA), on a machine and by NCCL's log.


GPUDIRECT = described("machine", "TO-D207", JudgedBy.DOCTOR)
GPUDIRECT_RULES = (GPUDIRECT,)
_WHAT = "GPUDirect RDMA"
_OF_IB = ("IB", "SPCX")  # NCCL's own network of that kind, and NVIDIA's plugins
# NVIDIA, DGX Spark Porting Guide, "GPUDirect RDMA": neither nvidia-peermem nor dma-buf works there.
_SHARES_MEMORY = "GB10"
_HAS_NONE = "GeForce"  # CUDA's GPUDirect RDMA guide: available on Tesla and Quadro


def judge_gdr(platform: PlatformFacts, rdma: bool, efa: bool, gpus: Sequence[str], host: str) -> Look:
    """Whether NICs can reach the memory of these GPUs, by their names."""
    if not rdma or not gpus:
        why = f"there is no {'GPU' if rdma else 'RDMA device'}"
        return Look(host, "network", _WHAT, "not known", "not_evaluated", why, rule=GPUDIRECT.id)
    if (look := _by_model(gpus, host)) is not None:
        return look
    if platform.peermem:
        return Look(host, "network", _WHAT, "nvidia-peermem is loaded", rule=GPUDIRECT.id)
    if platform.dmabuf or efa:
        return Look(host, "network", _WHAT, "through dma-buf", rule=GPUDIRECT.id)
    return Look(
        host, "network", _WHAT, "no", "warning",
        "neither nvidia-peermem nor dma-buf: data go through the host's memory",
        "on the host: sudo modprobe nvidia-peermem (or the driver's open kernel modules on Linux 5.12 and newer)",
        rule=GPUDIRECT.id,
    )  # fmt: skip


def judge_gdr_told(plugin: str, told: Mapping[str, bool], gpus: Sequence[str], host: str) -> Look | None:
    """What NCCL says of its network's devices, by name; None of another network, or where it says nothing."""
    if not told or not plugin.startswith(_OF_IB):
        return None
    off = [name for name, on in told.items() if not on]
    if not off:
        return Look(host, "network", _WHAT, f"on for {_listed(list(told))}", rule=GPUDIRECT.id)
    if (look := _by_model(gpus, host)) is not None:
        return look
    return Look(
        host, "network", _WHAT, f"off for {_listed(off)}", "warning",
        "as NCCL's log says, which finds neither nvidia-peermem nor dma-buf: data go through the host's memory",
        "on the host: sudo modprobe nvidia-peermem; where lsmod has it already, install the NVIDIA driver again: it is "
        "built with the network card's driver; or take the driver's open kernel modules on Linux 5.12 and newer",
        rule=GPUDIRECT.id,
    )  # fmt: skip


def _by_model(gpus: Sequence[str], host: str) -> Look | None:
    """Of GPUs that never have it."""
    if gpus and all(_SHARES_MEMORY in name for name in gpus):
        return Look(host, "network", _WHAT, "none on GB10, whose GPU works in the host's memory", rule=GPUDIRECT.id)
    if gpus and all(_HAS_NONE in name for name in gpus):
        return Look(
            host, "network", _WHAT, "not on these GPUs", "note",
            "GeForce has none: data go through the host's memory", "nothing to set: NCCL does so by itself",
            rule=GPUDIRECT.id,
        )  # fmt: skip
    return None


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# TO-D206: whether NCCL can use EFA.


EFA = described("machine", "TO-D206", JudgedBy.DOCTOR)
EFA_RULES = (EFA,)
_EFA = "NCCL's EFA plugin"
_WHY = "without aws-ofi-nccl NCCL cannot use EFA: sockets between hosts"


def judge_efa(devices: Sequence[Rdma], plugin: Plugin, gpus: int, host: str) -> tuple[Look, ...]:
    """One Look where there are EFA devices and GPUs."""
    if not gpus or not any(one.family == "EFA" for one in devices):
        return ()
    if plugin.loadable:
        why = "whether it is the one for EFA NCCL's log says (NCCL_DEBUG=INFO): NET/OFI"
        return (Look(host, "network", _EFA, "found", why=why, rule=EFA.id),)
    found, advice = "not found", "install aws-ofi-nccl (Amazon's EFA installer has it)"
    if plugin.turned_off:
        found, advice = "turned off by NCCL_NET_PLUGIN=none", "unset NCCL_NET_PLUGIN"
    elif plugin.installed:
        found = f"in {plugin.installed}, not loaded"
        settings = (f"LD_LIBRARY_PATH={plugin.installed}:$LD_LIBRARY_PATH", *plugin.settings)
        advice = f"export {' '.join(settings)}"
    return (Look(host, "network", _EFA, found, "warning", _WHY, advice, rule=EFA.id),)
