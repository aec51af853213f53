"""The networks of the second set of traces."""

from __future__ import annotations

import itertools

import torch
from case import DEVICE, small
from models import Block
from torch import nn
from torch.nn import functional


class Cross(nn.Module):
    """Attention of a decoder to what an encoder gave."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.norm(x), seen, seen, need_weights=False)[0]


class Speech(nn.Module):
    """Two convolutions over a spectrogram, an encoder, and a decoder of text: in the manner of Whisper."""

    def __init__(self, width: int = 768, layers: int = 6, words: int = 8192) -> None:
        super().__init__()
        width, layers, self.words = small(width, 32), small(layers, 1), small(words, 64)
        heads = small(12, 2)
        self.front = nn.Sequential(
            nn.Conv1d(80, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        )
        self.encoder = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.embedding = nn.Embedding(self.words, width)
        self.decoder = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.cross = nn.ModuleList(Cross(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, self.words, bias=False)

    def forward(self, heard: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        seen = self.encoder(self.front(heard).transpose(1, 2))
        x = self.embedding(text[:, :-1])
        for block, cross in zip(self.decoder, self.cross, strict=True):
            x = cross(block(x), seen)
        return functional.cross_entropy(self.head(x).flatten(0, 1).float(), text[:, 1:].flatten())


class Next(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def conv_next() -> nn.Sequential:
    """Four stages."""
    layers: list[nn.Module] = []
    before = 3
    for stage, (width, depth) in enumerate(((96, 2), (192, 2), (384, 5), (768, 2))):
        wide = small(width, 8)
        step = 4 if stage == 0 else 2
        layers += [nn.Conv2d(before, wide, step, step), *(Next(wide) for _ in range(small(depth, 1)))]
        before = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 100)).to(DEVICE)


class Tower(nn.Module):
    """Tokens or patches to one vector."""

    def __init__(self, width: int, layers: int, given: int) -> None:
        super().__init__()
        width = small(width, 32)
        self.first = nn.Linear(given, width)
        self.blocks = nn.Sequential(*(Block(width, small(8, 2)) for _ in range(small(layers, 1))))
        self.last = nn.Linear(width, small(256, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.normalize(self.last(self.blocks(self.first(x)).mean(1)), dim=-1)


def down_and_up(kind: str, width: int, depth: int = 2, given: int = 1, made: int = 4) -> nn.Module:
    """A UNet of two or three dimensions."""
    conv = {"2d": nn.Conv2d, "3d": nn.Conv3d}[kind]
    norm = nn.GroupNorm

    def two(a: int, b: int) -> nn.Sequential:
        groups = min(8, b)
        return nn.Sequential(
            conv(a, b, 3, padding=1), norm(groups, b), nn.SiLU(), conv(b, b, 3, padding=1), norm(groups, b), nn.SiLU()
        )

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            wide = [small(width, 4) * 2**level for level in range(depth + 1)]
            self.first = two(given, wide[0])
            self.downs = nn.ModuleList(two(a, b) for a, b in itertools.pairwise(wide))
            self.ups = nn.ModuleList(two(a + b, a) for a, b in itertools.pairwise(wide))
            self.last = conv(wide[0], made, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pool = functional.max_pool2d if kind == "2d" else functional.max_pool3d
            kept = [self.first(x)]
            for down in self.downs:
                kept.append(down(pool(kept[-1], 2)))
            x = kept.pop()
            for up in reversed(self.ups):
                x = up(torch.cat([functional.interpolate(x, scale_factor=2), kept.pop()], 1))
            return self.last(x)

    return UNet().to(DEVICE)
