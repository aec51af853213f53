"""A pipeline of torch.distributed.pipelining, 1F1B; --layers 3,9: uneven stages; --slow-tokenize: rank 0's host."""

import time

import torch
from parts import CUDA, DEVICE, RANK, RANKS, WIDTH, Block, begin, options, small, steps
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def tokenize(seconds: float) -> None:
    if seconds:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            sorted(range(500), key=str)


def mean_square(out: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def main() -> None:
    given = options(layers="6,6", slow_tokenize=0.0, micro=4)
    begin()
    wide = small(2 * WIDTH, WIDTH)
    layers = int(given.layers.split(",")[RANK])
    module = nn.Sequential(*(Block(wide) for _ in range(layers))).to(DEVICE)
    module = module.to(torch.bfloat16) if CUDA else module
    stage = PipelineStage(module, RANK, RANKS, DEVICE)
    schedule = Schedule1F1B(stage, given.micro, loss_fn=mean_square)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-4)
    x = torch.randn(small(64, 4), small(256, 8), wide, device=DEVICE, dtype=torch.bfloat16 if CUDA else torch.float32)
    for _ in steps(given):
        if RANK == 0:
            tokenize(given.slow_tokenize)
            schedule.step(x)
        elif RANK == RANKS - 1:
            losses: list[torch.Tensor] = []
            schedule.step(target=x, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
