"""Behind a window, of models that people train: a step before any window, and behind one with and without `detach`.

torchrun --nproc-per-node 2 -m benchmarks.two_gpus.behind_models SECONDS KIND…

Each kind is trained under DDP. Windows with `detach` and without it alternate, and behind each one a block of steps is
timed, so that what else the machine does meets both alike. What is told is the step behind one ÷ the mean of the two
blocks beside it, which are of the other sort.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.observed.cost import interval
from benchmarks.two_gpus.cupti_common import CUDA, DEVICE, beside, say, sync, window

Step = Callable[[], None]


def resnet() -> tuple[torch.nn.Module, Callable[[Any], torch.Tensor]]:
    from torchvision.models import resnet18, resnet50  # type: ignore[import-not-found, unused-ignore]

    model = (resnet50 if CUDA else resnet18)().to(DEVICE, memory_format=torch.channels_last)
    rows, side = (48, 224) if CUDA else (2, 32)
    images = torch.randn(rows, 3, side, side, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.arange(rows, device=DEVICE)
    return model, lambda made: torch.nn.functional.cross_entropy(made(images), labels)


def llama() -> tuple[torch.nn.Module, Callable[[Any], torch.Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    size, layers, length = (768, 12, 512) if CUDA else (32, 2, 16)
    shape = LlamaConfig(
        hidden_size=size, intermediate_size=2 * size, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=8, vocab_size=8000, max_position_embeddings=length,
    )  # fmt: skip
    tokens = torch.arange(2 * length, device=DEVICE).reshape(2, length) % 8000
    return LlamaForCausalLM(shape).to(DEVICE), lambda made: made(input_ids=tokens, labels=tokens).loss


def small() -> tuple[torch.nn.Module, Callable[[Any], torch.Tensor]]:
    model = torch.nn.Sequential(*(torch.nn.Linear(96, 96) for _ in range(24))).to(DEVICE)
    batch = torch.randn(8, 96, device=DEVICE)
    return model, lambda made: made(batch).square().mean()


KINDS = {"resnet": resnet, "llama": llama, "small": small}


def training(kind: str, *, ddp: bool = True) -> Step:
    model, loss_of = KINDS[kind]()
    made = model
    if ddp:
        made = torch.nn.parallel.DistributedDataParallel(model, device_ids=[DEVICE.index] if CUDA else None)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16) if kind != "small" else contextlib.nullcontext():
            loss = loss_of(made)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(kind: str, seconds: float) -> None:
    rank = dist.get_rank()
    step = training(kind)

    def block(of_s: float = 0.6) -> float:
        """Median step in ms; both ranks make as many."""
        for _ in range(5):
            step()
        sync()
        count = torch.tensor([of_s / max(usual[0], 1e-4)], device=DEVICE)
        dist.broadcast(count, 0)
        times = []
        for _ in range(max(8, int(count.item()))):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        sync()
        usual[0] = float(np.median(times))
        return 1e3 * usual[0]

    usual = [0.05]
    for _ in range(4):
        block(1.0)
    before = [block() for _ in range(6)]
    blocks: list[tuple[bool, float]] = []
    bad: list[dict[str, Any]] = []
    end = torch.tensor([0], device=DEVICE)
    until = time.monotonic() + seconds
    while True:
        detach = len(blocks) % 2 == 0
        told = window(step, f"{kind}{detach}", detach=detach, light=True)
        if told["failure"] or told["light_bad"] or (told["why_not"] and detach):
            bad.append(told)
        blocks.append((detach, block()))
        end.fill_(int(time.monotonic() > until))
        dist.broadcast(end, 0)
        if end.item():
            break
    behind = [ms for _, ms in blocks]
    if rank == 0:
        say(
            part="models", kind=kind, before_ms=[round(one, 3) for one in before],
            detach_ms=[round(ms, 3) for detach, ms in blocks if detach],
            attached_ms=[round(ms, 3) for detach, ms in blocks if not detach],
            attached_by_detached=[round(one, 4) for one in interval(beside(behind))],
            detached_by_before=round(float(np.median(behind[::2]) / np.median(before)), 4), bad=bad[:3],
        )  # fmt: skip


def main() -> None:
    seconds, kinds = float(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    if CUDA:
        torch.cuda.set_device(DEVICE)
        dist.init_process_group("nccl", device_id=DEVICE)
        torch.backends.cudnn.benchmark = True
    else:
        dist.init_process_group("gloo")
    for kind in kinds:
        measure(kind, seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
