"""DDP, a GPT of 12 layers that a GPU is busy with; each option is a trouble of rank 1, or of all ranks.

--python MS of Python in each step of rank 1; --heap N: rank 1 keeps so many objects and collects garbage each fourth
step; --recompile 1: rank 1 compiles anew in each step; --empty 1: rank 1 empties the allocator's cache in each step;
--eval-each N, --save-each N: all ranks evaluate, and rank 0 saves; --bind N: each rank stays on N cores of its own, as
Slurm binds them.
"""

import gc
import os
import time
from pathlib import Path

import torch
from parts import (
    CUDA,
    DEVICE,
    RANK,
    RANKS,
    VOCAB,
    Block,
    Tokens,
    autocast,
    begin,
    loader,
    loss_of,
    options,
    small,
    tell,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, ROWS = small(1024, 32), small(12, 2), small(16, 2)
kept: list[list[int]] = []


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def write_metrics(ms: int) -> int:
    """--python"""
    until, lines = time.perf_counter() + ms / 1e3, 0
    while time.perf_counter() < until:
        lines += len(",".join(str(one) for one in range(50)))
    return lines


def clean_up(many: int) -> None:
    """--heap"""
    if not kept:
        kept.extend([at] for at in range(many))
    gc.collect()


@torch.compile(backend="aot_eager", dynamic=False)
def smoothed(x: torch.Tensor) -> torch.Tensor:
    for at in range(10):
        x = torch.tanh(x) * at + x.mean()
    return x


def evaluate(model: nn.Module, ids: torch.Tensor) -> float:
    """--eval-each"""
    model.eval()
    with torch.no_grad():
        loss = sum(loss_of(model(ids), ids).item() for _ in range(6))
    model.train()
    return loss


def bind(many: int) -> None:
    """--bind"""
    cores = sorted(os.sched_getaffinity(0))
    own = cores[RANK * many : (RANK + 1) * many] or cores
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), own)


def main() -> None:
    given = options(python=0, heap=0, recompile=0, empty=0, eval_each=0, save_each=0, bind=0)
    if given.bind:
        bind(given.bind)
    begin()
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    model = DistributedDataParallel(Model().to(DEVICE), device_ids=[DEVICE.index] if CUDA else None)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=CUDA)
    batches = loader(Tokens(length=512), ROWS)
    began = time.perf_counter()
    for step in range(1, given.steps + 1):
        ids = next(batches).to(DEVICE, non_blocking=True)
        with autocast():
            loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if RANK == 1 and given.python:
            write_metrics(given.python)
        if RANK == 1 and given.heap and step % 4 == 0:
            clean_up(given.heap)
        if RANK == 1 and given.recompile:
            smoothed(torch.ones(step + 2, device=DEVICE))
        if RANK == 1 and given.empty:
            torch.cuda.empty_cache()
        if given.eval_each and step % given.eval_each == 0:
            evaluate(model.module, ids)
        if given.save_each and step % given.save_each == 0 and RANK == 0:
            torch.save(model.module.state_dict(), "model.pt")
    print(f"rank {RANK} of {RANKS}: loss {loss.item():.4f}", flush=True)
    tell(given.steps, began)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
