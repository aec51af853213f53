"""Crashes of train.py that need GPUs."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.crashes.of_host import Samples
from benchmarks.crashes.step import DIM, FOREVER_S, Step, is_planted

GIB = 1 << 30


def oom_forward(step: Step) -> None:
    torch.empty(400 * GIB, dtype=torch.uint8, device=step.device)  # here


def _allow(step: Step, gib: float) -> None:
    total = torch.cuda.get_device_properties(step.device).total_memory
    torch.cuda.set_per_process_memory_fraction(gib * GIB / total, step.device)


def oom_backward(step: Step) -> None:
    _allow(step, 4.5)
    wide = torch.ones(GIB // 4, device=step.device, requires_grad=True)  # 1 GiB
    loss = wide.exp().exp().sum()
    torch.autograd.backward(loss)  # here


def oom_optimizer(step: Step) -> None:
    _allow(step, 3.5)
    weight = nn.Parameter(torch.ones(GIB // 4, device=step.device))
    weight.grad = torch.ones_like(weight)
    torch.optim.Adam([weight], foreach=False).step()  # here


def oom_fragmented(step: Step) -> None:
    _allow(step, 8)
    pieces = [torch.empty(GIB // 4, dtype=torch.uint8, device=step.device) for _ in range(30)]
    del pieces[::2]
    torch.empty(2 * GIB, dtype=torch.uint8, device=step.device)  # here


def oom_others(step: Step) -> None:
    held = None if is_planted() else torch.empty(110 * GIB, dtype=torch.uint8, device=step.device)
    dist.barrier()
    if is_planted():
        torch.empty(60 * GIB, dtype=torch.uint8, device="cuda:0")  # here
    time.sleep(20)
    del held


def _fill(step: Step, leave: int) -> torch.Tensor:
    free, _ = torch.cuda.mem_get_info(step.device)
    return torch.empty(free - leave, dtype=torch.uint8, device=step.device)


def oom_in_nccl(step: Step) -> None:
    held = _fill(step, 8 << 20) if is_planted() else None
    group = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(step.batch, group=group)  # here
    torch.cuda.synchronize()
    del held


def oom_in_matmul(step: Step) -> None:
    held = _fill(step, 4 << 20)
    result = torch.randn(4096, 4096, device=step.device).half() @ torch.randn(4096, 4096).to(step.device).half()  # here
    torch.cuda.synchronize()
    del held, result


def label_out_of_range(step: Step) -> None:
    loss = nn.functional.cross_entropy(step.model(step.batch), torch.full((16,), DIM, device=step.device))
    loss.item()  # here


def token_out_of_range(step: Step) -> None:
    found = nn.Embedding(100, DIM, device=step.device)(torch.tensor([100], device=step.device))
    found.sum().item()  # here


def illegal_access(step: Step) -> None:
    from benchmarks.crashes.kernel import write

    write[(1,)](step.batch, 1 << 42)
    torch.cuda.synchronize()  # here


def illegal_access_unseen(step: Step) -> None:
    """Nobody waits for the GPU here: the collective's watchdog is told first."""
    from benchmarks.crashes.kernel import write

    write[(1,)](step.batch, 1 << 42)
    dist.all_reduce(step.batch)
    time.sleep(30)


def duplicate_gpu(step: Step) -> None:
    torch.cuda.set_device(0)
    group = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(torch.ones(4, device="cuda:0"), group=group)  # here


def no_such_gpu(step: Step) -> None:
    torch.cuda.set_device(int(os.environ["RANK"]) + 8)  # here


def move_sample() -> torch.Tensor:
    return torch.zeros(1).cuda()  # here


def cuda_in_worker(step: Step) -> None:
    for _ in DataLoader(Samples(move_sample), num_workers=1):
        pass


def two_devices(step: Step) -> None:
    step.batch + torch.ones(DIM, device="cuda:0")  # here


def no_interface(step: Step) -> None:
    group = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(step.batch, group=group)


def cpu_tensor(step: Step) -> None:
    dist.all_reduce(torch.ones(4))  # here


def watchdog(step: Step) -> None:
    group = dist.new_group(list(range(dist.get_world_size())), timeout=timedelta(seconds=8))
    dist.all_reduce(step.batch, group=group)
    torch.cuda.synchronize()
    if is_planted():
        time.sleep(FOREVER_S)
    dist.all_reduce(step.batch, group=group)
    torch.cuda.synchronize()
