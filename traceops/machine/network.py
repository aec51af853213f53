"""Reads the network interfaces of a host, and tells which of them NCCL takes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from traceops.fabric.model import Nic, Pcie, normal_bus_id
from traceops.machine.files import entries, exists, link, number, text

_UP = 0x1


class Interface(Struct, frozen=True):
    """A network interface. index: the kernel's number. mbits: speed in Mbit/s. address: it has one NCCL can use.
    physical: there is a device behind it. default: the default route goes through it. ports: of a bond."""

    name: str
    index: int = 0
    up: bool = True
    address: bool = True
    mbits: int | None = None
    mtu: int | None = None
    physical: bool = True
    default: bool = False
    ports: tuple[str, ...] = ()
    ports_down: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        return self.up and self.address


def read_interfaces(root: Path, addressed: Collection[str] | None = None) -> tuple[Interface, ...]:
    """All interfaces of /sys/class/net in the kernel's order; () on a system without it. addressed: those with an
    address; without it, those that have an IPv4 route or are known to have an IPv6 address, because /proc lists IPv4
    addresses without saying whose they are."""
    # Interfaces with an IPv4 route, and whether one is the default route
    routes: dict[str, bool] = {}
    for line in (text(root / "proc/net/route") or "").splitlines()[1:]:
        cells = line.split()
        if len(cells) > 7:
            default = cells[1] == "00000000" and cells[7] == "00000000"
            routes[cells[0]] = routes.get(cells[0], False) or default
    sixth = {line.split()[-1] for line in (text(root / "proc/net/if_inet6") or "").splitlines() if line.split()}
    addressed = {*routes, *sixth} if addressed is None else addressed
    found = [
        _interface(folder, routes, addressed)
        for folder in entries(root / "sys/class/net")
        if exists(folder / "ifindex")
    ]
    return tuple(sorted(found, key=lambda interface: interface.index))


def _interface(folder: Path, routes: dict[str, bool], addressed: Collection[str]) -> Interface:
    flags = text(folder / "flags") or ""
    up = re.fullmatch(r"0x[0-9a-f]{1,8}", flags) is not None and bool(int(flags, 16) & _UP)
    state = text(folder / "operstate")
    ports = tuple((text(folder / "bonding/slaves") or "").split())
    down = tuple(port for port in ports if text(folder.parent / port / "operstate") == "down")
    speed = number(folder / "speed")
    name = folder.name
    return Interface(
        name, number(folder / "ifindex") or 0, up and state not in ("down", "lowerlayerdown", "notpresent", "dormant"),
        name == "lo" or name in addressed, speed if speed is not None and speed > 0 else None, number(folder / "mtu"),
        exists(folder / "device") or bool(ports), routes.get(name, False), ports, down,
    )  # fmt: skip


class Choice(Struct, frozen=True):
    """A list of interfaces or devices as NCCL reads it: ``^`` leaves out, ``=`` takes names exactly, else begins.
    names: with the port after a colon, -1 for any."""

    leaves_out: bool
    exact: bool
    names: tuple[tuple[str, int], ...]

    def takes(self, name: str, port: int = -1) -> bool:
        """Whether NCCL would take it; a list without a name takes everything."""
        hit = not self.names or any(
            (name == wanted if self.exact else name.startswith(wanted)) and (-1 in (port, at) or port == at)
            for wanted, at in self.names
        )
        return hit != self.leaves_out


def parse_choice(value: str) -> Choice:
    """What a value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA says; blanks belong to the names, as for NCCL."""
    leaves_out, rest = value.startswith("^"), value.removeprefix("^")
    exact, rest = rest.startswith("="), rest.removeprefix("=")
    names: list[tuple[str, int]] = []
    for part in rest.split(","):
        name, _, port = part.partition(":")
        digits = re.match(r"\d{1,5}", port)
        if name:
            names.append((name, int(digits[0]) if digits else -1))
    return Choice(leaves_out, exact, tuple(names))


_NOT_BY_ITSELF = ("docker", "lo", "virbr")  # NCCL takes these only where nothing else is there


def taken_by_nccl(interfaces: Iterable[Interface]) -> tuple[Interface, ...]:
    """Those NCCL takes where nothing tells it: IP over InfiniBand, else all but docker's, loopback and virbr."""
    usable = [interface for interface in interfaces if interface.usable]
    infiniband, *last = ([one for one in usable if one.name.startswith(start)] for start in ("ib", *_NOT_BY_ITSELF))
    others = [one for one in usable if not one.name.startswith(_NOT_BY_ITSELF)]
    return tuple(next(filter(None, (infiniband, others, *last)), ()))


_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}  # by GT/s
_WIDEST = 32  # virtual machines show 63 or 255


class Port(Struct, frozen=True):
    """A port. state: ``ACTIVE``, ``DOWN``, ``INIT``. gbits: Gbit/s. layer: ``InfiniBand`` or ``Ethernet``. gids:
    (index, type such as ``RoCE v2``, address), only those that are set."""

    number: int
    state: str
    gbits: float | None = None
    layer: str | None = None
    gids: tuple[tuple[int, str, str], ...] = ()
    interface: str | None = None


