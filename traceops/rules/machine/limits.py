"""Makes looks at the machine, and those of TO-D301 to TO-D306: shared memory, ulimits, cgroups, cores, NUMA nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from traceops.core.claims import Facts, filled
from traceops.core.rule import Bounds, JudgedBy, described
from traceops.core.units import memory_text
from traceops.machine.files import listed
from traceops.machine.look import Level, Look
from traceops.machine.platform import Cpus, Limits, Near
from traceops.words.catalogue import sections


class MachineBounds(Bounds, frozen=True):
    """From where on a machine's settings and limits are named, as words/machine.ini says."""

    words = "machine"

    near_c: int = 3
    power: float = 0.9
    replays: int = 1000
    others_gib: float = 1.0
    others_share: float = 0.2
    busy_pct: int = 50
    interface: float = 4.0
    shm_mib: tuple[int, int] = (1024, 64)
    locked_gib: float = 1.0
    files: tuple[int, int] = (4096, 256)
    tasks: int = 1024
    memory_gib: float = 4.0


BOUNDS = MachineBounds()


def looked(
    host: str,
    about: str,
    key: str,
    numbers: Mapping[str, Any] | None = None,
    *,
    level: Level | None = None,
    **facts: Any,
) -> Look:
    """The look `key` of the section `about`, with its facts filled in. Raises KeyError for one that is not there.
    numbers: for the JSON. level: where the judge decides it, and not the file."""
    texts = sections("looks")[about]
    known = Facts(family="looks", kind=about, **facts)
    usual, _, found = texts[key].partition(":")

    def part(name: str) -> str:
        return _first(texts.get(f"{key}.{name}", texts.get(name, "")), known)

    return Look(
        host,
        part("area"),
        part("what"),
        _first(found.strip(), known),
        level or cast(Level, usual),
        part("why"),
        part("do"),
        dict(numbers or {}),
        part("rule"),
    )


def _first(text: str, known: Facts) -> str:
    """The first line of which every fact is known; empty where there is none."""
    lines = (line for line in text.split("\n") if line)
    return next((said for line in lines if (said := filled(line, known)) is not None), "")


CORES = described("machine", "TO-D305", JudgedBy.DOCTOR)
NUMA = described("machine", "TO-D306", JudgedBy.DOCTOR)
RULES = (CORES, NUMA)


def judge_cpus(cpus: Cpus, gpus: Sequence[tuple[str, Near]], quota: float | None, host: str) -> tuple[Look, ...]:
    """Nodes, cores that are allowed, and whether those near each GPU are. gpus: by label. quota: processors that a
    cgroup grants, None without a limit."""
    if not cpus.allowed:
        return (looked(host, "cores", "unknown"),)
    numbers = {"allowed": listed(cpus.allowed), "nodes": {str(node): listed(one) for node, one in cpus.nodes.items()},
               "quota": quota, "gpus": {label: near.numa for label, near in gpus}}  # fmt: skip
    granted = min(float(len(cpus.allowed)), quota or float("inf"))
    if gpus and granted < len(gpus):
        cores = looked(host, "cores", "few", numbers, granted=granted, gpus=len(gpus))
    else:
        allowed, total, nodes = len(cpus.allowed), sum(len(one) for one in cpus.nodes.values()), len(cpus.nodes)
        cores = looked(
            host, "cores", "fine", numbers,
            allowed=allowed, total=total if total > allowed else None, nodes=nodes if nodes > 1 else None,
        )  # fmt: skip
    return (cores, *_of_nodes(cpus, gpus, numbers, host))


def _of_nodes(cpus: Cpus, gpus: Sequence[tuple[str, Near]], numbers: Mapping[str, Any], host: str) -> Iterator[Look]:
    """What keeps processes from memory and cores near their GPUs."""
    several = len(cpus.nodes) > 1
    far = [(label, near) for label, near in gpus if near.cpus and not near.cpus & cpus.allowed]
    if far:
        shown = "; ".join(f"{label} is near {listed(near.cpus)}" for label, near in far)
        labels, allowed = [label for label, _ in far], listed(cpus.allowed)
        yield looked(host, "numa", "far", numbers, gpus=labels, allowed=allowed, near=shown)
    elif gpus and several and all(near.numa is None for _, near in gpus):
        yield looked(host, "numa", "unknown", numbers)
    if gpus and several and cpus.balancing:
        yield looked(host, "numa", "balancing")


