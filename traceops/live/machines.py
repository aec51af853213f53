"""What the machines of a run show of themselves: the launcher's log of each host, NVML's counters, and NCCL's RAS."""

from __future__ import annotations

import ctypes
import json
import socket
from collections import Counter, deque
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_double, c_uint, c_void_p
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from traceops.core.rank_files import PREFIX, SUFFIX
from traceops.live.measures import Change

_KEPT = 900  # looks: a quarter of an hour
_MOST_BYTES = 1 << 20  # of a log in one look
_STRANGER_PCT = 5  # of the multiprocessors' time: a process that counts
_STRANGER_BYTES = 1 << 30
# NVML's reasons for a clock below the highest one that nobody asked for: power cap, slowdown by hardware and software
# for heat or power.
_HELD = {0x4: "power_cap", 0x8: "hardware", 0x20: "heat", 0x40: "heat", 0x80: "power_brake"}


class RankOnHost(Struct, frozen=True):
    """Of a rank's main thread since it began: ms it ran on a core, and waited for one; major page faults; its core."""

    ms: float
    ran_ms: float | None
    wait_ms: float | None
    faults: int
    core: int


class GpuLook(Struct, frozen=True):
    """A GPU at a moment. strangers: pids that are not of the run, with what they use; ranks: that run on it."""

    ms: float
    mhz: int | None
    reasons: int
    power_w: float | None
    celsius: int | None
    busy_pct: int | None
    strangers: tuple[int, ...]
    ranks: tuple[int, ...]


