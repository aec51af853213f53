"""What a host's cores and GPUs do just now: who waits for a core, and what NVML shows of each GPU.

NVML is called through ctypes: starting nvidia-smi costs a core for a second. No call wakes a GPU or makes a context.
What a driver does not report is None.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from stat import S_ISREG
from typing import Any

from msgspec import Struct

from traceops.machine.files import entries, exists, number, text

_THROTTLED = {"throttled_usec": 1e3, "throttled_time": 1e6}  # in cpu.stat of cgroups v2 and v1: so many a ms
_TICK_MS = 1000.0 / (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)

_MOST_CHILDREN, _MOST_FILES = 64, 256  # of a rank, and of each of them, that are looked at
_DATA_BYTES = 1 << 16  # a file that may hold a part of a data set
_NO_STORAGE = ("/dev/", "/memfd:", "/proc/", "/sys/")
_READABLE = 0o400  # how the link of a file that is open to read looks
_WORD = 4  # bytes that InfiniBand's counters count as one


class ProcessTime(Struct, frozen=True):
    """Of a process since it began: CPU time, how long its main thread waited for a core, and ran on one, major page
    faults, its core. Milliseconds; None where the kernel does not tell."""

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
            whole[begin + 1 : end], int(rest[1]), (int(rest[11]) + int(rest[12])) * _TICK_MS, int(rest[9]),
            int(rest[36]),
        )  # fmt: skip
    except (OSError, ValueError, IndexError):
        return None


def process_time(pid: int, proc: Path = Path("/proc")) -> ProcessTime | None:
    """None where the process is gone."""
    if (stat := read_stat(pid, proc)) is None:
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
    """CPU time of a process' cgroup, v2 or v1: refused because its quota was used up, and used. The kernel adds up what
    each core was refused: two cores that wait at once count twice."""
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


def bytes_read(pid: int, proc: Path = Path("/proc")) -> dict[int, tuple[int, int]]:
    """Bytes that a process and the children of its main thread have read: from storage, and in all; by pid."""
    found = {}
    for one in (pid, *_children(pid, proc)):
        told = dict(line.split(": ", 1) for line in (text(proc / str(one) / "io") or "").splitlines() if ": " in line)
        if told.get("read_bytes", "").isdigit() and told.get("rchar", "").isdigit():
            found[one] = int(told["read_bytes"]), int(told["rchar"])
    return found


def _children(pid: int, proc: Path) -> list[int]:
    listed = (text(proc / str(pid) / "task" / str(pid) / "children") or "").split()
    return [int(word) for word in listed[:_MOST_CHILDREN] if word.isdigit()]


def storage_of(pid: int, proc: Path = Path("/proc")) -> tuple[str, str] | None:
    """Where the largest file lies that a process, or a child of it, has open to read: the mount and its file system."""
    largest, path = 0, ""
    for one in (pid, *_children(pid, proc)):
        for descriptor in entries(proc / str(one) / "fd")[:_MOST_FILES]:
            with suppress(OSError):
                told = descriptor.stat()
                readable = descriptor.lstat().st_mode & _READABLE
                if readable and S_ISREG(told.st_mode) and told.st_size > largest:
                    largest, path = told.st_size, str(descriptor.readlink())
    if largest < _DATA_BYTES or path.startswith(_NO_STORAGE):
        return None
    mounts = [
        line.split()[1:3] for line in (text(proc / str(pid) / "mounts") or "").splitlines() if line.count(" ") > 2
    ]
    above = [(mount, kind) for mount, kind in mounts if f"{path}/".startswith(f"{mount.rstrip('/')}/")]
    return max(above, key=lambda one: len(one[0]), default=None)


def network_bytes(root: Path = Path("/sys/class")) -> tuple[int, int] | None:
    """Bytes received and sent by all network devices and InfiniBand ports; None where there are none."""
    found = []
    for device in entries(root / "net"):
        if exists(device / "device"):
            found.append([number(device / "statistics" / name) for name in ("rx_bytes", "tx_bytes")])
    for device in entries(root / "infiniband"):
        for port in entries(device / "ports"):
            words = [number(port / "counters" / name) for name in ("port_rcv_data", "port_xmit_data")]
            found.append([None if count is None else _WORD * count for count in words])
    known = [(got, sent) for got, sent in found if got is not None and sent is not None]
    return (sum(got for got, _ in known), sum(sent for _, sent in known)) if known else None


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


_LIBRARY = "libnvidia-ml.so.1"
_SM_CLOCK, _GPU_TEMPERATURE = 1, 0
_MOST_PROCESSES = 256
_NO_BYTES = (1 << 64) - 1


class _Process(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("instance", c_uint), ("compute_instance", c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Use(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _ProcessUse(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint), ("time", c_ulonglong), ("sm", c_uint), ("memory", c_uint), ("encoder", c_uint),
        ("decoder", c_uint),
    )  # fmt: skip


class NvmlGpu(Struct, frozen=True):
    """A GPU of this machine. most_mhz: the highest clock of its multiprocessors. limit_w: its power cap."""

    index: int
    uuid: str | None
    name: str | None
    most_mhz: int | None
    limit_w: float | None


class GpuNow(Struct, frozen=True):
    """What one does at a moment. reasons: NVML's bits for why its clock is not higher. processes: pid and bytes.
    active: pid and percent of the multiprocessors' time in the last seconds."""

    mhz: int | None
    reasons: int | None
    power_w: float | None
    celsius: int | None
    busy_pct: int | None
    used_bytes: int | None
    processes: tuple[tuple[int, int | None], ...]
    active: tuple[tuple[int, int], ...]


