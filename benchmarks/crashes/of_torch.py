"""Crashes of train.py that torch makes: used in a way that it refuses, or ranks that differ."""

from __future__ import annotations

import io
import os
import socket
import time
import zipfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from benchmarks.crashes.step import DIM, FOREVER_S, Step, is_planted


def batch_norm(step: Step) -> None:
    nn.BatchNorm1d(DIM, device=step.device)(step.batch[:1])  # here


def expand_buffer(step: Step) -> None:
    model = nn.Linear(DIM, DIM, device=step.device)
    scale = torch.ones(1, device=step.device)
    model.register_buffer("scale", scale.expand(DIM) if is_planted() else scale.repeat(DIM))
    DistributedDataParallel(model)  # here


def leaf_inplace(step: Step) -> None:
    next(step.model.parameters()).add_(1.0)  # here


def split_inplace(step: Step) -> None:
    first = (step.batch.requires_grad_() * 2).unbind()[0]
    first.add_(1.0)  # here


def modified_inplace(step: Step) -> None:
    hidden = step.model(step.batch).sigmoid()
    result = hidden.square()
    hidden.add_(1.0)
    (result.sum() + hidden.exp().sum()).backward()  # here


def backward_twice(step: Step) -> None:
    loss = step.model(step.batch).exp().sum()
    with step.model.no_sync():  # type: ignore[operator]
        loss.backward()
        torch.autograd.backward(loss)  # here


def no_gradient(step: Step) -> None:
    with torch.no_grad():
        loss = step.loss()
    torch.autograd.backward(loss)  # here


def unused_parameters(step: Step) -> None:
    for _ in range(2):
        step.model(step.batch, branch=False).sum().backward()  # here


def ready_twice(step: Step) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Linear(DIM, DIM)

        def forward(self, x: torch.Tensor) -> Any:
            half = checkpoint(self.block, x, use_reentrant=is_planted())
            return checkpoint(self.block, half, use_reentrant=is_planted())

    model = DistributedDataParallel(Twice().to(step.device))
    model(step.batch.requires_grad_()).sum().backward()  # here


def scaler_bf16(step: Step) -> None:
    model = nn.Linear(DIM, DIM, device=step.device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(step.device.type)
    scaler.scale(model(step.batch.bfloat16()).float().sum()).backward()
    scaler.step(optimizer)  # here


def scaler_fp16(step: Step) -> None:
    model = nn.Linear(DIM, DIM, device=step.device, dtype=torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(step.device.type)
    scaler.scale(model(step.batch.half()).float().sum()).backward()
    scaler.step(optimizer)  # here


def state_dict(step: Step) -> None:
    step.model.load_state_dict(nn.Linear(DIM, DIM // 2).state_dict())  # here


def broken_file(step: Step) -> None:
    path = Path(f"/tmp/traceops_crash_{os.getpid()}.pt")
    torch.save(step.model.state_dict(), path)
    path.write_bytes(path.read_bytes()[:-2000])
    torch.load(path)  # here


def load_device(step: Step) -> None:
    torch.load(_saved_on("cuda:7"))  # here


def _saved_on(device: str) -> io.BytesIO:
    """A file of one tensor as it would be, had it been on `device`."""
    whole, changed = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(4), whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            cpu = b"X\x03\x00\x00\x00cpu"
            there = b"X" + len(device).to_bytes(4, "little") + device.encode()
            target.writestr(name, source.read(name).replace(cpu, there))
    changed.seek(0)
    return changed


# --- ranks that do not belong together


def port_in_use(step: Step) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        TCPStore("localhost", port, 1, is_master=True)  # here


def wrong_port(step: Step) -> None:
    with socket.socket() as other:
        other.bind(("localhost", 0))
        port = other.getsockname()[1]
    TCPStore("localhost", port, 2, is_master=False, timeout=timedelta(seconds=4))  # here


def world_larger(step: Step) -> None:
    with socket.socket() as other:
        other.bind(("localhost", 0))
        port = other.getsockname()[1]
    TCPStore("localhost", port, 3, is_master=True, timeout=timedelta(seconds=4))  # here


def model_differs(step: Step) -> None:
    layers = 3 if is_planted() else 2
    model = nn.Sequential(*(nn.Linear(DIM, DIM, device=step.device) for _ in range(layers)))
    DistributedDataParallel(model)  # here


def shapes_differ(step: Step) -> None:
    width = DIM * 2 if is_planted() else DIM
    DistributedDataParallel(nn.Linear(DIM, width, device=step.device))  # here


def size_differs(step: Step) -> None:
    dist.all_reduce(torch.ones(1 << (20 if is_planted() else 10), device=step.device))  # here


def operation_differs(step: Step) -> None:
    value = torch.ones(8, device=step.device)
    if is_planted():
        dist.broadcast(value, 0)  # here
    else:
        dist.all_reduce(value)


def barrier_missed(step: Step) -> None:
    if is_planted():
        time.sleep(FOREVER_S)
    dist.monitored_barrier(timeout=timedelta(seconds=4))


def no_group(step: Step) -> None:
    dist.destroy_process_group()
    dist.all_reduce(step.batch)  # here


def nothing_to_train(step: Step) -> None:
    DistributedDataParallel(nn.BatchNorm1d(DIM, affine=False, device=step.device))  # here


def nccl_without_gpu(step: Step) -> None:
    dist.new_group([dist.get_rank()], backend="nccl", use_local_synchronization=True)  # here


def cuda_missing(step: Step) -> None:
    step.batch.cuda()  # here
