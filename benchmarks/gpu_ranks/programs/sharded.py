"""Programs of train.py under FSDP, in a pipeline and with experts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from case import DEVICE, Case, Loop, by_schedule, small
from ddp import LATE_S, RANK, RANKS, ROWS, busy, few_weights
from models import Block, tokens
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional


def fsdp(cured: bool, _folder: Path) -> Loop:
    """FSDP as in torch's first tutorial; the norm of the gradients is read in each step."""
    model = FullyShardedDataParallel(few_weights(), device_id=DEVICE if DEVICE.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = tokens(ROWS, 256)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(ids)
            loss.backward()
            norm = model.clip_grad_norm_(1.0)
            if not cured:
                norm.item()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


def fsdp2_late(cured: bool, _folder: Path) -> Loop:
    """fully_shard of each block; rank 1's host is late."""
    model = few_weights()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = tokens(ROWS, 256)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            if RANK == 1 and not cured:
                busy(LATE_S)
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


def pipeline(cured: bool, _folder: Path) -> Loop:
    """Two stages of 2 and 6 blocks, 1F1B, four micro-batches; cured: 4 and 4."""
    torch.manual_seed(0)
    width = small(512, 32)
    layers = (4, 4) if cured else (2, 6)
    blocks: list[nn.Module] = [Block(width, small(8, 2)) for _ in range(layers[RANK])]
    ends = [nn.Linear(width, 1)] if RANK == 1 else []
    stage_model = nn.Sequential(*blocks, *ends).to(DEVICE)
    stage = PipelineStage(stage_model, RANK, 2, DEVICE)

    def loss_of(out: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
        return out.square().mean()

    schedule = Schedule1F1B(stage, 4, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(stage_model.parameters(), lr=1e-4)
    rows, length = small(64, 4), small(256, 8)
    x = torch.randn(rows, length, width, device=DEVICE)
    target = torch.zeros(rows, length, 1, device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            if RANK == 0:
                schedule.step(x)
            else:
                schedule.step(target=target, losses=[])
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


def experts(cured: bool, _folder: Path) -> Loop:
    """An expert a rank; rank 1's gets four of five tokens. Cured: as many as the other's."""
    torch.manual_seed(0)
    width, many = small(512, 16), small(20_000, 40)
    share = [many // RANKS] * RANKS
    if not cured:
        share = [many // 5] * RANKS
        share[1] = many - share[0] * (RANKS - 1)
    layers: list[nn.Module] = []
    for _ in range(small(12, 2)):
        layers += [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    expert = nn.Sequential(*layers).to(DEVICE)
    router = nn.Linear(width, width).to(DEVICE)
    optimizer = torch.optim.AdamW([*expert.parameters(), *router.parameters()], lr=1e-4)
    x = torch.randn(many, width, device=DEVICE)
    took = [share[RANK]] * RANKS

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                sent = router(x).float().detach()
                came = torch.empty(sum(took), width, device=DEVICE)
                dist.all_to_all_single(came, sent, took, share)
                out = expert(came).float()
                back = torch.empty(many, width, device=DEVICE)
                dist.all_to_all_single(back, out.detach(), share, took)
                loss = functional.mse_loss(out, came) + router(x).float().square().mean()
            loss.backward()
            for p in router.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


CASES: tuple[Case, ...] = (
    Case("fsdp_clips", fsdp, by_schedule(1, 1, 3), cure=True),
    Case("fsdp2_late", fsdp2_late, by_schedule(1, 1, 3, with_stack=True), cure=True),
    Case("pipeline_uneven", pipeline, by_schedule(1, 1, 3), cure=True),
    Case("experts_uneven", experts, by_schedule(1, 1, 3), cure=True),
)
