"""Who gets the cores of this machine: how long a process waits for one, and who else runs there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from traceops.machine.files import text

_THROTTLED = {"throttled_usec": 1e3, "throttled_time": 1e6}  # in cpu.stat of cgroups v2 and v1: so many a ms
_TICK_MS = 1000.0 / (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)


class ProcessTime(Struct, frozen=True):
    """Of a process since it began: CPU time, how long its main thread waited for a core, and ran on one, major page
    faults, its core.

    Milliseconds; None where the kernel does not tell.
    """

    cpu_ms: float
    wait_ms: float | None
    ran_ms: float | None
    faults: int
    core: int


class Stat(Struct, frozen=True):
    """What /proc/<pid>/stat says: parent, CPU time, major page faults, the core it ran on last."""

    name: str
    parent: int
    cpu_ms: float
    faults: int
    core: int


def read_stat(pid: int, proc: Path) -> Stat | None:
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


def quota_ms(pid: int, root: Path = Path("/")) -> tuple[float | None, float | None]:
    """CPU time of a process' cgroup, v2 or v1: refused because its quota was used up, and used.

    The kernel adds up what each core was refused: two cores that wait at once count twice.
    """
    groups = dict[str, str]()
    listed = text(root / f"proc/{pid}/cgroup")
    if listed is None:  # the process is gone: what is above its cgroup is another's
        return None, None
    for line in listed.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        groups |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    above, cpu = root / "sys/fs/cgroup", root / "sys/fs/cgroup/cpu"
    for folder in (above / groups.get("", ""), above, cpu / groups.get("cpu", ""), cpu):
        told = dict(line.split(" ", 1) for line in (text(folder / "cpu.stat") or "").splitlines() if " " in line)
        refused = next((_ms(told[name], per) for name, per in _THROTTLED.items() if name in told), None)
        if refused is not None:
            return refused, _ms(told.get("usage_usec", ""), 1e3) if "usage_usec" in told else _used_v1(root, groups)
    return None, None


def _used_v1(root: Path, groups: Mapping[str, str]) -> float | None:
    """What a cgroup of version 1 used, ms: a controller of its own tells, if the same processes are in its group."""
    above = root / "sys/fs/cgroup/cpuacct"
    if groups.get("cpuacct") != groups.get("cpu"):
        return None
    for folder in (above / groups.get("cpuacct", ""), above):
        if (used := _ms((text(folder / "cpuacct.usage") or "").strip(), 1e6)) is not None:
            return used
    return None


def _ms(value: str, per: float) -> float | None:
    return int(value) / per if value.isdigit() else None


def all_processes(proc: Path = Path("/proc")) -> dict[int, Stat]:
    """Every process that can be seen."""
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdigit() and (stat := read_stat(int(folder.name), proc)) is not None:
            found[int(folder.name)] = stat
    return found


def started_with(pid: int, names: Sequence[str], proc: Path = Path("/proc")) -> tuple[str, ...] | None:
    """What these variables were when a process, or what it was forked from, was started; None if one is not known."""
    lines = (text(proc / str(pid) / "environ") or "").split("\0")
    told = {name: value for name, _, value in (line.partition("=") for line in lines)}
    return tuple(told[name] for name in names) if all(told.get(name) for name in names) else None


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