class Nvml:
    """The library, opened. Raises OSError where there is none, or no driver."""

    def __init__(self, library: Any = None) -> None:
        self._nvml = ctypes.CDLL(_LIBRARY) if library is None else library
        if self._nvml.nvmlInit_v2() != 0:
            raise OSError("NVML does not start")
        count = c_uint()
        self._nvml.nvmlDeviceGetCount_v2(byref(count))
        self._handles: list[c_void_p] = []
        self._seen = [0] * count.value
        for index in range(count.value):
            handle = c_void_p()
            self._nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle))
            self._handles.append(handle)

    def __len__(self) -> int:
        """How many GPUs this process may see."""
        return len(self._handles)

    def gpus(self) -> list[NvmlGpu]:
        """All GPUs that this process may see."""
        found = []
        for index, handle in enumerate(self._handles):
            limit = self._number("nvmlDeviceGetEnforcedPowerLimit", handle)
            found.append(
                NvmlGpu(
                    index,
                    self._text("nvmlDeviceGetUUID", handle),
                    self._text("nvmlDeviceGetName", handle),
                    self._number("nvmlDeviceGetMaxClockInfo", handle, c_int(_SM_CLOCK)),
                    None if limit is None else limit / 1000,
                )
            )
        return found

    def now(self, index: int) -> GpuNow:
        """What GPU number `index` does."""
        handle = self._handles[index]
        power = self._number("nvmlDeviceGetPowerUsage", handle)
        memory, use = _Memory(), _Use()
        known = self._call("nvmlDeviceGetMemoryInfo", handle, byref(memory))
        used = self._call("nvmlDeviceGetUtilizationRates", handle, byref(use))
        return GpuNow(
            self._number("nvmlDeviceGetClockInfo", handle, c_int(_SM_CLOCK)), self._reasons(handle),
            None if power is None else power / 1000,
            self._number("nvmlDeviceGetTemperature", handle, c_int(_GPU_TEMPERATURE)), use.gpu if used else None,
            memory.used if known else None, self._processes(handle), self._active(index, handle),
        )  # fmt: skip

    def close(self) -> None:
        """Let the driver go."""
        self._nvml.nvmlShutdown()

    def _reasons(self, handle: c_void_p) -> int | None:
        bits = c_ulonglong()
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if self._call(name, handle, byref(bits)):
                return bits.value
        return None

    def _processes(self, handle: c_void_p) -> tuple[tuple[int, int | None], ...]:
        count, found = c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        if not self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, byref(count), found):
            return ()
        return tuple((one.pid, None if one.used == _NO_BYTES else one.used) for one in found[: count.value])

    def _active(self, index: int, handle: c_void_p) -> tuple[tuple[int, int], ...]:
        count, found = c_uint(_MOST_PROCESSES), (_ProcessUse * _MOST_PROCESSES)()
        since = c_ulonglong(self._seen[index])
        if not self._call("nvmlDeviceGetProcessUtilization", handle, found, byref(count), since):
            return ()
        told = found[: count.value]
        self._seen[index] = max((one.time for one in told), default=self._seen[index])
        most: dict[int, int] = {}
        for one in told:
            if one.sm <= 100:
                most[one.pid] = max(most.get(one.pid, 0), one.sm)
        return tuple(sorted(most.items()))

    def _number(self, name: str, handle: c_void_p, *which: c_int) -> int | None:
        value = c_uint()
        return value.value if self._call(name, handle, *which, byref(value)) else None

    def _text(self, name: str, handle: c_void_p) -> str | None:
        text = (c_char * 96)()
        return text.value.decode(errors="replace") if self._call(name, handle, text, c_uint(96)) else None

    def _call(self, name: str, *arguments: Any) -> bool:
        function = getattr(self._nvml, name, None)
        return function is not None and function(*arguments) == 0
