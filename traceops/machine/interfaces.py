"""Reads the network interfaces of a host, and tells which of them NCCL takes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from traceops.machine.files import entries, exists, number, text

_UP = 0x1


@dataclass(frozen=True)
class Interface:
    """A network interface. index: the kernel's number. mbits: speed in Mbit/s. address: it has one NCCL can use.

    physical: there is a device behind it. default: the default route goes through it. ports: of a bond.
    """

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
    """All interfaces of /sys/class/net in the kernel's order; () on a system without it.

    addressed: those with an address; without it, those that have an IPv4 route or are known to have an IPv6 address,
    because /proc lists IPv4 addresses without saying whose they are.
    """
    routes = _routes(text(root / "proc/net/route") or "")
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
        name,
        number(folder / "ifindex") or 0,
        up and state not in ("down", "lowerlayerdown", "notpresent", "dormant"),
        name == "lo" or name in addressed,
        speed if speed is not None and speed > 0 else None,
        number(folder / "mtu"),
        exists(folder / "device") or bool(ports),
        routes.get(name, False),
        ports,
        down,
    )


def _routes(table: str) -> dict[str, bool]:
    """Interfaces with an IPv4 route, and whether one is the default route."""
    found: dict[str, bool] = {}
    for line in table.splitlines()[1:]:
        cells = line.split()
        if len(cells) > 7:
            default = cells[1] == "00000000" and cells[7] == "00000000"
            found[cells[0]] = found.get(cells[0], False) or default
    return found


@dataclass(frozen=True)
class Choice:
    """A list of interfaces or devices as NCCL reads it: ``^`` leaves out, ``=`` takes names exactly, else begins.

    names: with the port after a colon, -1 for any.
    """

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
    rest = value
    leaves_out = rest.startswith("^")
    rest = rest[1:] if leaves_out else rest
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
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
    infiniband = [interface for interface in usable if interface.name.startswith("ib")]
    if infiniband:
        return tuple(infiniband)
    others = [interface for interface in usable if not interface.name.startswith(_NOT_BY_ITSELF)]
    if others:
        return tuple(others)
    for start in ("docker", "lo", "virbr"):
        last = [interface for interface in usable if interface.name.startswith(start)]
        if last:
            return tuple(last)
    return ()
