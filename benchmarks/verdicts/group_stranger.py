"""DDP of eight ranks on two GPUs over gloo, four on each, recorded by torch.profiler alone; and who slows the second.

python -m benchmarks.verdicts.group_stranger busy &
torchrun --nproc-per-node 8 -m benchmarks.verdicts.group_stranger OUT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

STEPS, ROWS, WIDTH, TIMES = 15, 1 << 19, 1024, 5


class Repeated(nn.Module):
    """One layer again and again: much to compute, and little to send."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        for _ in range(TIMES):
            rows = self.layer(rows)
        return rows


def busy() -> None:
    """Large products on GPU 1, until it is ended."""
    square = torch.randn(16384, 16384, device="cuda:1", dtype=torch.bfloat16)
    while True:
        for _ in range(10):
            square @ square
        torch.cuda.synchronize()


def train(out: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank * torch.cuda.device_count() // world)
    torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Repeated().to(device), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rows = torch.randn(ROWS, WIDTH, device=device, dtype=torch.bfloat16)
    out.mkdir(parents=True, exist_ok=True)
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=6, warmup=2, active=6),
        on_trace_ready=lambda done: done.export_chrome_trace(f"{out}/rank_{rank}.pt.trace.json.gz"),
    ) as profiler:
        for _ in range(STEPS):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(rows).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "busy":
        busy()
    train(Path(sys.argv[1]))