SHARED_MEMORY = described("machine", "TO-D301", JudgedBy.DOCTOR)
LOCKED_MEMORY = described("machine", "TO-D302", JudgedBy.DOCTOR)
FEW_FILES_OR_TASKS = described("machine", "TO-D303", JudgedBy.DOCTOR)
CGROUP_MEMORY = described("machine", "TO-D304", JudgedBy.DOCTOR)
LIMITS_RULES = (LOCKED_MEMORY, FEW_FILES_OR_TASKS, CGROUP_MEMORY)
_GIB, _MIB = 1 << 30, 1 << 20
_SMALL_SHM, _DOCKER_SHM = (mib * _MIB for mib in BOUNDS.shm_mib)


def judge_limits(limits: Limits, gpus: int, rdma: bool, host: str) -> tuple[Look, ...]:
    """Shared memory, ulimits and cgroup limits, as far as they matter for as many GPUs and RDMA."""
    return (_shared_memory(limits, gpus, host), *_of_ulimits(limits, rdma, host), *_of_cgroups(limits, gpus, host))


def _shared_memory(limits: Limits, gpus: int, host: str) -> Look:
    if limits.shm is None:
        return looked(host, "shm", "unknown")
    free = limits.shm_free if limits.shm_free is not None else limits.shm
    found = memory_text(limits.shm) + (f", {memory_text(free)} free" if free < 0.9 * limits.shm else "")
    numbers = {"bytes": limits.shm, "free_bytes": free, "nccl_segments": limits.leftovers}
    level: Level | None = None
    if limits.shm <= _DOCKER_SHM:
        key = "container_of_several" if gpus > 1 else "container"
    elif free < _DOCKER_SHM:
        key, level = "full", "error" if gpus > 1 else None
    else:
        key = "small" if free < _SMALL_SHM and gpus > 1 else "fine"
    return looked(host, "shm", key, numbers, level=level, found=found)


def _of_ulimits(limits: Limits, rdma: bool, host: str) -> list[Look]:
    numbers = {
        "memlock": limits.memlock, "nofile": limits.files, "nproc": limits.processes, "may_lock": limits.may_lock,
    }  # fmt: skip
    look = partial(looked, host, "limits", numbers=numbers)
    looks = []
    if rdma and limits.memlock is not None and limits.memlock < BOUNDS.locked_gib * _GIB and not limits.may_lock:
        looks.append(look("locked", memory=memory_text(limits.memlock)))
    if limits.files is not None and limits.files < BOUNDS.files[0]:
        looks.append(look("very_few_files" if limits.files < BOUNDS.files[1] else "few_files", files=limits.files))
    fewest = min((one for one in (limits.processes, limits.tasks) if one is not None), default=None)
    if fewest is not None and fewest < BOUNDS.tasks:
        looks.append(look("few_tasks", tasks=fewest))
    if not looks:
        lock = "unlimited" if limits.memlock is None or limits.may_lock else memory_text(limits.memlock)
        looks = [look("fine", locked=lock, files="unlimited" if limits.files is None else limits.files)]
    return looks


def _of_cgroups(limits: Limits, gpus: int, host: str) -> list[Look]:
    numbers = {"memory_bytes": limits.memory, "used_bytes": limits.memory_used, "processors": limits.processors,
               "tasks": limits.tasks}  # fmt: skip
    parts = [
        f"memory {memory_text(limits.memory)}" if limits.memory else "",
        f"{limits.processors:g} processors" if limits.processors else "",
        f"{limits.tasks} tasks" if limits.tasks else "",
    ]
    found = ", ".join(part for part in parts if part) or "none"
    if limits.memory is not None and limits.memory < BOUNDS.memory_gib * _GIB * max(gpus, 1):
        return [looked(host, "cgroup", "little_memory", numbers, level=None if gpus else "note", found=found)]
    return [looked(host, "cgroup", "fine", numbers, found=found)]
