"""Cores, NUMA nodes and what of them this process may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from traceops.doctor.looks.cgroups import field_of
from traceops.doctor.looks.files import cores, entries, listed, number, text
from traceops.doctor.model import Look

_OWN_GOVERNORS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")  # their "powersave" is quick


@dataclass(frozen=True)
class Near:
    """Where a device sits. numa: node, None where not known. cpus: the cores of its node."""

    numa: int | None
    cpus: frozenset[int]


@dataclass(frozen=True)
class Cpus:
    """allowed: cores this process may use. nodes: cores by NUMA node. governors: of all cores, with their drivers.

    balancing: whether the kernel moves memory between nodes by itself. virtual: a hypervisor runs this machine.
    """

    allowed: frozenset[int]
    nodes: dict[int, frozenset[int]]
    governors: frozenset[tuple[str, str]] = frozenset()
    balancing: bool = False
    virtual: bool | None = None


def read_cpus(root: Path) -> Cpus:
    """What /proc and /sys say of the host's cores."""
    nodes = {
        int(folder.name[4:]): cores(text(folder / "cpulist"))
        for folder in entries(root / "sys/devices/system/node")
        if folder.name.startswith("node") and folder.name[4:].isdigit()
    }
    policies = [
        folder / "cpufreq" for folder in entries(root / "sys/devices/system/cpu") if folder.name[3:].isdigit()
    ]
    governors = {(text(one / "scaling_governor"), text(one / "scaling_driver") or "") for one in policies}
    information = text(root / "proc/cpuinfo")
    return Cpus(
        cores(field_of(text(root / "proc/self/status"), "Cpus_allowed_list")),
        nodes,
        frozenset((governor, driver) for governor, driver in governors if governor),
        (number(root / "proc/sys/kernel/numa_balancing") or 0) > 0,
        None if information is None else "hypervisor" in information,
    )


def read_near(root: Path, bus_id: str | None) -> Near:
    """Where the PCI device of this address sits."""
    folder = root / "sys/bus/pci/devices" / (bus_id or "none")
    numa = number(folder / "numa_node")
    return Near(numa if numa is not None and numa >= 0 else None, cores(text(folder / "local_cpulist")))


def look_at_cpus(
    cpus: Cpus, gpus: Sequence[tuple[str, Near]], quota: float | None, host: str
) -> tuple[Look, ...]:
    """Nodes, cores that are allowed, whether those near each GPU are, and the governor.

    gpus: by label. quota: processors that a cgroup grants, None without a limit.
    """
    if not cpus.allowed:
        return (
            Look(host, "NUMA", "cores", "not known", "not_evaluated", "this system has no /proc/self/status"),
        )
    total = sum(len(one) for one in cpus.nodes.values())
    found = f"{len(cpus.allowed)}{f' of {total}' if total > len(cpus.allowed) else ''} cores"
    found += f" on {len(cpus.nodes)} NUMA nodes" if len(cpus.nodes) > 1 else ""
    facts = {"allowed": listed(cpus.allowed), "nodes": {str(node): listed(one) for node, one in cpus.nodes.items()},
             "quota": quota, "gpus": {label: near.numa for label, near in gpus}}  # fmt: skip
    granted = min(float(len(cpus.allowed)), quota or float("inf"))
    if gpus and granted < len(gpus):
        looks = [
            Look(host, "NUMA", "cores", f"{granted:g} for {len(gpus)} GPUs", "warning",
                 "every rank keeps a core busy, and NCCL's network and the loader need more",
                 "ask for more cores: docker --cpus/--cpuset-cpus, Slurm --cpus-per-task, the pod's cpu limit", facts)
        ]  # fmt: skip
    else:
        looks = [Look(host, "NUMA", "cores", found, facts=facts)]
    far = [(label, near) for label, near in gpus if near.cpus and not near.cpus & cpus.allowed]
    if far:
        shown = "; ".join(f"{label} is near {listed(near.cpus)}" for label, near in far)
        looks.append(
            Look(host, "NUMA", "cores near GPUs", f"none allowed for {', '.join(label for label, _ in far)}", "warning",
                 f"this process may use {listed(cpus.allowed)}; {shown}: all they copy crosses between NUMA nodes",
                 "widen the cpuset, or bind each rank near its GPU: numactl --cpunodebind=NODE --membind=NODE", facts)
        )  # fmt: skip
    elif gpus and len(cpus.nodes) > 1 and all(near.numa is None for _, near in gpus):
        looks.append(
            Look(host, "NUMA", "GPUs' NUMA nodes", "not known", "note",
                 "there are several nodes and the firmware does not say where the GPUs are: binding is guesswork",
                 "on bare metal update the BIOS; in a virtual machine ask for its NUMA layout", facts)
        )  # fmt: skip
    if gpus and len(cpus.nodes) > 1 and cpus.balancing:
        looks.append(
            Look(host, "NUMA", "automatic NUMA balancing", "on", "note",
                 "the kernel moves memory between nodes: it may disturb NCCL's buffers",
                 "sudo sysctl kernel.numa_balancing=0")
        )  # fmt: skip
    slow = {
        governor
        for governor, driver in cpus.governors
        if governor == "powersave" and driver not in _OWN_GOVERNORS
    }
    if slow and gpus:
        looks.append(
            Look(host, "NUMA", "CPU governor", "powersave", "warning",
                 "cores stay at their lowest clock: launching kernels takes longer",
                 "sudo cpupower frequency-set -g performance")
        )  # fmt: skip
    return tuple(looks)
