"""Tensor parallel as Megatron has it, by two autograd functions; rank 0 reads the batch and broadcasts it."""

import time

import torch
import torch.distributed as dist
from own import for_ever, options, samples, steps
from torch.utils.data import DataLoader

WIDTH = 256


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def ask_the_tracker(seconds: float) -> None:
    time.sleep(seconds)


class ParallelBlock(torch.nn.Module):
    def __init__(self, parts: int, asks: float) -> None:
        super().__init__()
        self.asks = asks
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH // parts)
        self.down = torch.nn.Linear(4 * WIDTH // parts, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.asks:
            ask_the_tracker(self.asks)
        inside = torch.nn.functional.gelu(self.up(Copied.apply(self.norm(x))))
        return x + Reduced.apply(self.down(inside))


def main() -> None:
    given = options(blocks=4, asks=0.0, asking=1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    body = torch.nn.Sequential(
        *(ParallelBlock(ranks, given.asks if rank == given.asking and n == 2 else 0.0) for n in range(given.blocks))
    )
    torch.manual_seed(0)
    head = torch.nn.Linear(WIDTH, 8)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], 1e-4)
    batches = for_ever(DataLoader(samples(2048, WIDTH), 64)) if rank == 0 else None
    x, y = torch.empty(64, WIDTH), torch.empty(64, dtype=torch.long)
    for _ in steps(given, body):
        if batches is not None:
            x, y = next(batches)
        dist.broadcast(x, 0)
        dist.broadcast(y, 0)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head(body(x)), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
