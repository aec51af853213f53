"""Who gets the cores of this machine: how long a process waits for one, and who else runs there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from traceops.machine.files import text

_THROTTLED = {"throttled_usec": 1e3, "throttled_time": 1e6}  # in cpu.stat of cgroups v2 and v1: so many a ms
_TICK_MS = 1000.0 / (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)


@dataclass(frozen=True)
class ProcessTime:
    """Of a process since it began: CPU time, how long its main thread waited for a core, and ran on one, major page
    faults, its core.

    Milliseconds; None where the kernel does not tell.
    """

    cpu_ms: float
    wait_ms: float | None
    ran_ms: float | None
    faults: int
    core: int


@dataclass(frozen=True)
class Stat:
    """What /proc/<pid>/stat says: parent, CPU time, major page faults, the core it ran on last."""

    name: str
    parent: int
    cpu_ms: float
    faults: int
    core: int


def read_stat(pid: int, proc: Path = Path("/proc")) -> Stat | None:
    """None where the process is gone."""
    try:
        whole = (proc / str(pid) / "stat").read_text()
        begin, end = whole.index("("), whole.rindex(")")
        rest = whole[end + 2 :].split()
        return Stat(
            whole[begin + 1 : end],
            int(rest[1]),
            (int(rest[11]) + int(rest[12])) * _TICK_MS,
            int(rest[9]),
            int(rest[36]),
        )
    except (OSError, ValueError, IndexError):
        return None


def process_time(pid: int, proc: Path = Path("/proc")) -> ProcessTime | None:
    """None where the process is gone."""
    stat = read_stat(pid, proc)
    if stat is None:
        return None
    words = (text(proc / str(pid) / "schedstat") or "").split()
    known = len(words) == 3 and words[0].isdigit() and words[1].isdigit()
    ran, wait = (int(words[0]) / 1e6, int(words[1]) / 1e6) if known else (None, None)
    return ProcessTime(stat.cpu_ms, wait, ran, stat.faults, stat.core)


def cores_ms(proc: Path = Path("/proc")) -> tuple[float | None, float | None]:
    """CPU time of all cores together: what the hypervisor gave to others, and what was wanted, that included."""
    words = (text(proc / "stat") or "").split("\n")[0].split()[1:9]
    if len(words) < 8 or not all(word.isdigit() for word in words):
        return None, None
    user, nice, system, _, _, interrupts, soft, stolen = (int(word) * _TICK_MS for word in words)
    return stolen, user + nice + system + interrupts + soft + stolen


def throttled_ms(pid: int, root: Path = Path("/")) -> float | None:
    """How long the cgroup of a process had to wait because its quota of CPU time was used up, of cgroups v2 or v1."""
    groups = dict[str, str]()
    for line in (text(root / f"proc/{pid}/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        groups |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    above, cpu = root / "sys/fs/cgroup", root / "sys/fs/cgroup/cpu"
    for folder in (above / groups.get("", ""), above, cpu / groups.get("cpu", ""), cpu):
        for line in (text(folder / "cpu.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name in _THROTTLED and value.isdigit():
                return int(value) / _THROTTLED[name]
    return None


def all_processes(proc: Path = Path("/proc")) -> dict[int, Stat]:
    """Every process that can be seen."""
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdigit() and (stat := read_stat(int(folder.name), proc)) is not None:
            found[int(folder.name)] = stat
    return found


def descendants(processes: dict[int, Stat], root: int) -> set[int]:
    """`root` and all processes below it."""
    children: dict[int, list[int]] = {}
    for pid, stat in processes.items():
        children.setdefault(stat.parent, []).append(pid)
    found, open_ = {root}, [root]
    while open_:
        for child in children.get(open_.pop(), ()):
            if child not in found:
                found.add(child)
                open_.append(child)
    return found
