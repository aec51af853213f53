"""The cost of the light window, by benchmarks/observed/cost.py, for programs of several kinds.

python -m benchmarks.two_gpus.observe_pairs light|graph SECONDS
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.observed import cost as bench
from benchmarks.two_gpus.cupti_common import CUDA, DEVICE, say, sync
from traceops.capture.detaching import Detaching
from traceops.capture.light.sources import Cupti

Step = Callable[[], None]


def _interval(ratios: NDArray[np.float64]) -> list[float]:
    return [round(value, 5) for value in bench.interval(ratios)]


def pairs(name: str, step: Step, until: float, steps: int, settle: int, *, detach: bool) -> None:
    """Blocks with and without in turn. detach: whether the light window ends CUPTI."""
    for _ in range(60):
        step()
    found: list[tuple[float, ...]] = []
    while time.monotonic() < until or len(found) < 3:
        times = {}
        for on in (True, False) if len(found) % 2 else (False, True):
            light = Cupti(detaching=Detaching() if detach else None) if on else None
            times[on] = bench.block(step, steps, settle, None, light)
        found.append((*times[True], *times[False]))
    cpu, wall, plain_cpu, plain = np.array(found).T
    say(
        part="cost", name=name, pairs=len(found), steps=steps,
        step_ms=round(1e3 * float(np.median(plain)) / steps, 4),
        cpu_ms=round(1e3 * float(np.median(plain_cpu)) / steps, 4),
        wall=_interval(wall / plain), cpu=_interval(cpu / plain_cpu),
        wall_us=round(1e6 * float(np.median((wall - plain) / steps)), 2),
        cpu_us=round(1e6 * float(np.median((cpu - plain_cpu) / steps)), 2),
    )  # fmt: skip


def until_takes(ms: float, make: Callable[[int], Step], layers: int) -> Step:
    """A program whose step takes about so long."""
    step = make(layers)
    for _ in range(4):
        for _ in range(15):
            step()
        sync()
        began = time.perf_counter()
        for _ in range(10):
            step()
        sync()
        took = (time.perf_counter() - began) * 100
        if abs(took / ms - 1) < 0.15:
            break
        layers = max(1, round(layers * ms / took))
        step = make(layers)
    return step


def host(layers: int) -> Step:
    return bench.step_of(96, 8, DEVICE, layers)


def device(layers: int) -> Step:
    return bench.step_of(4096 if CUDA else 64, 8192 if CUDA else 64, DEVICE, layers)


def many_small(kernels: int = 400) -> Step:
    """Many small kernels without a host: a graph of them, replayed."""
    value = torch.ones(64 * 1024, device=DEVICE)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            value.mul_(1.0)
    replay: Step = graph.replay
    return replay


_LIGHT: dict[str, tuple[tuple[str, Callable[[], Step], int, int], ...]] = {
    "light": (
        ("host 1 ms", partial(until_takes, 1, host, 5), 40, 10),
        ("device 10 ms", partial(until_takes, 10, device, 4), 12, 3),
    ),
    "graph": (("small kernels in a graph", many_small, 40, 10),),
}


def main() -> None:
    torch.set_num_threads(1)
    which, end = sys.argv[1], time.monotonic() + float(sys.argv[2])
    if CUDA:
        for told, made, steps, settle in _LIGHT[which]:
            step = made()
            for detach in (False, True):
                name, until = f"light {told} detach={detach}", min(time.monotonic() + 6, end)
                say(part="cost", name=f"{name} begins")
                pairs(name, step, until, steps, settle, detach=detach)


if __name__ == "__main__":
    main()