class Rdma(Struct, frozen=True):
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
    # Read a device's PCIe link from its folder in /sys; None where it has none, as in virtual machines.
    speeds = (text(device / f"{which}_link_speed") or "" for which in ("current", "max"))
    rates = (re.match(r"\d{1,3}(\.\d)?(?= GT/s)", speed) for speed in speeds)
    generation, most = (_GENERATIONS.get(float(match[0])) if match else None for match in rates)
    lanes = [number(device / f"{which}_link_width") or 0 for which in ("current", "max")]
    width, widest = (count if 0 < count <= _WIDEST else None for count in lanes)
    link_ = Pcie(generation, width, most, widest)
    return Rdma(
        folder.name, tuple(_port(port) for port in entries(folder / "ports") if port.name.isdigit()),
        text(folder / "hca_type") or None, link(device / "driver"), numa if numa is not None and numa >= 0 else None,
        normal_bus_id(slot), None if link_ == Pcie() else link_,
    )  # fmt: skip


def _port(folder: Path) -> Port:
    rate = re.match(r"[\d.]+", text(folder / "rate") or "")
    gids = []
    for entry in entries(folder / "gids"):
        address = text(entry) or ""
        if entry.name.isdigit() and re.search(r"[1-9a-f]", address.replace("fe80", "")):
            gids.append((int(entry.name), text(folder / "gid_attrs/types" / entry.name) or "", address))
    ends = (text(entry) for entry in entries(folder / "gid_attrs/ndevs"))
    return Port(
        int(folder.name), (text(folder / "state") or "").rpartition(": ")[2] or "unknown",
        float(rate[0]) if rate else None, text(folder / "link_layer") or None, tuple(gids),
        next((end for end in ends if end), None),
    )  # fmt: skip


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
    """The index of a RoCE v2 address made of an IPv4 one, else of any RoCE v2 address; None without one. Link-local
    ones do not count, as they do not for NCCL (src/transport/net_ib/connect.cc, validGid)."""
    second = [
        (index, address)
        for index, kind, address in port.gids
        if kind.strip().lower() == "roce v2" and re.match("fe[89ab]", address, re.IGNORECASE) is None  # link-local
    ]
    fourth = [index for index, address in second if ":ffff:" in address]
    return fourth[0] if fourth else second[0][0] if second else None


# Looks for NCCL's plugin for EFA (aws-ofi-nccl) where NCCL loads a plugin from.
#
# NCCL opens libnccl-net.so, or what NCCL_NET_PLUGIN names: NVIDIA/nccl@5067397:src/plugin/net.cc. The plugin may be
# installed as libnccl-net-ofi.so alone, which it does not open by itself: aws/aws-ofi-nccl@2daf7d3:src/Makefile.am.

_DEFAULT = "libnccl-net.so"
_PREFIX = "libnccl-net"
_INSTALLED = (
    "opt/amazon/ofi-nccl/lib", "opt/amazon/ofi-nccl/lib64", "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "opt/amazon/ofi-nccl/lib/aarch64-linux-gnu", "opt/amazon/aws-ofi-nccl/lib", "opt/aws-ofi-nccl/lib",
    "opt/aws-ofi-nccl/install/lib",
)  # fmt: skip
_SYSTEM = ("lib", "usr/lib", "lib64", "usr/lib64")  # where the loader looks without being told


class Plugin(Struct, frozen=True):
    """NCCL's network plugin. loadable: NCCL finds it. installed: the folder it is in where NCCL does not. settings:
    what NCCL would need to be told besides that folder (``NCCL_NET_PLUGIN=ofi``). turned_off: by
    NCCL_NET_PLUGIN=none."""

    loadable: bool
    installed: str | None = None
    settings: tuple[str, ...] = ()
    turned_off: bool = False


def read_plugin(environ: Mapping[str, str], root: Path) -> Plugin:
    """Looks in LD_LIBRARY_PATH, the loader's own places and the folders of Amazon's installer."""
    chosen = environ.get("NCCL_NET_PLUGIN", "")
    if chosen.strip().lower() == "none":
        return Plugin(False, turned_off=True)
    names = [name for one in chosen.split(",") if one for name in (one, f"{_PREFIX}-{one}.so")] or [_DEFAULT]
    paths = [folder.lstrip("/") for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    try:
        cache = (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        cache = b""
    for name in names:
        folders = ("",) if "/" in name else (*paths, *_SYSTEM)
        places = (root / folder / name.lstrip("/") for folder in folders)
        if f"{name}\0".encode() in cache or any(map(exists, places)):
            return Plugin(True)
    for folder in (*paths, *_INSTALLED):
        inside = {entry.name for entry in entries(root / folder)}
        if inside & set(names):
            return Plugin(False, f"/{folder}")
        if any(name.startswith(_PREFIX) for name in inside):
            return Plugin(False, f"/{folder}", () if _DEFAULT in inside else ("NCCL_NET_PLUGIN=ofi",))
    return Plugin(False)
