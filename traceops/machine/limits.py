"""Reads the limits of this process: cgroups of both versions, ulimits, shared memory."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from msgspec import Struct

from traceops.machine.files import cores, entries, number, text

_UNLIMITED = 1 << 60  # version 1 writes no limit as a number like 9223372036854771712
_IPC_LOCK = 14  # a capability: without it memlock counts


class Limits(Struct, frozen=True):
    """What a process may use; None where there is no limit, or it is not known.

    memory and memory_used: bytes. processors: cores' worth of time. tasks: processes and threads. memlock: bytes.
    may_lock: memlock does not count for this process. shm and shm_free: bytes of /dev/shm. leftovers: NCCL's segments.
    """

    memory: int | None = None
    memory_used: int | None = None
    processors: float | None = None
    tasks: int | None = None
    memlock: int | None = None
    files: int | None = None
    processes: int | None = None
    may_lock: bool = False
    shm: int | None = None
    shm_free: int | None = None
    leftovers: int = 0


def read_limits(root: Path) -> Limits:
    """The limits of this process."""
    folders = _folders(root)
    limits = _ulimits(text(root / "proc/self/limits") or "")
    capabilities = field_of(text(root / "proc/self/status"), "CapEff")
    shm, free = _shm(root)
    memory = [_limit(folder / name) for folder in folders for name in ("memory.max", "memory.limit_in_bytes")]
    tasks = [_limit(folder / "pids.max") for folder in folders]
    quotas = [_quota(folder) for folder in folders]
    used = next(
        (value for folder in folders for name in ("memory.current", "memory.usage_in_bytes")
         if (value := number(folder / name)) is not None), None,
    )  # fmt: skip
    return Limits(
        min((one for one in memory if one is not None), default=None),
        used,
        min((one for one in quotas if one is not None), default=None),
        min((one for one in tasks if one is not None), default=None),
        limits.get("Max locked memory"),
        limits.get("Max open files"),
        limits.get("Max processes"),
        bool(int(capabilities or "0", 16) >> _IPC_LOCK & 1),
        shm,
        free,
        sum(1 for entry in entries(root / "dev/shm") if entry.name.startswith("nccl-")),
    )


def field_of(status: str | None, name: str) -> str | None:
    """A field of a file like /proc/self/status."""
    match = re.search(rf"^{re.escape(name)}:\s*(\S+)", status or "", re.MULTILINE)
    return match[1] if match else None


def _folders(root: Path) -> list[Path]:
    """The folders of this process's cgroups and of those above them, the nearest first.

    Inside a container the path in /proc is the host's and often leads nowhere; what is mounted is then the
    process's own.
    """
    mount = root / "sys/fs/cgroup"
    found = []
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        tops = [mount, mount / "unified"] if not controllers else [mount / controllers]
        tops += [mount / name for name in controllers.split(",") if name and "=" not in name and "," in controllers]
        parts = PurePosixPath("/" + path.lstrip("/"))
        for top in tops:
            for one in (parts, *parts.parents):
                if ".." not in one.parts:
                    found.append(top / str(one).lstrip("/"))
    return list(dict.fromkeys(found))


def _limit(path: Path) -> int | None:
    value = number(path)
    return None if value is None or value <= 0 or value >= _UNLIMITED else value


def _quota(folder: Path) -> float | None:
    """Processors: quota over period, of version 2 and 1."""
    match = re.match(r"(\d+) (\d+)", text(folder / "cpu.max") or "")
    if match:
        return int(match[1]) / max(int(match[2]), 1)
    quota, period = number(folder / "cpu.cfs_quota_us"), number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _ulimits(table: str) -> dict[str, int]:
    """Soft limits of /proc/self/limits by name; without those that are unlimited."""
    found = {}
    for line in table.splitlines()[1:]:
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) >= 3 and cells[1].isdigit():
            found[cells[0]] = int(cells[1])
    return found


def _shm(root: Path) -> tuple[int | None, int | None]:
    try:
        size = os.statvfs(root / "dev/shm")
    except OSError:
        return None, None
    return size.f_blocks * size.f_frsize, size.f_bavail * size.f_frsize


# Reads cores and NUMA nodes, and which of them this process may use.


class Near(Struct, frozen=True):
    """Where a device sits. numa: node, None where not known. cpus: the cores of its node."""

    numa: int | None
    cpus: frozenset[int]


class Cpus(Struct, frozen=True):
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
