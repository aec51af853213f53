"""What a step of train.py has, for the crashes that are planted in it."""

from __future__ import annotations

import os

import torch
from torch import nn

DIM = 64
FOREVER_S = 3600


class Step:
    """The rank's model, optimizer, batch and device."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.model, self.optimizer, self.device = model, optimizer, device
        self.batch = torch.randn(16, DIM, device=device)

    def loss(self) -> torch.Tensor:
        result: torch.Tensor = self.model(self.batch).square().mean()
        return result


def is_planted() -> bool:
    """Whether this is the rank that goes wrong, of crashes in which all ranks take part."""
    return os.environ["RANK"] == os.environ["TRACEOPS_CRASH_RANK"]
