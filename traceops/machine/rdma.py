"""Reads RDMA devices (InfiniBand, RoCE, EFA) from /sys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traceops.fabric.bus_ids import normal_bus_id
from traceops.fabric.model import Nic, Pcie
from traceops.machine.files import entries, link, number, text

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}  # by GT/s
_WIDEST = 32  # virtual machines show 63 or 255


@dataclass(frozen=True)
class Port:
    """A port. state: ``ACTIVE``, ``DOWN``, ``INIT``. gbits: Gbit/s. layer: ``InfiniBand`` or ``Ethernet``.

    gids: (index, type such as ``RoCE v2``, address), only those that are set.
    """

    number: int
    state: str
    gbits: float | None = None
    layer: str | None = None
    gids: tuple[tuple[int, str, str], ...] = ()
    interface: str | None = None


@dataclass(frozen=True)
class Rdma:
    """An RDMA device. kind: its model (``MT4129``), by which siblings are told. driver: ``mlx5_core``, ``efa``."""

    name: str
    ports: tuple[Port, ...]
    kind: str | None = None
    driver: str | None = None
    numa: int | None = None
    bus_id: str | None = None
    pcie: Pcie | None = None

    @property
    def active(self) -> bool:
        return any(port.state == "ACTIVE" for port in self.ports)

    @property
    def family(self) -> Literal["IB", "RoCE", "EFA", "other"]:
        """What NCCL reaches through it."""
        if self.driver == "efa":
            return "EFA"
        layers = {port.layer for port in self.ports}
        return "IB" if "InfiniBand" in layers else "RoCE" if "Ethernet" in layers else "other"


def read_rdma(root: Path) -> tuple[Rdma, ...]:
    """All devices of /sys/class/infiniband."""
    return tuple(_device(folder) for folder in entries(root / "sys/class/infiniband"))


def can_open(root: Path) -> bool:
    """Whether the files by which programs use RDMA devices are here: a container has them only when told so."""
    return any(entry.name.startswith("uverbs") for entry in entries(root / "dev/infiniband"))


def _device(folder: Path) -> Rdma:
    device = folder / "device"
    try:
        slot = device.resolve().name
    except OSError:
        slot = ""
    numa = number(device / "numa_node")
    return Rdma(
        folder.name,
        tuple(_port(port) for port in entries(folder / "ports") if port.name.isdigit()),
        text(folder / "hca_type") or None,
        link(device / "driver"),
        numa if numa is not None and numa >= 0 else None,
        normal_bus_id(slot),
        read_pcie(device),
    )


def read_pcie(device: Path) -> Pcie | None:
    """The PCIe link of a device's folder in /sys; None where nothing is known of it, as in virtual machines."""
    generation, most = (_generation(text(device / f"{which}_link_speed")) for which in ("current", "max"))
    width, widest = (_width(number(device / f"{which}_link_width")) for which in ("current", "max"))
    link_ = Pcie(generation, width, most, widest)
    return None if link_ == Pcie() else link_


def _generation(speed: str | None) -> int | None:
    match = re.match(r"\d{1,3}(\.\d)?(?= GT/s)", speed or "")
    return _GENERATIONS.get(float(match[0])) if match else None


def _width(lanes: int | None) -> int | None:
    return lanes if lanes and 0 < lanes <= _WIDEST else None


def _port(folder: Path) -> Port:
    rate = re.match(r"[\d.]+", text(folder / "rate") or "")
    gids = []
    for entry in entries(folder / "gids"):
        address = text(entry) or ""
        if entry.name.isdigit() and re.search(r"[1-9a-f]", address.replace("fe80", "")):
            gids.append((int(entry.name), text(folder / "gid_attrs/types" / entry.name) or "", address))
    ends = (text(entry) for entry in entries(folder / "gid_attrs/ndevs"))
    return Port(
        int(folder.name),
        (text(folder / "state") or "").rpartition(": ")[2] or "unknown",
        float(rate[0]) if rate else None,
        text(folder / "link_layer") or None,
        tuple(gids),
        next((end for end in ends if end), None),
    )


def nics(devices: Sequence[Rdma]) -> tuple[Nic, ...]:
    """The devices as the topology's nouns; labels are those of ``nvidia-smi topo -m`` where it counts all of them."""
    found = []
    for place, one in enumerate(devices):
        speed = max((port.gbits for port in one.ports if port.gbits), default=None)
        found.append(
            Nic(
                f"NIC{place}", one.name, one.family, one.numa, None if speed is None else speed / 8,
                "bond" in one.name, one.bus_id, one.pcie, one.active,
            )
        )  # fmt: skip
    return tuple(found)


def v2_index(port: Port) -> int | None:
    """The index of a RoCE v2 address made of an IPv4 one, else of any RoCE v2 address; None without one.

    Link-local ones do not count, as they do not for NCCL (src/transport/net_ib/connect.cc, validGid).
    """
    second = [
        (index, address)
        for index, kind, address in port.gids
        if kind.strip().lower() == "roce v2" and not _is_link_local(address)
    ]
    fourth = [index for index, address in second if ":ffff:" in address]
    return fourth[0] if fourth else second[0][0] if second else None


def _is_link_local(address: str) -> bool:
    return re.match(r"fe[89ab]", address, re.IGNORECASE) is not None
