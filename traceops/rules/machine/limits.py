"""TO-D301 to TO-D304: /dev/shm, ulimits and cgroups."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.rule import JudgedBy, described
from traceops.core.units import memory_text
from traceops.machine.files import listed
from traceops.machine.look import Look
from traceops.machine.platform import Cpus, Limits, Near

# TO-D305 and TO-D306: cores and NUMA nodes.


CORES = described("machine", "TO-D305", JudgedBy.DOCTOR)
NUMA = described("machine", "TO-D306", JudgedBy.DOCTOR)
RULES = (CORES, NUMA)


def balancing_look(host: str) -> Look:
    """The kernel moves memory between nodes by itself."""
    return Look(
        host, "NUMA", "automatic NUMA balancing", "on", "note",
        "the kernel moves memory between nodes: it may disturb NCCL's buffers",
        "sudo sysctl kernel.numa_balancing=0", rule=NUMA.id,
    )  # fmt: skip


def judge_cpus(cpus: Cpus, gpus: Sequence[tuple[str, Near]], quota: float | None, host: str) -> tuple[Look, ...]:
    """Nodes, cores that are allowed, and whether those near each GPU are.

    gpus: by label. quota: processors that a cgroup grants, None without a limit.
    """
    if not cpus.allowed:
        return (
            Look(
                host,
                "NUMA",
                "cores",
                "not known",
                "not_evaluated",
                "this system has no /proc/self/status",
                rule=CORES.id,
            ),
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
                 "ask for more cores: docker --cpus/--cpuset-cpus, Slurm --cpus-per-task, the pod's cpu limit", facts,
                 rule=CORES.id)
        ]  # fmt: skip
    else:
        looks = [Look(host, "NUMA", "cores", found, facts=facts, rule=CORES.id)]
    far = [(label, near) for label, near in gpus if near.cpus and not near.cpus & cpus.allowed]
    if far:
        shown = "; ".join(f"{label} is near {listed(near.cpus)}" for label, near in far)
        looks.append(
            Look(host, "NUMA", "cores near GPUs", f"none allowed for {', '.join(label for label, _ in far)}", "warning",
                 f"this process may use {listed(cpus.allowed)}; {shown}: all they copy crosses between NUMA nodes",
                 "widen the cpuset, or bind each rank near its GPU: numactl --cpunodebind=NODE --membind=NODE", facts,
                 rule=NUMA.id)
        )  # fmt: skip
    elif gpus and len(cpus.nodes) > 1 and all(near.numa is None for _, near in gpus):
        looks.append(
            Look(host, "NUMA", "GPUs' NUMA nodes", "not known", "note",
                 "there are several nodes and the firmware does not say where the GPUs are: binding is guesswork",
                 "on bare metal update the BIOS; in a virtual machine ask for its NUMA layout", facts,
                 rule=NUMA.id)
        )  # fmt: skip
    if gpus and len(cpus.nodes) > 1 and cpus.balancing:
        looks.append(balancing_look(host))
    return tuple(looks)


SHARED_MEMORY = described("machine", "TO-D301", JudgedBy.DOCTOR)
LOCKED_MEMORY = described("machine", "TO-D302", JudgedBy.DOCTOR)
FEW_FILES_OR_TASKS = described("machine", "TO-D303", JudgedBy.DOCTOR)
CGROUP_MEMORY = described("machine", "TO-D304", JudgedBy.DOCTOR)
LIMITS_RULES = (LOCKED_MEMORY, FEW_FILES_OR_TASKS, CGROUP_MEMORY)
_GIB = 1 << 30
_DOCKER_SHM = 64 << 20
_SMALL_SHM = 1 << 30
_FEW_FILES, _VERY_FEW_FILES = 4096, 256
_FEW_PROCESSES = 1024
_LITTLE_LOCKED = _GIB
_SMALL_MEMORY = 4 * _GIB


def judge_limits(limits: Limits, gpus: int, rdma: bool, host: str) -> tuple[Look, ...]:
    """Shared memory, ulimits and cgroup limits, as far as they matter for as many GPUs and RDMA."""
    return (_shared_memory(limits, gpus, host), *_of_ulimits(limits, rdma, host), *_of_cgroups(limits, gpus, host))


def _shared_memory(limits: Limits, gpus: int, host: str) -> Look:
    if limits.shm is None:
        return Look(
            host, "memory", "/dev/shm", "not known", "not_evaluated", "there is no /dev/shm", rule=SHARED_MEMORY.id
        )
    free = limits.shm_free if limits.shm_free is not None else limits.shm
    found = memory_text(limits.shm) + (f", {memory_text(free)} free" if free < 0.9 * limits.shm else "")
    facts = {"bytes": limits.shm, "free_bytes": free, "nccl_segments": limits.leftovers}
    advice = (
        "docker run --shm-size=16g (or --ipc=host); in Kubernetes mount an emptyDir with medium: Memory at /dev/shm; "
        "on a host: sudo mount -o remount,size=50% /dev/shm"
    )
    if limits.shm <= _DOCKER_SHM and gpus > 1:
        why = "a container's default: NCCL's shared memory and loaders with workers fail ('No space left', bus error)"
        return Look(host, "memory", "/dev/shm", found, "error", why, advice, facts, rule=SHARED_MEMORY.id)
    if limits.shm <= _DOCKER_SHM:
        why = "a container's default: loaders with workers die of a bus error"
        return Look(host, "memory", "/dev/shm", found, "warning", why, advice, facts, rule=SHARED_MEMORY.id)
    if free < _DOCKER_SHM:
        why = "nearly full: NCCL and loaders with workers fail"
        what = "see what holds it: ls -la /dev/shm; remove segments of jobs that ended: rm /dev/shm/nccl-*"
        return Look(
            host,
            "memory",
            "/dev/shm",
            found,
            "error" if gpus > 1 else "warning",
            why,
            what,
            facts,
            rule=SHARED_MEMORY.id,
        )
    if free < _SMALL_SHM and gpus > 1:
        why = "NCCL takes some 10 MB for each pair that has no direct access, loaders a batch for each worker"
        return Look(host, "memory", "/dev/shm", found, "warning", why, advice, facts, rule=SHARED_MEMORY.id)
    return Look(host, "memory", "/dev/shm", found, facts=facts, rule=SHARED_MEMORY.id)


def _of_ulimits(limits: Limits, rdma: bool, host: str) -> list[Look]:
    facts = {"memlock": limits.memlock, "nofile": limits.files, "nproc": limits.processes, "may_lock": limits.may_lock}
    looks = []
    if rdma and limits.memlock is not None and limits.memlock < _LITTLE_LOCKED and not limits.may_lock:
        looks.append(
            Look(host, "limits", "locked memory", memory_text(limits.memlock), "error",
                 "RDMA registers GBs: it fails with 'Cannot allocate memory', or NCCL falls back to sockets",
                 "ulimit -l unlimited; docker run --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK "
                 "and LimitMEMLOCK=infinity in slurmd's unit", facts, rule=LOCKED_MEMORY.id)
        )  # fmt: skip
    if limits.files is not None and limits.files < _FEW_FILES:
        very = limits.files < _VERY_FEW_FILES
        looks.append(
            Look(host, "limits", "open files", str(limits.files), "warning" if very else "note",
                 "each connection of NCCL and each tensor of a loader's worker takes one"
                 + ("" if very else "; enough for one host"),
                 "ulimit -n 65536; docker run --ulimit nofile=65536", facts, rule=FEW_FILES_OR_TASKS.id)
        )  # fmt: skip
    fewest = min((one for one in (limits.processes, limits.tasks) if one is not None), default=None)
    if fewest is not None and fewest < _FEW_PROCESSES:
        looks.append(
            Look(host, "limits", "processes and threads", str(fewest), "warning",
                 "a rank has a hundred threads and more: starting them fails ('Resource temporarily unavailable')",
                 "ulimit -u 65536; docker run --pids-limit -1", facts, rule=FEW_FILES_OR_TASKS.id)
        )  # fmt: skip
    if not looks:
        lock = "unlimited" if limits.memlock is None or limits.may_lock else memory_text(limits.memlock)
        files = "unlimited" if limits.files is None else str(limits.files)
        looks = [Look(host, "limits", "ulimits", f"locked memory {lock}, open files {files}", facts=facts)]
    return looks


def _of_cgroups(limits: Limits, gpus: int, host: str) -> list[Look]:
    facts = {"memory_bytes": limits.memory, "used_bytes": limits.memory_used, "processors": limits.processors,
             "tasks": limits.tasks}  # fmt: skip
    parts = [
        f"memory {memory_text(limits.memory)}" if limits.memory else "",
        f"{limits.processors:g} processors" if limits.processors else "",
        f"{limits.tasks} tasks" if limits.tasks else "",
    ]
    found = ", ".join(part for part in parts if part) or "none"
    if limits.memory is not None and limits.memory < _SMALL_MEMORY * max(gpus, 1):
        return [
            Look(host, "limits", "cgroup limits", found, "warning" if gpus else "note",
                 "every rank takes 2 to 4 GB of the host's memory before it trains: the kernel may kill one",
                 "docker run --memory, the pod's memory limit, or Slurm --mem", facts, rule=CGROUP_MEMORY.id)
        ]  # fmt: skip
    return [Look(host, "limits", "cgroup limits", found, facts=facts, rule=CGROUP_MEMORY.id)]