class MachineReader:
    """Follows the log of one host."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.ranks: dict[int, deque[RankOnHost]] = {}
        self.gpus: dict[int, deque[GpuLook]] = {}
        self.others: deque[tuple[float, int, str, float]] = deque(maxlen=_KEPT)  # ms, core, name, percent of one
        self._pids: dict[int, int] = {}
        self._most_mhz: dict[int, int] = {}
        self._knows_use = False  # whether the driver reports what each process uses of a GPU

    def look(self) -> None:
        """Take in what is new."""
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._at)
                raw = file.read(_MOST_BYTES)
        except OSError:
            return
        whole = raw[: raw.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            try:
                self._take(json.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError):  # damage costs this line only
                continue

    def _take(self, line: list[Any]) -> None:
        if (kind := line[0]) == "r":
            _, ms, rank, pid, _, wait, faults, core, ran = line
            self._pids[pid] = rank
            self.ranks.setdefault(rank, deque(maxlen=_KEPT)).append(RankOnHost(ms, ran, wait, faults, core))
        elif kind == "p":
            self.others.append((line[1], line[5], line[3], line[4]))
        elif kind == "g" and line[4]:
            self._most_mhz[line[1]] = line[4]
        elif kind == "G":
            _, ms, index, mhz, reasons, watts, celsius, busy, _, processes, active = line
            uses = dict(active)
            ranks = tuple(sorted({self._pids[pid] for pid, _ in processes if pid in self._pids}))
            self._knows_use = self._knows_use or bool(uses)
            strange = tuple(pid for pid, held in processes if pid not in self._pids and self._works(pid, uses, held))
            # Without the ranks' own pids here (a container with its own), nobody can be called a stranger.
            look = GpuLook(ms, mhz, reasons or 0, watts, celsius, busy, strange if ranks else (), ranks)
            self.gpus.setdefault(index, deque(maxlen=_KEPT)).append(look)

    def _works(self, pid: int, uses: Mapping[int, float], held: int | None) -> bool:
        """Whether a process works on a GPU; where the driver does not report that, by the memory that it holds."""
        return uses.get(pid, 0) >= _STRANGER_PCT if self._knows_use else (held or 0) >= _STRANGER_BYTES

    def _rates(self, rank: int, begin_ms: float, end_ms: float) -> dict[str, float]:
        """By how much a rank's fields of `RankOnHost` grew per second, where known; empty without two looks."""
        seen = [one for one in self.ranks.get(rank, ()) if begin_ms <= one.ms <= end_ms]
        if len(seen) < 2:
            return {}
        seconds = max(seen[-1].ms - seen[0].ms, 1.0) / 1000
        ends = {name: (getattr(seen[0], name), getattr(seen[-1], name)) for name in ("ran_ms", "wait_ms", "faults")}
        return {name: (last - first) / seconds for name, (first, last) in ends.items() if None not in (first, last)}

    def busy_others(self, begin_ms: float, end_ms: float) -> tuple[list[str], float]:
        """Processes that are not of the run and took a good part of a core on which a rank ran then: the busiest three
        by name, and what all took together, percent of a core."""
        most: dict[str, float] = {}
        looks: dict[float, float] = {}
        cores = {one.core for seen in self.ranks.values() for one in seen if begin_ms <= one.ms <= end_ms}
        for ms, core, name, pct in self.others:
            if begin_ms <= ms <= end_ms and core in cores:
                most[name] = max(most.get(name, 0.0), pct)
                looks[ms] = looks.get(ms, 0.0) + pct
        return sorted(most, key=lambda name: -most[name])[:3], median(looks.values()) if looks else 0.0

    def strangers(self, rank: int, begin_ms: float, end_ms: float, least: int = 1) -> tuple[int, ...]:
        """Processes that are not of the run and worked on this rank's GPU then, in so many looks at least."""
        found = Counter(
            pid
            for looks in self.gpus.values()
            for look in looks
            if begin_ms <= look.ms <= end_ms and rank in look.ranks
            for pid in look.strangers
        )
        return tuple(sorted(pid for pid, looks in found.items() if looks >= least))

    def held_down(self, rank: int, since_ms: float, end_ms: float) -> tuple[str, int, int] | None:
        """Why the clock of the rank's GPU is lower than before `since_ms`, with both clocks; None where it is not."""
        for looks in self.gpus.values():
            own = [look for look in looks if rank in look.ranks and look.mhz]
            before = [look for look in own if since_ms - 30_000 <= look.ms < since_ms]
            after = [look for look in own if since_ms <= look.ms <= end_ms]
            if len(before) < 3 or len(after) < 2:
                continue
            usual, now = (sorted(look.mhz or 0 for look in some)[len(some) // 2] for some in (before, after))
            if now > 0.93 * usual:
                continue
            why = [_HELD[bit] for bit in _HELD if sum(bool(look.reasons & bit) for look in after) * 2 > len(after)]
            if why:
                return why[-1], usual, now
        return None

    def evidence(self, rank: int, change: Change, begun_ms: float, onset_ms: float, end_ms: float) -> dict[str, Any]:
        """Fields of `findings.RankEvidence` from the host's counters: of a rank since the change, against the two
        minutes before in which it trained. begun_ms: when its first steps were over."""
        known = set(self.strangers(rank, 0.0, onset_ms - 3_000))
        others, crowd = self.busy_others(onset_ms, end_ms)
        found: dict[str, Any] = {
            "strangers": tuple(pid for pid in self.strangers(rank, onset_ms - 3_000, end_ms, 2) if pid not in known),
            "throttle": self.held_down(rank, onset_ms, end_ms), "others": tuple(others), "crowd_pct": crowd,
        }  # fmt: skip
        before = self._rates(rank, max(onset_ms - 120_000, begun_ms), onset_ms)
        since = self._rates(rank, onset_ms, end_ms)
        for field, rate in (("ran_ms", "ran_ms"), ("cores_ms", "wait_ms")):
            if rate in before and rate in since:
                found[f"before_{field}"] = before[rate] * change.before_ms / 1000
                found[field] = since[rate] * change.now_ms / 1000 - found[f"before_{field}"]
        if before and since:
            found["faults"] = max(since["faults"] - before["faults"], 0.0) * change.now_ms / 1000
        return found


class Machines:
    """The logs of all hosts of a run."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._readers: dict[Path, MachineReader] = {}

    def look(self) -> None:
        """Take in what is new, of hosts that are new too."""
        for path in self._out.glob(f"{PREFIX}*{SUFFIX}"):
            self._readers.setdefault(path, MachineReader(path)).look()

    def of(self, rank: int) -> MachineReader | None:
        """That of the host which this rank runs on."""
        return next((reader for reader in self._readers.values() if rank in reader.ranks), None)

    def gpus(self) -> list[GpuLook]:
        """The latest look at each GPU that a rank runs on."""
        return [looks[-1] for reader in self._readers.values() for looks in reader.gpus.values() if looks[-1].ranks]


_LIBRARY = "libnvidia-ml.so.1"
_VERSION = 1
_MOST = 333  # NVML_GPM_METRIC_MAX of the latest drivers: more room than an older one writes
# NVML's numbers, and our names: percent of the time or of the peak; MiB/s.
METRICS = {
    2: "sm_active", 3: "sm_occupancy", 5: "tensor_active", 10: "dram_active", 20: "pcie_out", 21: "pcie_in",
    60: "nvlink_in", 61: "nvlink_out",
}  # fmt: skip


class _Info(ctypes.Structure):
    _fields_ = (("short", c_char_p), ("long", c_char_p), ("unit", c_char_p))


class _Metric(ctypes.Structure):
    _fields_ = (("id", c_uint), ("result", c_uint), ("value", c_double), ("info", _Info))


class _Get(ctypes.Structure):
    _fields_ = (
        ("version", c_uint), ("count", c_uint), ("before", c_void_p), ("after", c_void_p), ("metrics", _Metric * _MOST),
    )  # fmt: skip


class _Support(ctypes.Structure):
    _fields_ = (("version", c_uint), ("supported", c_uint))


class Gpm:
    """The counters of this machine's GPUs. Raises OSError where there is no NVML, or no GPU that has them."""

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL(_LIBRARY)
        if self._nvml.nvmlInit_v2() != 0:
            raise OSError("NVML does not start")
        count = c_uint()
        self._nvml.nvmlDeviceGetCount_v2(byref(count))
        self._samples: dict[int, tuple[c_void_p, c_void_p, c_void_p]] = {}  # device, the sample before, the next one
        for index in range(count.value):
            device = c_void_p()
            query, support = getattr(self._nvml, "nvmlGpmQueryDeviceSupport", None), _Support(_VERSION, 0)
            if query is None or self._nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(device)):
                continue
            if query(device, byref(support)) or not support.supported:
                continue
            samples = c_void_p(), c_void_p()
            if all(self._nvml.nvmlGpmSampleAlloc(byref(one)) == 0 for one in samples):
                self._nvml.nvmlGpmSampleGet(device, samples[0])
                self._samples[index] = device, *samples
        if not self._samples:
            raise OSError("no GPU here has these counters")

    def look(self) -> dict[int, dict[str, float]]:
        """Of each GPU, the means since the last look."""
        found = {}
        for index, (device, before, after) in self._samples.items():
            if self._nvml.nvmlGpmSampleGet(device, after):
                continue
            asked = _Get(_VERSION, len(METRICS), before, after)
            for at, number in enumerate(METRICS):
                asked.metrics[at].id = number
            if self._nvml.nvmlGpmMetricsGet(byref(asked)) == 0:
                own = asked.metrics[: len(METRICS)]
                found[index] = {METRICS[one.id]: round(one.value, 2) for one in own if one.result == 0}
            self._samples[index] = device, after, before
        return found

    def close(self) -> None:
        """Let the driver go."""
        for _, *samples in self._samples.values():
            for one in samples:
                self._nvml.nvmlGpmSampleFree(one)
        self._nvml.nvmlShutdown()


ADDRESS = ("127.0.0.1", 28028)  # NCCL_RAS_ADDR's default
_TIMEOUT_S = 2.0
_MOST_RAS = 1 << 24


class RasLook(Struct, frozen=True):
    """What it reports. text: as it came; communicators, ranks: how many; missing: ranks it cannot reach."""

    text: str
    communicators: int | None = None
    ranks: int | None = None
    missing: int | None = None


def ask(address: tuple[str, int] = ADDRESS) -> RasLook | None:
    """None where nothing listens there, or it is not RAS.

    The protocol is lines: the client names its protocol, the server answers; `SET FORMAT json` is known from NCCL
    2.28 on, and an error there leaves text.
    """
    try:
        with socket.create_connection(address, timeout=_TIMEOUT_S) as connection:
            connection.settimeout(_TIMEOUT_S)
            file = connection.makefile("rwb")
            file.write(b"CLIENT PROTOCOL 2\n")
            file.flush()
            if not file.readline(256).startswith(b"SERVER PROTOCOL"):
                return None
            file.write(b"SET FORMAT json\n")
            file.flush()
            file.readline(256)
            file.write(b"STATUS\n")
            file.flush()
            return _read(file.read(_MOST_RAS).decode(errors="replace"))
    except OSError:
        return None


def _read(text: str) -> RasLook:
    begin = text.find("{")
    try:
        told = json.loads(text[begin:]) if begin >= 0 else None
    except ValueError:
        told = None
    if not isinstance(told, dict):
        return RasLook(text)
    found = told.get("communicators") or told.get("communicators_summary") or []
    groups: list[Any] = found if isinstance(found, list) else [found]
    ranks = [group for group in groups if isinstance(group, dict)]
    missing = sum(int(group.get("missing_ranks_count", 0) or 0) for group in ranks)
    sizes = [int(group.get("size", 0) or 0) for group in ranks]
    return RasLook(text, len(ranks), max(sizes, default=None), missing)
