"""What the GPUs do just now, by NVML: through ctypes, because starting nvidia-smi costs a core for a second.

Nothing of it wakes up a GPU or makes a context. What a driver does not tell is None.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

from msgspec import Struct

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
        ("pid", c_uint),
        ("time", c_ulonglong),
        ("sm", c_uint),
        ("memory", c_uint),
        ("encoder", c_uint),
        ("decoder", c_uint),
    )


class NvmlGpu(Struct, frozen=True):
    """A GPU of this machine. most_mhz: the highest clock of its multiprocessors. limit_w: its power cap."""

    index: int
    uuid: str | None
    name: str | None
    most_mhz: int | None
    limit_w: float | None


class GpuNow(Struct, frozen=True):
    """What one does at a moment.

    reasons: NVML's bits for why its clock is not higher. processes: pid and bytes. active: pid and percent of the
    multiprocessors' time in the last seconds.
    """

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
            self._number("nvmlDeviceGetClockInfo", handle, c_int(_SM_CLOCK)),
            self._reasons(handle),
            None if power is None else power / 1000,
            self._number("nvmlDeviceGetTemperature", handle, c_int(_GPU_TEMPERATURE)),
            use.gpu if used else None,
            memory.used if known else None,
            self._processes(handle),
            self._active(index, handle),
        )

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
