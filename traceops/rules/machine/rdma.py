"""TO-D203 to TO-D205: RDMA ports, access to them, and their addresses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from traceops.core.rule import JudgedBy, Rule
from traceops.fabric.model import Pcie
from traceops.machine.look import Look
from traceops.machine.rdma import Port, Rdma, v2_index
from traceops.rules.machine.pcie import PCIE_LINK

RDMA_PORTS = Rule(
    id="TO-D203",
    title="RDMA ports are down or slower than their siblings",
    fires=(
        "Warning where no RDMA port is up, an InfiniBand card is not in use, or an InfiniBand port is "
        "slower than others of its model; info for such ports of other networks."
    ),
    advice="Check cables and switch ports: ibstat, rdma link, mlxlink -d DEVICE.",
    judged_by=JudgedBy.DOCTOR,
)
RDMA_ACCESS = Rule(
    id="TO-D204",
    title="Programs cannot open the RDMA devices",
    fires="Warning where there are RDMA devices and no /dev/infiniband/uverbs*.",
    advice=("In a container: docker run --device=/dev/infiniband --ulimit memlock=-1; else modprobe ib_uverbs."),
    judged_by=JudgedBy.DOCTOR,
)
ROCE_ADDRESS = Rule(
    id="TO-D205",
    title="A RoCE port has no RoCE v2 address beyond its own link",
    fires=("Warning where no RoCE port that is up has one that is not link-local (fe80::), info where some have none."),
    advice="Give the interface behind it an IP address, or leave it out by NCCL_IB_HCA; see show_gids.",
    judged_by=JudgedBy.DOCTOR,
)
RULES = (RDMA_PORTS, RDMA_ACCESS, ROCE_ADDRESS)


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
