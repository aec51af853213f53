"""Step durations with and without the profiler, taken without ever making the host wait for the device."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Durations:
    """Milliseconds of consecutive steps; `device_ms` on the GPU's own timeline, None on CPU."""

    host_ms: list[float]
    device_ms: list[float] | None

    @property
    def step_ms(self) -> list[float]:
        """What the steps took: the host runs ahead of a GPU, so there the device's timeline counts."""
        return self.host_ms if self.device_ms is None else self.device_ms


class StepTimer:
    """Times consecutive steps: made where the first begins, `mark`ed where each ends. On a GPU each mark queues one
    event on the current stream, so the steps overlap as they do without us; `durations` is asked for after the device
    has been synchronised, which stopping the profiler does."""

    def __init__(self) -> None:
        self._host_ns: list[int] = []
        self._events: list[Any] | None = [] if uses_gpu() else None
        self._left_out: set[int] = set()
        self.mark()

    def mark(self, *, counts: bool = True) -> None:
        """A step ended. counts: whether it is among the `durations`."""
        ended = len(self._host_ns) - 1
        if not counts:
            self._left_out.add(ended)
        if self._events is not None:
            import torch

            event: Any = None
            if captures_graph():  # an event would be a part of the graph, and have no time of its own
                self._left_out |= {ended, ended + 1}
            else:
                event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
                event.record()
            self._events.append(event)
        self._host_ns.append(time.perf_counter_ns())

    def durations(self) -> Durations:
        """Of the steps that ended; those that the device has not finished are left out."""
        host_ms = [(end - begin) / 1e6 for begin, end in self._steps(self._host_ns)]
        if self._events is None:
            return Durations(host_ms, None)
        finished = [event for event in self._events if event is None or event.query()]
        return Durations(host_ms, [begin.elapsed_time(end) for begin, end in self._steps(finished)])

    def _steps(self, marks: list[Any]) -> Iterator[tuple[Any, Any]]:
        return (ends for index, ends in enumerate(pairwise(marks)) if index not in self._left_out)


def uses_gpu() -> bool:
    """Whether this process has woken up a GPU; asking wakes none, nor loads torch."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def captures_graph() -> bool:
    """Whether what this thread has its GPU do now is put into a CUDA graph, and not done."""
    return uses_gpu() and bool(sys.modules["torch"].cuda.is_current_stream_capturing())
