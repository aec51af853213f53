"""Tensor parallel by DTensor: each block's projections are cut; --slow-log: rank 1 writes metrics in each step."""

import time

import torch
from parts import CUDA, DEVICE, GPT, RANK, RANKS, VOCAB, begin, loss_of, options, small, steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PLAN = {**dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel()), **dict.fromkeys(("o", "down"), RowwiseParallel())}


def write_metrics(step: int, seconds: float) -> None:
    if seconds and RANK == 1:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            sorted(range(500), key=str)


def main() -> None:
    given = options(slow_log=0.0)
    begin()
    mesh = init_device_mesh(DEVICE.type, (RANKS,), mesh_dim_names=("tp",))
    model = GPT(3).to(DEVICE)
    for block in model.blocks:
        parallelize_module(block, mesh, PLAN)
    model = model.to(torch.bfloat16) if CUDA else model
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, foreach=False)
    for step in steps(given):
        torch.manual_seed(step)
        ids = torch.randint(0, VOCAB, (small(32, 2), small(256, 16)), device=DEVICE)
        loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        write_metrics(step, given.slow_log)
        if step % 10 == 9 and RANK == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
