"""What the small programs share: a place to train on, repeatable data, and lines that say what they did."""

from __future__ import annotations

import hashlib
import os

import torch

CUDA = torch.cuda.is_available()
STEPS = int(os.environ.get("STEPS", "24"))


def blocks(width: int = 64, depth: int = 3) -> torch.nn.Sequential:
    """A small network, the same on all ranks."""
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 8))


def samples(count: int, width: int = 64) -> torch.utils.data.TensorDataset:
    """Labelled random vectors, the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, width, generator=generator)
    return torch.utils.data.TensorDataset(x, torch.randint(0, 8, (count,), generator=generator))


def tell(steps: int, module: torch.nn.Module) -> None:
    """What the training counted and what came of it."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().float().cpu().contiguous().numpy().tobytes())
    print(f"steps {steps} weights {digest.hexdigest()[:16]}", flush=True)
