"""What tells in passing that a step is none like the others: the garbage collector, torch.compile, the allocator.

All of it is read where Python and torch keep it already; nothing of torch's is replaced.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from traceops.capture.short_way.ways import LongWay
from traceops.core.redaction import redact_text

COMPILED = ("_compile.compile_inner", "entire_frame_compile")  # torch's own names of a whole compilation
_MOST_REASON = 200


class GarbageTime:
    """Has the time that Python's garbage collector takes added up in `way`, where the short way takes it too."""

    def __init__(self, way: LongWay) -> None:
        self.take = way.take_collected
        self._told = way.collected
        gc.callbacks.append(self._told)

    def close(self) -> None:
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)


class Compilations:
    """What torch.compile compiled, by its own record."""

    def __init__(self) -> None:
        self.seen = 0
        self._known = 0
        self.notes: list[list[Any]] = []

    def take(self, step: int) -> tuple[int, int]:
        """Nanoseconds and number of the compilations since it was asked last."""
        times = self.times()
        if not times:
            self.seen = 0  # torch._dynamo.reset() empties it
            return 0, 0
        took = next((times[name] for name in COMPILED if name in times), ())
        count = len(took) - self.seen
        if count <= 0:
            self.seen = len(took)
            return 0, 0
        ns = int(sum(took[self.seen :]) * 1e9)
        self.seen = len(took)
        self._note(step, getattr(sys.modules.get("torch._dynamo.utils"), "_compilation_metrics", ()))
        return ns, count

    @staticmethod
    def times() -> dict[str, Any] | None:
        """Torch's record; None where its compiler is not loaded."""
        utils = sys.modules.get("torch._dynamo.utils")
        return getattr(utils, "compilation_time_metrics", None)

    def _note(self, step: int, metrics: Any) -> None:
        """Which functions, and why again; torch keeps the last 64."""
        for one in list(metrics)[-16:]:
            began = int(getattr(one, "start_time_us", None) or 0)
            if began <= self._known or not getattr(one, "co_name", None):
                continue
            self._known = began
            took = getattr(one, "duration_us", None) or 1e6 * (getattr(one, "entire_frame_compile_time_s", None) or 0)
            reason = getattr(one, "recompile_reason", None)
            told = None if reason is None else redact_text(str(reason))[:_MOST_REASON]
            self.notes.append(
                ["c", step, int(took), str(one.co_name), str(one.co_filename), int(one.co_firstlineno or 0), told]
            )


def allocator_counters(device: int) -> tuple[int, int, int] | None:
    """cudaMalloc calls, retries after memory ran out, and cudaFree calls so far; None where torch does not tell."""
    torch = sys.modules.get("torch")
    read = getattr(getattr(torch, "_C", None), "_cuda_memoryStats", None)
    if read is None:
        return None
    stats = read(device)
    return (
        int(stats.get("num_device_alloc", 0)),
        int(stats.get("num_alloc_retries", 0)),
        int(stats.get("num_device_free", 0)),
    )


def allocator_bytes(device: int) -> tuple[int, int, int, int, int] | None:
    """Bytes that tensors hold, that are reserved, that lie free between blocks in use; most held and reserved so far.

    None where torch does not tell.
    """
    torch = sys.modules.get("torch")
    read = getattr(getattr(torch, "_C", None), "_cuda_memoryStats", None)
    if read is None:
        return None
    stats = read(device)
    held, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    pieces = stats["inactive_split_bytes"]["all"]["current"]
    numbers = held["current"], reserved["current"], pieces, held["peak"], reserved["peak"]
    return tuple(map(int, numbers))  # type: ignore[return-value]
