"""Limits that the system sets this process: cgroups of both versions, ulimits, shared memory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from traceops.doctor.looks.files import entries, number, text
from traceops.doctor.model import Look

_GIB = 1 << 30
_UNLIMITED = 1 << 60  # version 1 writes no limit as a number like 9223372036854771712
_DOCKER_SHM = 64 << 20
_SMALL_SHM = 1 << 30
_IPC_LOCK = 14  # a capability: without it memlock counts
_FEW_FILES, _VERY_FEW_FILES = 4096, 256
_FEW_PROCESSES = 1024
_LITTLE_LOCKED = _GIB
_SMALL_MEMORY = 4 * _GIB


@dataclass(frozen=True)
class Limits:
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
        tops += [
            mount / name for name in controllers.split(",") if name and "=" not in name and "," in controllers
        ]
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


def look_at_limits(limits: Limits, gpus: int, rdma: bool, host: str) -> tuple[Look, ...]:
    """Shared memory, ulimits and cgroup limits, as far as they matter for as many GPUs and RDMA."""
    return (
        _shared_memory(limits, gpus, host),
        *_of_ulimits(limits, rdma, host),
        *_of_cgroups(limits, gpus, host),
    )


def _shared_memory(limits: Limits, gpus: int, host: str) -> Look:
    if limits.shm is None:
        return Look(host, "memory", "/dev/shm", "not known", "not_evaluated", "there is no /dev/shm")
    free = limits.shm_free if limits.shm_free is not None else limits.shm
    found = size(limits.shm) + (f", {size(free)} free" if free < 0.9 * limits.shm else "")
    facts = {"bytes": limits.shm, "free_bytes": free, "nccl_segments": limits.leftovers}
    advice = (
        "docker run --shm-size=16g (or --ipc=host); in Kubernetes mount an emptyDir with medium: Memory at /dev/shm; "
        "on a host: sudo mount -o remount,size=50% /dev/shm"
    )
    if limits.shm <= _DOCKER_SHM and gpus > 1:
        why = "a container's default: NCCL's shared memory and loaders with workers fail ('No space left', bus error)"
        return Look(host, "memory", "/dev/shm", found, "error", why, advice, facts)
    if limits.shm <= _DOCKER_SHM:
        why = "a container's default: loaders with workers die of a bus error"
        return Look(host, "memory", "/dev/shm", found, "warning", why, advice, facts)
    if free < _DOCKER_SHM:
        why = "nearly full: NCCL and loaders with workers fail"
        what = "see what holds it: ls -la /dev/shm; remove segments of jobs that ended: rm /dev/shm/nccl-*"
        return Look(host, "memory", "/dev/shm", found, "error" if gpus > 1 else "warning", why, what, facts)
    if free < _SMALL_SHM and gpus > 1:
        why = "NCCL takes some 10 MB for each pair that has no direct access, loaders a batch for each worker"
        return Look(host, "memory", "/dev/shm", found, "warning", why, advice, facts)
    return Look(host, "memory", "/dev/shm", found, facts=facts)


def _of_ulimits(limits: Limits, rdma: bool, host: str) -> list[Look]:
    facts = {
        "memlock": limits.memlock,
        "nofile": limits.files,
        "nproc": limits.processes,
        "may_lock": limits.may_lock,
    }
    looks = []
    if rdma and limits.memlock is not None and limits.memlock < _LITTLE_LOCKED and not limits.may_lock:
        looks.append(
            Look(host, "limits", "locked memory", size(limits.memlock), "error",
                 "RDMA registers GBs: it fails with 'Cannot allocate memory', or NCCL falls back to sockets",
                 "ulimit -l unlimited; docker run --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK "
                 "and LimitMEMLOCK=infinity in slurmd's unit", facts)
        )  # fmt: skip
    if limits.files is not None and limits.files < _FEW_FILES:
        very = limits.files < _VERY_FEW_FILES
        looks.append(
            Look(host, "limits", "open files", str(limits.files), "warning" if very else "note",
                 "each connection of NCCL and each tensor of a loader's worker takes one"
                 + ("" if very else "; enough for one host"),
                 "ulimit -n 65536; docker run --ulimit nofile=65536", facts)
        )  # fmt: skip
    fewest = min((one for one in (limits.processes, limits.tasks) if one is not None), default=None)
    if fewest is not None and fewest < _FEW_PROCESSES:
        looks.append(
            Look(host, "limits", "processes and threads", str(fewest), "warning",
                 "a rank has a hundred threads and more: starting them fails ('Resource temporarily unavailable')",
                 "ulimit -u 65536; docker run --pids-limit -1", facts)
        )  # fmt: skip
    if not looks:
        lock = "unlimited" if limits.memlock is None or limits.may_lock else size(limits.memlock)
        files = "unlimited" if limits.files is None else str(limits.files)
        looks = [Look(host, "limits", "ulimits", f"locked memory {lock}, open files {files}", facts=facts)]
    return looks


def _of_cgroups(limits: Limits, gpus: int, host: str) -> list[Look]:
    facts = {"memory_bytes": limits.memory, "used_bytes": limits.memory_used, "processors": limits.processors,
             "tasks": limits.tasks}  # fmt: skip
    parts = [
        f"memory {size(limits.memory)}" if limits.memory else "",
        f"{limits.processors:g} processors" if limits.processors else "",
        f"{limits.tasks} tasks" if limits.tasks else "",
    ]
    found = ", ".join(part for part in parts if part) or "none"
    if limits.memory is not None and limits.memory < _SMALL_MEMORY * max(gpus, 1):
        return [
            Look(host, "limits", "cgroup limits", found, "warning" if gpus else "note",
                 "every rank takes 2 to 4 GB of the host's memory before it trains: the kernel may kill one",
                 "docker run --memory, the pod's memory limit, or Slurm --mem", facts)
        ]  # fmt: skip
    return [Look(host, "limits", "cgroup limits", found, facts=facts)]


def size(count: int) -> str:
    """Bytes in words: ``64 MB``, ``1.5 TB``; by 1024, as /dev/shm is given."""
    value, unit = float(count), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1024 or unit == "TB":
            break
        value /= 1024
    return f"{value:.3g} {unit}"
