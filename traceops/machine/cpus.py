"""Reads cores and NUMA nodes, and which of them this process may use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traceops.machine.files import cores, entries, number, text
from traceops.machine.limits import field_of


@dataclass(frozen=True)
class Near:
    """Where a device sits. numa: node, None where not known. cpus: the cores of its node."""

    numa: int | None
    cpus: frozenset[int]


@dataclass(frozen=True)
class Cpus:
    """allowed: cores this process may use. nodes: cores by NUMA node.

    balancing: whether the kernel moves memory between nodes by itself. virtual: a hypervisor runs this machine.
    """

    allowed: frozenset[int]
    nodes: dict[int, frozenset[int]]
    balancing: bool = False
    virtual: bool | None = None


def read_cpus(root: Path) -> Cpus:
    """What /proc and /sys say of the host's cores."""
    nodes = {
        int(folder.name[4:]): cores(text(folder / "cpulist"))
        for folder in entries(root / "sys/devices/system/node")
        if folder.name.startswith("node") and folder.name[4:].isdigit()
    }
    information = text(root / "proc/cpuinfo")
    return Cpus(
        cores(field_of(text(root / "proc/self/status"), "Cpus_allowed_list")),
        nodes,
        (number(root / "proc/sys/kernel/numa_balancing") or 0) > 0,
        None if information is None else "hypervisor" in information,
    )


def read_near(root: Path, bus_id: str | None) -> Near:
    """Where the PCI device of this address sits."""
    folder = root / "sys/bus/pci/devices" / (bus_id or "none")
    numa = number(folder / "numa_node")
    return Near(numa if numa is not None and numa >= 0 else None, cores(text(folder / "local_cpulist")))
