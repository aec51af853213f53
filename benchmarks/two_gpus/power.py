"""Two ranks multiply matrices alike: rank 0 zeros, and rank 1 random numbers, which take more power.

torchrun --nproc-per-node 2 -m benchmarks.two_gpus.power STEPS

A GPU at its power limit lowers its clock, so rank 1 takes longer for the same kernels. No setting of a GPU is touched.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

CUDA = torch.cuda.is_available()
SIZE, PRODUCTS = (8192, 24) if CUDA else (64, 4)


def main() -> None:
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    dtype = torch.bfloat16 if CUDA else torch.float32
    made = torch.zeros if rank == 0 else torch.randn
    left, right = (made(SIZE, SIZE, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty(SIZE, SIZE, device=device, dtype=dtype)
    weight = torch.nn.Parameter(torch.zeros(4096, 64, device=device))
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(int(sys.argv[1])):
        for _ in range(PRODUCTS):
            torch.mm(left, right, out=out)
        weight.grad = torch.ones_like(weight)
        dist.all_reduce(weight.grad)
        optimizer.step()
        weight.grad = None
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
