"""What these programs share: a small GPT, tokens made in code and options."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if CUDA else torch.device("cpu")
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def small(on_gpu: int, on_cpu: int) -> int:
    """A size."""
    return on_gpu if CUDA else on_cpu


VOCAB, WIDTH, HEADS = small(4096, 256), small(256, 32), small(4, 2)


def options(**more: Any) -> argparse.Namespace:
    """--steps, and what else a program takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=48)
    for name, default in more.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    return parser.parse_args()


def begin() -> None:
    """As scripts that torchrun starts do."""
    if CUDA:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if CUDA else "gloo")
    torch.manual_seed(0)


class Block(nn.Module):
    """Attention and a feed-forward network; projections are layers of their own, as tensor parallel wants them."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.each = width // HEADS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        many, length, _ = x.shape
        y = self.n1(x)
        q, k, v = (one(y).view(many, length, -1, self.each).transpose(1, 2) for one in (self.q, self.k, self.v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(seen.transpose(1, 2).reshape(many, length, -1))
        return x + self.down(functional.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    """Gives logits."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(small(layers, 2)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Of the next tokens."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def autocast() -> torch.autocast:
    """As on GPUs that compute in bfloat16."""
    return torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA)


class Tokens(Dataset[torch.Tensor]):
    """Random tokens, the same each time."""

    def __init__(self, many: int = 100_000, length: int = 256) -> None:
        self.many, self.length = many, small(length, 16)

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, VOCAB, (self.length,), generator=torch.Generator().manual_seed(index))


def loader(data: Dataset[Any], batch: int, workers: int = 2) -> Iterator[Any]:
    """Each rank's part, for ever."""
    parts = DistributedSampler(data, shuffle=False)
    while True:
        yield from DataLoader(data, batch, sampler=parts, num_workers=workers, pin_memory=CUDA, drop_last=True)


def tell(steps: int, began: float) -> None:
    """At the end."""
    if CUDA:
        torch.cuda.synchronize()
    print(f"rank {RANK}: {steps} steps, {1e3 * (time.perf_counter() - began) / steps:.1f} ms each", flush=True)


def steps(given: argparse.Namespace, first: int = 0) -> Iterator[int]:
    """Numbers of the steps; behind the last one the rank says how long they took, and leaves."""
    began = time.perf_counter()
    yield from range(first, first + given.steps)
    tell(given.steps, began)
    dist.destroy_process_group()
