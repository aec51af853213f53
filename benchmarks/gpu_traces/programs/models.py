"""The networks of make.py, and data drawn for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from case import DEVICE, small
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

VOCAB = small(8192, 128)


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        many, length, width = x.shape
        parts = self.qkv(self.ln1(x)).view(many, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(many, length, width))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """A decoder; gives the loss of next tokens."""

    def __init__(self, layers: int = 8, width: int = 1024, heads: int = 16, again: bool = False) -> None:
        super().__init__()
        width = small(width, 32)
        heads = small(heads, 2)
        self.again = again
        self.tokens, self.places = nn.Embedding(VOCAB, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(small(layers, 2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def tokens(many: int = 32, length: int = 512) -> torch.Tensor:
    """A batch for a GPT."""
    return torch.randint(0, VOCAB, (small(many, 2), small(length, 16)), device=DEVICE)


def deep(depth: int = 40, width: int = 256) -> nn.Sequential:
    """Many small layers."""
    depth, width = small(depth, 4), small(width, 16)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)).to(DEVICE)


def wide(width: int = 4096, depth: int = 4) -> nn.Sequential:
    """A few large layers."""
    width = small(width, 32)
    layers: list[nn.Module] = []
    for _ in range(small(depth, 2)):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10)).to(DEVICE)


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.na, self.nb = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.nb(self.b(functional.relu(self.na(self.a(x))))))


def convolutions(width: int = 128, depth: int = 6) -> nn.Sequential:
    """A small ResNet for images of three colours."""
    width = small(width, 8)
    blocks = [Residual(width) for _ in range(small(depth, 1))]
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3), nn.MaxPool2d(2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, 100),
    ).to(DEVICE)  # fmt: skip


class Pictures(Dataset):
    """Pictures that take `work` rounds of numpy to make: decoding and augmentation."""

    def __init__(self, side: int, work: int, count: int = 100_000) -> None:
        self.side, self.work, self.count = small(side, 8), small(work, 1), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        drawn = np.random.default_rng(index)
        picture = drawn.random((3, self.side, self.side), dtype=np.float32)
        for _ in range(self.work):
            picture = np.sort(picture, axis=-1)[..., ::-1] * 0.5 + drawn.random(picture.shape, dtype=np.float32)
        return torch.from_numpy(np.ascontiguousarray(picture)), index % 100


def endless(loader: DataLoader) -> Iterator:
    """Batches without an end."""
    while True:
        yield from loader
