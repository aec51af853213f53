"""TO-D201 and TO-D202: the network interfaces that NCCL would take, and bonds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from traceops.core.rule import JudgedBy, Rule
from traceops.machine.interfaces import Interface, taken_by_nccl
from traceops.machine.look import Look

INTERFACES = Rule(
    id="TO-D201",
    title="NCCL would not take the best network interface",
    fires=(
        "Error where no interface is up with an address; warning where NCCL would begin with one that does "
        "not leave the host; info where it would also take such a one, or where another one is four times "
        "as fast."
    ),
    advice=("export NCCL_SOCKET_IFNAME==NAME GLOO_SOCKET_IFNAME=NAME with the interface that reaches all hosts."),
    judged_by=JudgedBy.DOCTOR,
)
BOND = Rule(
    id="TO-D202",
    title="A bond has ports that are down",
    fires="Warning for each bond with a port that is down.",
    advice="Check cable and switch port: cat /proc/net/bonding/BOND.",
    judged_by=JudgedBy.DOCTOR,
)
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
