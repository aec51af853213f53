"""Two ranks with collectives in flight: the step before and behind windows, and the weights.

torchrun --nproc-per-node 2 -m benchmarks.two_gpus.cupti_ddp both|none: with captures, or the same steps without any.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.two_gpus.cupti_common import CUDA, DEVICE, program, say, sync, weights, window

_ORDER = (("torch", True), ("torch", False), ("torch", True), ("both", True), ("both", False), ("both", True))
_ROUNDS = 4  # as many in each variant: the weights are to be the same


def main() -> None:
    variant = sys.argv[1]
    if CUDA:
        torch.cuda.set_device(DEVICE)
        dist.init_process_group("nccl", device_id=DEVICE)
    else:
        dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.use_deterministic_algorithms(True)
    _, inner = program("host", seed=3)
    model = torch.nn.parallel.DistributedDataParallel(inner, device_ids=[DEVICE.index] if CUDA else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(8, 96 if CUDA else 32, device=DEVICE)
    flying = torch.ones(1 << 22 if CUDA else 1 << 10, device=DEVICE)
    work: list[Any] = []

    def step() -> None:
        if work:
            work.pop().wait()
            flying[:1024].mul_(0.5)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(flying, async_op=True).wait()
        flying.mul_(0.5)
        work.append(dist.all_reduce(flying[:1024], async_op=True))  # in flight at each step's end

    def block(steps: int = 150 if CUDA else 10) -> float:
        for _ in range(steps // 5):
            step()
        sync()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        sync()
        return 1e3 * (time.perf_counter() - began) / steps

    def told(**row: Any) -> None:
        if rank == 0:
            say(part="ddp", variant=variant, **row)

    for _ in range(2):
        block()
    first = [block() for _ in range(4)]
    before = float(np.median(first))
    told(state="before any", ms=[round(one, 4) for one in first])
    found: dict[str, list[float]] = {}
    for number in range(_ROUNDS):
        for kind, detach in _ORDER:
            light, became = kind == "both", {}
            if variant == "none":
                for _ in range(14 if light else 4):
                    step()
                sync()
            else:  # a folder a rank: there is no launcher
                became = window(step, f"ddp{kind}{detach}", detach=detach, light=light)
            ms = block()
            found.setdefault(f"{kind} detach={detach}", []).append(ms / before)
            if number == 0 or became.get("failure") or became.get("why_not"):
                told(after=kind, detach=detach, ms=round(ms, 4), ratio=round(ms / before, 4), told=became)
    dist.barrier()
    for name, ratios in found.items():
        median = round(float(np.median(ratios)), 4)
        told(summary=name, ratios=[round(one, 4) for one in ratios], median=median)
    total = float(flying.double().sum())
    say(part="ddp", variant=variant, rank=rank, weights=weights(inner), flying=total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
