"""One program of make.py: how its truth is measured without a profiler, and how people profile it."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

CUDA = torch.cuda.is_available() and os.environ.get("CPU") != "1"
DEVICE = torch.device("cuda" if CUDA else "cpu")
BOTH = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])]
_AHEAD_CYCLES = 400_000_000  # that the GPU sleeps while the host launches a whole step: about 0.2 s


class Loop(Protocol):
    """Trains `steps` steps and calls `after` behind each."""

    def __call__(self, steps: int, after: Callable[[], None]) -> None: ...


@dataclass(frozen=True)
class Case:
    """A program. make(cured, folder): its loop, with its troubles or without. record(loop, folder): as its user would.

    cure: it has troubles, and `make(True, …)` is the same program without them. ahead: whether a step of the sick or of
    the cured program never waits for the GPU, so that all of it can be launched ahead.
    """

    name: str
    make: Callable[[bool, Path], Loop]
    record: Callable[[Loop, Path], None]
    cure: bool = False
    ahead: str = ""
    steps: int = 12
    warm: int = 6


def small(large: int, tiny: int) -> int:
    """A size: on a GPU, or where this is only tried on a CPU."""
    return large if CUDA else tiny


def looped(step: Callable[[int], None]) -> Loop:
    """The loop whose steps are all of this kind."""

    def loop(steps: int, after: Callable[[], None]) -> None:
        for number in range(steps):
            step(number)
            after()

    return loop


def wait() -> None:
    """Until the GPU has done all."""
    if CUDA:
        torch.cuda.synchronize()


def nothing() -> None:
    """Behind a step where nobody looks."""


def timed(loop: Loop, steps: int, warm: int) -> dict[str, Any]:
    """Milliseconds a step with no profiler: of all together, and of each where the host waits behind each."""
    steps = small(steps, 3)
    warm = small(warm, 2)
    stamps: list[float] = []

    def between() -> None:
        if len(stamps) in (warm - 1, warm + steps - 1):
            wait()
        stamps.append(time.perf_counter())

    loop(warm + steps, between)
    alone: list[float] = []

    def each() -> None:
        wait()
        alone.append(time.perf_counter())

    loop(steps // 2 + 1, each)
    single = [1e3 * (later - sooner) for sooner, later in itertools.pairwise(alone)]
    return {
        "step_ms": round(1e3 * (stamps[warm + steps - 1] - stamps[warm - 1]) / steps, 3),
        "each_ms": [round(one, 2) for one in single],
        "host_stamps_ms": [round(1e3 * (b - a), 2) for a, b in itertools.pairwise(stamps)],
    }


def launched_ahead(loop: Loop) -> dict[str, Any]:
    """Milliseconds that the GPU needs for a step if its host is never late, and the host to launch it."""
    if not CUDA:
        return {}
    told, hosts = [], []
    for _ in range(2):
        wait()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(_AHEAD_CYCLES)
        first.record()
        began = time.perf_counter()
        loop(1, nothing)
        hosts.append(1e3 * (time.perf_counter() - began))
        was_ahead = not first.query()
        last.record()
        wait()
        if was_ahead:
            told.append(first.elapsed_time(last))
    return {
        "gpu_ms": round(statistics.median(told), 3) if told else None,
        "host_ms": round(statistics.median(hosts), 3),
    }


def truth(case: Case, folder: Path) -> tuple[Loop, dict[str, Any]]:
    """The loop of a case, and what is measured of it before any profiler runs in this process."""
    told: dict[str, Any] = {"name": case.name}
    if case.cure:
        cured = case.make(True, folder)
        told["cured"] = timed(cured, case.steps, case.warm)
        if case.ahead == "cured":
            told["cured"] |= launched_ahead(cured)
        del cured
    loop = case.make(False, folder)
    told |= timed(loop, case.steps, case.warm)
    if case.ahead == "sick":
        told |= launched_ahead(loop)
    if CUDA:
        told["peak_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return loop, told


def by_schedule(
    wait_: int = 1, warmup: int = 1, active: int = 3, repeat: int = 1, kinds: Any = None, **options: Any
) -> Callable[[Loop, Path], None]:
    """As in torch's tutorial: a schedule, tensorboard_trace_handler, and prof.step() behind each step."""

    def record(loop: Loop, folder: Path) -> None:
        with profile(
            activities=kinds or BOTH,
            schedule=schedule(wait=wait_, warmup=warmup, active=active, repeat=repeat),
            on_trace_ready=tensorboard_trace_handler(str(folder)),
            **options,
        ) as prof:
            loop((wait_ + warmup + active) * max(1, repeat) + 1, prof.step)

    return record


def around(steps: int, name: str = "trace.json", kinds: Any = None, **options: Any) -> Callable[[Loop, Path], None]:
    """A profiler around a loop that marks no steps, and export_chrome_trace."""

    def record(loop: Loop, folder: Path) -> None:
        with profile(activities=kinds or BOTH, **options) as prof:
            loop(steps, nothing)
        prof.export_chrome_trace(str(folder / name))

    return record
